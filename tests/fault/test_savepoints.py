"""I5: a flow goes back to a savepoint however many checkpoints have come since, and no result that
is out leaves a second time; once it is reset it knows of none."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import app
from tests.brokers import Broker
from tests.flow_process import FlowProcess, flow_folder, lines, meander
from tests.kafka_tools import consume_all, until

LINES = 300


def texts(first: int, last: int) -> list[str]:
    return [f"w{n * n % 7} v{n % 7}" for n in range(first, last)]


def wanted(last: int) -> list[tuple[str, int]]:
    counted: dict[str, int] = {}
    found = []
    for word in " ".join(texts(0, last)).split():
        counted[word] = counted.get(word, 0) + 1
        found.append((word, counted[word]))
    return sorted(found)


@dataclass(frozen=True)
class Counts:
    """A flow that delivers exactly once, and what users say to it."""

    broker: Broker
    prefix: str
    folder: Path

    @cached_property
    def module(self) -> Path:
        return flow_folder(self.folder / "flow", self.prefix, delivery="exactly_once")

    def run(self, *words: str) -> AbstractContextManager[FlowProcess]:
        run = ["run", str(self.module), "--prefix", self.prefix, "--workers", "2", *words]
        return meander(self.folder, self.broker.bootstrap, *run)

    def said(self, *words: str, code: int = 0) -> str:
        where = "--prefix", self.prefix, "--bootstrap", self.broker.bootstrap
        done = CliRunner().invoke(app, [*words, *where])
        assert done.exit_code == code, done.output
        return done.output

    def listed(self) -> list[tuple[int, str]]:
        rows = map(json.loads, self.said("checkpoints", "counts", "--json").splitlines())
        return [(row["number"], row["savepoint"]) for row in rows]

    def feed(self, first: int, last: int) -> None:
        told = texts(first, last)
        lines(self.broker.bootstrap, self.prefix, told, create=first == 0, after=first)

    def answers(self, last: int) -> None:
        until(lambda: len(self.answered()) >= 2 * last, "all lines are answered")
        assert self.answered() == wanted(last)

    def answered(self) -> list[tuple[str, int]]:
        records = consume_all(self.broker.bootstrap, self.prefix + "counts")
        values = [json.loads(record.value) for record in records if record.value]
        return sorted((value["word"], value["count"]) for value in values)


@pytest.fixture
def flow(broker: Broker, prefix: str, tmp_path: Path) -> Counts:
    return Counts(broker, prefix, tmp_path)


def test_a_savepoint_outlives_checkpoints_and_lives_and_what_is_out_stays_out_once(
    flow: Counts,
) -> None:
    flow.feed(0, LINES)
    with flow.run() as first:
        first.until_event("started")
        flow.answers(LINES)
        flow.said("checkpoint", "counts", "--savepoint", "early")
        refused = flow.said("checkpoint", "counts", "--savepoint", "early", "--json", code=1)
        assert "there is a savepoint 'early'" in refused
        for _ in range(3):
            flow.said("checkpoint", "counts")
        flow.feed(LINES, 2 * LINES)
        flow.answers(2 * LINES)
        assert "a driver runs it" in flow.said("reset", "counts", "--yes", code=2)
        flow.said("stop", "counts", "--savepoint", "late")
        assert first.exit_code() == 0, first.said
    assert flow.listed() == [(6, "late"), (5, ""), (4, ""), (2, "early")]
    topic = flow.prefix + "counts.checkpoints"
    left = [one.offset for one in consume_all(flow.broker.bootstrap, topic)]
    assert left == [1, 2, 3, 4, 5], "nothing lies before the oldest that is kept"
    assert "6 (late)" in flow.said("run", str(flow.module), "--from", "none", code=2)

    flow.feed(2 * LINES, 3 * LINES)
    with flow.run("--from", "early", "--until-end") as second:
        assert second.exit_code() == 0, second.said
    flow.answers(3 * LINES)
    flow.said("checkpoints", "counts", "--drop", "late")
    names = [name for _, name in flow.listed()]
    assert "early" in names and "late" not in names

    flow.said("reset", "counts", "--yes")
    assert flow.listed() == []


def test_a_flow_goes_back_behind_what_a_life_has_begun_with(flow: Counts) -> None:
    flow.feed(0, LINES)
    with flow.run() as first:
        first.until_event("started")
        flow.answers(LINES)
        for _ in range(3):
            flow.said("checkpoint", "counts")
        assert flow.listed() == [(4, ""), (3, ""), (2, "")]
        flow.feed(LINES, 2 * LINES)
        flow.answers(2 * LINES)
        flow.said("stop", "counts")
        assert first.exit_code() == 0, first.said
    with flow.run() as second:
        second.until_event("started")
        flow.said("stop", "counts")
        assert second.exit_code() == 0, second.said
    assert flow.listed() == [(4, ""), (3, ""), (2, "")], "it has let go of none"

    flow.feed(2 * LINES, 3 * LINES)
    with flow.run("--from", "2", "--until-end") as third:
        assert third.exit_code() == 0, third.said
    flow.answers(3 * LINES)
    assert [name for name, _ in flow.listed()][-1] == 2, "of the others none counts any more"
