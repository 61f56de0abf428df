"""Policies on real processes: they change the plan by themselves, and the results stay those of a
single thread, whatever a policy does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE
from tests.support.process.flow_process import kill, meander
from tests.support.process.late_flights import FIRST_LIMIT, LateFlights
from tests.support.process.logic_flow import LogicFlow

pytestmark = pytest.mark.timeout(2 * PATIENCE)


def test_the_limit_of_alerts_follows_their_rate(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    flights = LateFlights(broker, prefix, tmp_path)
    words = flights.run("--workers", "2", "--policy-interval", "1")
    with meander(tmp_path, broker.bootstrap, *words, **flights.variables) as flow:
        flow.until_event("started")
        flights.feed_until(flow, lambda: bool(flow.of("reconfigured")))
        for _ in range(3):
            flights.feed(flow)
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT, flow.said
    alerts = flights.check()
    assert len(alerts) > 1
    assert all(alerts.values()), alerts
    first, *_ = flights.history()
    assert first["by"] == "policy DriftTrigger"
    assert first["outcome"] == "in force"
    assert "the selectivity of alert is" in str(first["why"])
    assert f"limit={FIRST_LIMIT}" in str(first["operations"])


POLICIES = """
import threading
from dataclasses import replace

from meander import Policy, resized


class Raises(Policy):
    def decide(self, metrics, plan):
        raise KeyError("no such figure")


class Hangs(Policy):
    def decide(self, metrics, plan):
        threading.Event().wait()


class TooMany(Policy):
    def decide(self, metrics, plan):
        return resized(plan, 64)


class Unknown(Policy):
    def decide(self, metrics, plan):
        return replace(plan, logic={**plan.logic, "nowhere": plan.logic["total"]})


class Says(Policy):
    def decide(self, metrics, plan):
        return "two workers"


class Grows(Policy):
    def decide(self, metrics, plan):
        self.why = "one is too few"
        return resized(plan, 2) if len(plan.workers) == 1 else None
"""
ALL = "Raises", "Hangs", "TooMany", "Unknown", "Says", "Grows"


@pytest.fixture
def logic(broker: Broker, prefix: str, tmp_path: Path) -> LogicFlow:
    """A flow whose module has policies of its user."""
    flow = LogicFlow(broker, prefix, tmp_path)
    (tmp_path / "mine.py").write_text(POLICIES)
    before = flow.module.read_text()
    calls = ", ".join(f"{name}()" for name in ALL)
    after = before.replace('Flow("logic", ', f'Flow("logic", policies=[{calls}], ')
    assert after != before
    flow.module.write_text(f"from mine import {', '.join(ALL)}\n{after}")
    return flow


def test_a_policy_adds_a_worker_though_others_raise_hang_and_propose_nonsense(
    logic: LogicFlow, broker: Broker, tmp_path: Path
) -> None:
    logic.feed()
    words = logic.run("--workers", "1", "--master", "local[3]", "--policy-interval", "1")
    with meander(tmp_path, broker.bootstrap, *words) as flow:
        flow.until_event("started")
        logic.feed()
        flow.until_event("reconfigured")
        logic.feed()
        flow.until_said("policy_suspended policy=Raises")
        flow.until_said("policy_suspended policy=Hangs")
        logic.until_answered(flow)
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT, flow.said
        said = flow.said
    logic.check()
    assert "policy_failed policy=Raises reason=\"KeyError: 'no such figure'\"" in said
    assert 'policy_failed policy=Hangs reason="it has not decided within 5 s"' in said
    assert "policy_refused policy=TooMany" in said
    assert "it has 64 workers, and 3 may run" in said
    assert "policy_refused policy=Unknown" in said
    assert "policy_refused policy=Says" in said
    (plan,) = logic.asked("history").events
    assert (plan["by"], plan["why"]) == ("policy Grows", "one is too few")
    assert plan["outcome"] == "in force"


def test_a_dry_run_only_logs_what_policies_propose(
    logic: LogicFlow, broker: Broker, tmp_path: Path
) -> None:
    logic.feed()
    options = "--policy-interval", "1", "--policies-dry-run"
    words = logic.run("--workers", "1", "--master", "local[3]", *options)
    with meander(tmp_path, broker.bootstrap, *words) as flow:
        flow.until_said("policy_dry_run policy=Grows")
        logic.feed()
        # Two more rounds have come since then.
        flow.until_said("policy_suspended policy=Raises")
        logic.until_answered(flow)
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT, flow.said
        assert flow.of("reconfiguring") == []
        assert list(flow.workers) == [0]
    logic.check()
