"""Logic that changes on real processes: each record meets the version of its time, once, whatever
moves, comes, goes or dies meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, until
from tests.support.process.flow_process import kill, meander
from tests.support.process.logic_flow import START, LogicFlow

pytestmark = pytest.mark.timeout(2 * PATIENCE)


def test_records_meet_the_version_of_their_time_while_workers_come_and_go(
    logic: LogicFlow, broker: Broker, tmp_path: Path
) -> None:
    logic.feed()
    words = logic.run("--workers", "2", "--master", "local[4]")
    with meander(tmp_path, broker.bootstrap, *words) as flow:
        flow.until_event("started")
        logic.feed()
        assert logic.change("above", "--parameter", "limit=3").exit_code() == 0
        logic.feed()
        refused = logic.change("total", "--parameter", "factor=high")
        assert refused.exit_code() == 1
        assert "give it values for factor" in str(refused.of("rejected"))
        unknown = logic.change("total", "--logic", "os:system")
        assert "is not a subclass of ChangeableLogic" in str(unknown.of("rejected"))
        logic.command("rescale", "--workers", "3")
        logic.feed()
        assert logic.change("total", "--parameter", "factor=7").exit_code() == 0
        logic.feed()
        logic.command("migrate", "--bins", "0-127", "--worker", "1")
        absent = logic.change("total", "--logic", "later:Counted")
        assert "No module named 'later'" in str(absent.of("rejected"))
        logic.add_later()
        assert logic.change("total", "--logic", "later:Counted").exit_code() == 0
        logic.feed()
        logic.command("rescale", "--workers", "4")
        logic.feed()
        logic.command("rescale", "--workers", "2")
        logic.feed()
        logic.until_answered(flow)
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT, flow.said
    results = logic.check()
    assert {"", "Total(factor=7)", "later:Counted()"} == results.keys()


def test_changes_hold_though_a_worker_and_the_driver_are_killed(
    logic: LogicFlow, broker: Broker, tmp_path: Path
) -> None:
    logic.feed()
    with meander(tmp_path, broker.bootstrap, *logic.run("--workers", "2")) as flow:
        flow.until_event("checkpointed")
        logic.add_later()
        assert logic.change("total", "--logic", "later:Counted").exit_code() == 0
        logic.feed()
        kill(flow.workers[1])
        until(lambda: len(flow.of("started")) > 1, f"it lives again: {flow.said}")
        logic.feed()
        # A version of a time ahead of all data.
        ahead = str(START + 1500)
        logic.change("above", "--parameter", "limit=5", "--time", ahead, "--no-wait")
        until(lambda: len(flow.of("logic_accepted")) > 1, "it is accepted")
        kill(flow.process.pid)
        flow.until_gone()
    logic.feed()
    with meander(tmp_path, broker.bootstrap, *logic.run("--workers", "3", "--wait")) as flow:
        flow.until_event("started")
        logic.feed(1000)
        flow.until_event("logic_changed")
        logic.until_answered(flow)
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT, flow.said
    logic.check()
    assert [one.operator for one in logic.changes] == ["total", "above"]
