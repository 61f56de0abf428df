"""I5: a flow goes back to a savepoint however many checkpoints have come since, and no result that
is out leaves a second time; once it is reset it knows of none."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meander.app.cli.main import app
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import consume_all
from tests.support.process.counting_flow import CountingFlow
from tests.support.process.flow_process import FlowProcess, meander


class CommandedFlow:
    """A flow of which checkpoints are taken when a user says so, and what else is said to it."""

    def __init__(self, broker: Broker, prefix: str, folder: Path) -> None:
        self.broker, self.prefix, self._folder = broker, prefix, folder
        self.counts = CountingFlow(broker, prefix, folder, interval=None)

    def run(self, *words: str) -> AbstractContextManager[FlowProcess]:
        return meander(self._folder, self.broker.bootstrap, *self.counts.run(*words))

    def said(self, *words: str, code: int = 0) -> str:
        where = "--prefix", self.prefix, "--bootstrap", self.broker.bootstrap
        done = CliRunner().invoke(app, [*words, *where])
        assert done.exit_code == code, done.output
        return done.output

    def rows(self) -> list[dict[str, object]]:
        return [*map(json.loads, self.said("checkpoints", "counts", "--json").splitlines())]

    def listed(self) -> list[tuple[object, object]]:
        return [(row["number"], row["savepoint"]) for row in self.rows()]

    @property
    def next_run(self) -> list[object]:
        """With which the next run begins."""
        return [row["number"] for row in self.rows() if row["next_run"]]

    def stop(self, flow: FlowProcess, *words: str) -> None:
        self.said("stop", "counts", *words)
        assert flow.exit_code() == 0, flow.said

    def to_the_end(self, *words: str) -> None:
        """All that there is is counted, and committed once."""
        with self.run(*words, "--until-end") as flow:
            assert flow.exit_code() == 0, flow.said
        assert self.counts.committed == self.counts.wanted


@pytest.fixture
def flow(broker: Broker, prefix: str, tmp_path: Path) -> CommandedFlow:
    return CommandedFlow(broker, prefix, tmp_path)


def test_a_savepoint_survives_checkpoints_and_executions_and_results_leave_once(
    flow: CommandedFlow,
) -> None:
    flow.counts.feed()
    with flow.run() as first:
        flow.counts.until_all(first)
        flow.said("checkpoint", "counts", "--savepoint", "early")
        refused = flow.said("checkpoint", "counts", "--savepoint", "early", "--json", code=1)
        assert "savepoint 'early' exists" in refused
        for _ in range(3):
            flow.said("checkpoint", "counts")
        flow.counts.feed()
        flow.counts.until_all(first)
        assert "a driver runs it" in flow.said("reset", "counts", "--yes", code=2)
        assert "a driver runs it" in flow.said("reset", "counts", code=2), "before it asks"
        flow.stop(first, "--savepoint", "late")
    assert flow.listed() == [(6, "late"), (5, ""), (4, ""), (2, "early")]
    assert flow.next_run == [6]
    topic = flow.prefix + "counts.checkpoints"
    left = [one.offset for one in consume_all(flow.broker.bootstrap, topic)]
    assert left == [1, 2, 3, 4, 5], "nothing lies before the oldest that is kept"
    assert "6 (late)" in flow.said("run", str(flow.counts.module), "--from", "none", code=2)

    with flow.run("--from", "early") as second:
        second.until_event("started")
        flow.stop(second)
    assert flow.listed() == [(6, "late"), (2, "early")]
    assert flow.next_run == [2], "though another is newer"
    flow.counts.feed()
    flow.to_the_end()
    flow.said("checkpoints", "counts", "--drop", "late")
    names = [name for _, name in flow.listed()]
    assert "early" in names and "late" not in names
    flow.said("reset", "counts", "--yes")
    assert flow.listed() == []


def test_a_flow_is_restored_from_before_the_checkpoint_of_an_execution(flow: CommandedFlow) -> None:
    flow.counts.feed()
    with flow.run() as first:
        flow.counts.until_all(first)
        for _ in range(3):
            flow.said("checkpoint", "counts")
        assert flow.listed() == [(4, ""), (3, ""), (2, "")]
        flow.counts.feed()
        flow.counts.until_all(first)
        flow.stop(first)
    with flow.run() as second:
        second.until_event("started")
        flow.stop(second)
    assert flow.listed() == [(4, ""), (3, ""), (2, "")], "it has let go of none"

    flow.counts.feed()
    flow.to_the_end("--from", "2")
    assert [name for name, _ in flow.listed()][-1] == 2, "of the others none counts any more"
