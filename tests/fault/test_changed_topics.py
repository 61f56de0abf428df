"""A flow whose topics or code have changed since its last stop is told so before anything is
launched, and none of its results leaves a second time; it never begins anew unasked."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka import OFFSET_END, TopicPartition
from typer.testing import CliRunner

from meander.app.cli.main import app
from meander.connectors.topics.full_read import read_all
from meander.connectors.topics.internal_topics import topic_names
from tests.support.kafka.topics import (
    PATIENCE,
    Record,
    admin,
    consume_all,
    create_topic,
    delete_topics,
    partitions_of,
    produce,
    until,
)
from tests.support.process.flow_process import flow_folder, lines, meander

TEXTS = [f"w{n % 7} v{n % 5}" for n in range(100)]


def test_a_start_that_would_falsify_results_is_refused_with_what_is_in_the_way(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    module = flow_folder(tmp_path / "flow", prefix, delivery="exactly_once")
    run, source = ["run", str(module), "--prefix", prefix], prefix + "lines"
    called = topic_names(prefix, "counts")

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

    # Of another release, or somebody else's.
    produce(bootstrap, called.checkpoints, [Record(b"no checkpoint")])
    output = refused()
    assert "the checkpoint there is a record of format 'checkpoint'" in output
    assert "restore an earlier checkpoint with meander run --from 2, or read it with" in output
    output = said("checkpoints", "counts")
    assert '"savepoint": "v1"' in output, "what can be read is listed"
    assert "a checkpoint is unusable: topic" in output, "and what cannot is told of"

    written = module.read_text()
    module.write_text(written.replace('fold("count"', 'fold("tally"'))
    output = refused("--from", "v1")
    assert "it holds states of 'count', and the flow has no such operator" in output
    assert "drop what the flow has no place for with --allow-dropped-state" in output
    lines(bootstrap, prefix, ["w0"], create=False, after=len(TEXTS))
    run += "--from", "v1", "--allow-dropped-state", "--until-end"
    with meander(tmp_path, bootstrap, *run) as second:
        assert second.exit_code() == 0, second.said
    assert answers() == 2 * len(TEXTS) + 1, "it has gone on with what is new"
    module.write_text(written)

    places = [TopicPartition(source, one, OFFSET_END) for one in partitions_of(client, source)]
    for deleted in client.delete_records(places).values():
        deleted.result(PATIENCE)
    output = refused("--from", "v1")
    assert f"topic '{source}' is to be read at offset 25 of partition 0, which holds 26" in output
    assert "skip the lost records with --skip-lost" in output and "meander reset counts" in output
    lines(bootstrap, prefix, ["w0"], create=False, after=len(TEXTS) + 1)
    # The result of the last line is out, and does not come again.
    with meander(tmp_path, bootstrap, *run, "--skip-lost", "--allow-nondeterminism") as third:
        assert third.exit_code() == 0, third.said
    assert answers() == 2 * len(TEXTS) + 2
    assert "records_skipped" in third.said
    results = [json.loads(one.value or b"") for one in consume_all(bootstrap, prefix + "counts")]
    greatest = max(result["count"] for result in results if result["word"] == "w0")
    assert greatest == sum(text.split().count("w0") for text in TEXTS) + 1, "the states are kept"

    gone(source)
    create_topic(bootstrap, source, 2)
    output = refused("--from", "2")
    assert f"topic '{source}' was deleted and recreated, so its records are others; start" in output
    (*_, said_last) = output.splitlines()
    assert said_last.count(source) == 1 and "define the flow as before" not in output

    gone(called.checkpoints)
    for words in [], ["--from", "v1"]:
        output = refused(*words)
        assert f"topic '{called.checkpoints}' holds none of them" in output
        assert "meander reset counts lets it start from scratch" in output
    assert read_all({"bootstrap.servers": bootstrap}, called.commit_markers)

    # What another reset has left that ended half-way.
    gone(called.checkpoints)
    gone(called.decisions)
    said("reset", "counts", "--yes")
    assert read_all({"bootstrap.servers": bootstrap}, called.commit_markers) == []
