"""A flow whose topics or code have changed since its last stop is told so before anything is
launched, and none of its results leaves a second time; it never begins anew unasked."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import OFFSET_END, TopicPartition
from typer.testing import CliRunner

from app.cli import app
from connectors.topics import names
from tests.flow_process import flow_folder, lines, meander
from tests.kafka_tools import (
    PATIENCE,
    admin,
    consume_all,
    create_topic,
    delete_topics,
    ends,
    partitions_of,
    until,
)

TEXTS = [f"w{n % 7} v{n % 5}" for n in range(100)]


def test_a_start_that_would_falsify_results_is_refused_with_what_is_in_the_way(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    module = flow_folder(tmp_path / "flow", prefix, delivery="exactly_once")
    run, source = ["run", str(module), "--prefix", prefix], prefix + "lines"
    called = names(prefix, "counts")

    def said(*words: str, code: int = 0) -> str:
        where = "--prefix", prefix, "--bootstrap", bootstrap
        done = CliRunner().invoke(app, [*words, *where])
        assert done.exit_code == code, done.output
        return done.output

    def refused(*words: str) -> str:
        before = answers()
        output = said("run", str(module), *words, code=2)
        assert answers() == before, "nothing leaves"
        return output

    def answers() -> int:
        return len(consume_all(bootstrap, prefix + "counts"))

    client = admin(bootstrap)

    def gone(topic: str) -> None:
        delete_topics(bootstrap, topic)
        until(lambda: not partitions_of(client, topic), f"{topic} is gone")

    lines(bootstrap, prefix, TEXTS)
    with meander(tmp_path, bootstrap, *run) as first:
        first.until_event("started")
        until(lambda: answers() == 2 * len(TEXTS), "all lines are answered")
        said("stop", "counts", "--savepoint", "v1")
        assert first.exit_code() == 0, first.said

    written = module.read_text()
    module.write_text(written.replace('fold("count"', 'fold("tally"'))
    output = refused()
    assert "it holds states of 'count', and the flow has no such operator" in output
    assert "drop what the flow has no place for with --allow-dropped-state" in output
    lines(bootstrap, prefix, ["w0"], create=False, after=len(TEXTS))
    with meander(tmp_path, bootstrap, *run, "--allow-dropped-state", "--until-end") as second:
        assert second.exit_code() == 0, second.said
    assert answers() == 2 * len(TEXTS) + 1, "it has gone on with what is new"
    module.write_text(written)

    places = [TopicPartition(source, one, OFFSET_END) for one in partitions_of(client, source)]
    for deleted in client.delete_records(places).values():
        deleted.result(PATIENCE)
    output = refused("--from", "v1")
    assert f"topic '{source}' is to be read at offset 25 of partition 0, which holds 26" in output
    assert "meander reset counts" in output

    gone(source)
    create_topic(bootstrap, source, 2)
    output = refused()
    assert f"topic '{source}' was read in partition 3, and has 2 now" in output
    assert f"source 'source' has read topic '{source}' of id" in output

    gone(called.checkpoints)
    output = refused()
    assert f"topic '{called.checkpoints}' holds none of them any more" in output
    assert "meander reset counts has it begin anew" in output
    assert ends(bootstrap, called.marks) > 0

    # What another reset has left that ended half-way.
    gone(called.checkpoints)
    gone(called.decisions)
    said("reset", "counts", "--yes")
    assert ends(bootstrap, called.marks) == 0
