"""I5: a flow goes back to a savepoint however many checkpoints have come since, and no result that
is out leaves a second time; once it is reset it knows of none."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from app.cli import app
from tests.brokers import Broker
from tests.flow_process import flow_folder, lines, meander
from tests.kafka_tools import consume_all, until

LINES = 300


def texts(first: int, last: int) -> list[str]:
    return [f"w{n * n % 7} v{n % 7}" for n in range(first, last)]


def answered(broker: Broker, prefix: str) -> list[tuple[str, int]]:
    records = consume_all(broker.bootstrap, prefix + "counts")
    values = [json.loads(record.value) for record in records if record.value]
    return sorted((value["word"], value["count"]) for value in values)


def wanted(last: int) -> list[tuple[str, int]]:
    counted: dict[str, int] = {}
    found = []
    for word in " ".join(texts(0, last)).split():
        counted[word] = counted.get(word, 0) + 1
        found.append((word, counted[word]))
    return sorted(found)


def test_a_savepoint_outlives_checkpoints_and_lives_and_what_is_out_stays_out_once(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    module = flow_folder(tmp_path / "flow", prefix, delivery="exactly_once")
    run = ["run", str(module), "--prefix", prefix, "--workers", "2"]

    def said(*words: str, code: int = 0) -> str:
        where = "--prefix", prefix, "--bootstrap", broker.bootstrap
        done = CliRunner().invoke(app, [*words, *where])
        assert done.exit_code == code, done.output
        return done.output

    def listed() -> list[tuple[int, str]]:
        rows = map(json.loads, said("checkpoints", "counts", "--json").splitlines())
        return [(row["number"], row["savepoint"]) for row in rows]

    def answers(last: int) -> None:
        until(lambda: len(answered(broker, prefix)) >= 2 * last, "all lines are answered")
        assert answered(broker, prefix) == wanted(last)

    lines(broker.bootstrap, prefix, texts(0, LINES))
    with meander(tmp_path, broker.bootstrap, *run) as first:
        first.until_event("started")
        answers(LINES)
        said("checkpoint", "counts", "--savepoint", "early")
        refused = said("checkpoint", "counts", "--savepoint", "early", "--json", code=1)
        assert "there is a savepoint 'early'" in refused
        for _ in range(3):
            said("checkpoint", "counts")
        lines(broker.bootstrap, prefix, texts(LINES, 2 * LINES), create=False, after=LINES)
        answers(2 * LINES)
        assert "another driver runs it" in said("reset", "counts", "--yes", code=2)
        said("stop", "counts", "--savepoint", "late")
        assert first.exit_code() == 0, first.said
    assert listed() == [(6, "late"), (5, ""), (4, ""), (2, "early")]
    left = [one.offset for one in consume_all(broker.bootstrap, prefix + "counts.checkpoints")]
    assert left == [1, 2, 3, 4, 5], "nothing lies before the oldest that is kept"
    assert "6 (late)" in said("run", str(module), "--from", "none", code=2)

    lines(broker.bootstrap, prefix, texts(2 * LINES, 3 * LINES), create=False, after=2 * LINES)
    with meander(tmp_path, broker.bootstrap, *run, "--from", "early", "--until-end") as second:
        assert second.exit_code() == 0, second.said
    answers(3 * LINES)
    said("checkpoints", "counts", "--drop", "late")
    names = [name for _, name in listed()]
    assert "early" in names and "late" not in names

    said("reset", "counts", "--yes")
    assert listed() == []
