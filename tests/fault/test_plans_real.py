"""Plans that come into force on real processes: as a whole at one time, or the old one stays."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, until
from tests.support.process.flow_process import kill, meander
from tests.support.process.logic_flow import LogicFlow

pytestmark = pytest.mark.timeout(2 * PATIENCE)


@pytest.fixture
def logic(broker: Broker, prefix: str, tmp_path: Path) -> LogicFlow:
    return LogicFlow(broker, prefix, tmp_path)


def test_workers_bins_and_logic_change_at_one_time_while_records_flow(
    logic: LogicFlow, broker: Broker, tmp_path: Path
) -> None:
    logic.feed()
    words = logic.run("--workers", "2", "--master", "local[4]")
    with meander(tmp_path, broker.bootstrap, *words) as flow:
        flow.until_event("started")
        logic.feed()
        added = logic.plan(
            """
            workers: {0: {}, 1: {}, 2: {}}
            operators: {total: {parameters: {factor: 7}}, above: {parameters: {limit: 2}}}
            """
        )
        assert added.exit_code() == 0, added.said
        logic.feed()
        refused = logic.plan(
            """
            workers: {0: {}, 1: {}, 2: {}, 3: {}}
            operators: {total: {parameters: {factor: high}}}
            """
        )
        assert refused.exit_code() == 1
        assert "give it values for factor" in str(refused.of("rolled_back"))
        logic.feed()
        removed = logic.plan("workers: {1: {}, 2: {}}\noperators: {total: {logic: Total}}")
        assert removed.exit_code() == 0, removed.said
        logic.feed()
        logic.until_answered(flow)
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT, flow.said
    logic.check()
    history = logic.asked("history").events
    assert [one["outcome"] for one in history] == ["in force", "rolled back", "in force"]


def test_a_plan_holds_as_a_whole_at_whatever_step_a_worker_is_killed(
    logic: LogicFlow, broker: Broker, tmp_path: Path
) -> None:
    logic.feed()
    words = logic.run("--workers", "2", "--master", "local[6]")
    with meander(tmp_path, broker.bootstrap, *words) as flow:
        flow.until_event("checkpointed")
        for n, step in enumerate(("reconfiguring", "joined", "accepted", "plan_in_force")):
            seen = len(flow.of(step))
            workers = "{0: {}, 1: {}}" if n % 2 else "{0: {}, 1: {}, 2: {}}"
            logic.plan(
                f"workers: {workers}\noperators: {{total: {{parameters: {{factor: {n + 2}}}}}}}",
                "--no-wait",
            )
            until(lambda: len(flow.of(step)) > seen, f"{step}: {flow.said}")  # noqa: B023
            kill(flow.workers[1])
            until(lambda: len(flow.of("reconfigured")) > n, f"{step} ends: {flow.said}")  # noqa: B023
            logic.feed()
            (plan,) = logic.asked("show", "--json").events
            assert plan["workers"] == {str(worker): {} for worker in range(3 - n % 2)}
            assert f"'factor': {n + 2}" in str(plan["operators"])
        logic.until_answered(flow)
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT, flow.said
    logic.check()
