"""A plan holds as a whole or not at all when the driver or a worker that joins for it dies.

The parties die in calls of the driver's own loop, so the step that a case names is exact.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, until
from tests.support.process.dying_plans import DRIVER, JOINING, dying_plans
from tests.support.process.flow_process import FlowProcess, kill, until_silent
from tests.support.process.logic_flow import HEARTBEAT_TIMEOUT, LogicFlow
from tests.support.process.spark_cluster import cluster

HOSTS = "127.0.0.1", "127.0.0.2"
DRIVER_STEPS = "reconfiguring", "joined", "accepted", "decided", "plan_in_force"
JOINING_STEPS = "registered", "joined", "accepted", "decided", "plan_in_force"

pytestmark = pytest.mark.timeout(2 * PATIENCE)


def test_a_plan_holds_as_a_whole_at_whatever_step_the_driver_is_killed(
    logic: LogicFlow, broker: Broker, prefix: str, tmp_path: Path
) -> None:
    logic.feed()
    words = logic.run("--workers", "2", "--master", "local[4]")
    for n, step in enumerate((*DRIVER_STEPS, "")):
        strikes = [(f"p{n}", step, DRIVER)]
        with dying_plans(tmp_path, broker.bootstrap, strikes, *words) as flow:
            flow.until_event("checkpointed")
            if n:
                expect_plan(logic, flow, f"p{n - 1}", n + 1, f"0-{10 * n}")
            pass_last_plan(logic, flow)
            if step:
                send_replacement(logic, flow, n)
                assert flow.exit_code() == -signal.SIGKILL, flow.said
                flow.until_gone()
                until_silent(broker, prefix, HEARTBEAT_TIMEOUT, "logic")
            else:
                end(logic, flow)
    logic.check()
    logic.check_starts()
    history = logic.asked("history").events
    assert [one["outcome"] for one in history] == ["in force"] * len(DRIVER_STEPS)


def test_a_plan_holds_as_a_whole_at_whatever_step_its_joining_worker_is_killed(
    logic: LogicFlow, broker: Broker, tmp_path: Path
) -> None:
    logic.feed()
    words = logic.run("--workers", "2", "--master", "local[6]")
    strikes = [(f"p{n}", step, JOINING) for n, step in enumerate(JOINING_STEPS)]
    with dying_plans(tmp_path, broker.bootstrap, strikes, *words) as flow:
        flow.until_event("checkpointed")
        for n, step in enumerate(JOINING_STEPS):
            pass_last_plan(logic, flow)
            ids = send_replacement(logic, flow, n)
            logic.feed()
            if step == "registered":
                until_of(flow, "rolled_back", f"p{n}")
                assert members(logic, flow, "after") == ids
                continue
            expect_plan(logic, flow, f"p{n}", n + 2, f"0-{10 * n + 10}")
        end(logic, flow)
    assert len(flow.of("recovering")) == len(JOINING_STEPS) - 1
    logic.check()
    logic.check_starts()


def test_a_plan_holds_as_a_whole_at_whatever_step_a_successor_on_another_host_is_killed(
    logic: LogicFlow, broker: Broker, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    logic.feed()
    steps = "registered", "accepted", "decided"
    strikes = [(f"p{n}", step, JOINING) for n, step in enumerate(steps)]
    with cluster(tmp_path_factory.mktemp("spark"), 2, HOSTS, cores=3) as master:
        words = logic.run("--workers", "2", "--master", master, "--heartbeat-timeout", "20")
        with dying_plans(tmp_path, broker.bootstrap, strikes, *words) as flow:
            flow.until_event("checkpointed")
            for n, step in enumerate(steps):
                pass_last_plan(logic, flow)
                before = hosts(logic, flow, f"before{n}")
                ids = [*before]
                # The host of the first changes, wherever it runs.
                other = HOSTS[1 - HOSTS.index(before[ids[0]])]
                logic.send_plan(
                    f"p{n}", workers={ids[0]: {"host": other}, ids[1]: {}}, operators=total(n + 2)
                )
                logic.feed()
                if step == "registered":
                    until_of(flow, "rolled_back", f"p{n}")
                    assert hosts(logic, flow, "after") == before
                    continue
                expect_plan(logic, flow, f"p{n}", n + 2)
                assert sorted(hosts(logic, flow, f"after{n}").values()) == sorted(
                    [other, before[ids[1]]]
                )
            end(logic, flow)
    logic.check()
    logic.check_starts()


def total(factor: int) -> dict[str, Any]:
    """The logic of a plan."""
    return {"total": {"parameters": {"factor": factor}}}


def pass_last_plan(logic: LogicFlow, flow: FlowProcess) -> None:
    """Let records pass the time of the last plan: a recovery goes back behind it, and until then a
    change of the same logic is rejected."""
    logic.feed()
    logic.until_answered(flow)


def send_replacement(logic: LogicFlow, flow: FlowProcess, n: int) -> list[str]:
    """Send a plan in which another worker takes the place of the first one, and the bins and the
    logic change. Return the ids of the workers before it."""
    ids, new = members(logic, flow, f"before{n}"), str(900 + n)
    bins = {ids[1]: f"0-{10 * n + 10}", new: f"{10 * n + 11}-255"}
    logic.send_plan(f"p{n}", workers={ids[1]: {}, new: {}}, bins=bins, operators=total(n + 2))
    return ids


def until_of(flow: FlowProcess, kind: str, id: str) -> dict[str, object]:
    """Wait for the event of this type about a command; return it."""

    def come() -> list[dict[str, object]]:
        assert flow.process.poll() is None, flow.said
        return [one for one in flow.of(kind) if one["id"] == id]

    until(
        lambda: bool(come()),
        f"{kind} {id}; events: {flow.events[-40:]}; standard error: {flow.said}",
    )
    return come()[0]


def the_plan(logic: LogicFlow, flow: FlowProcess, id: str) -> dict[str, Any]:
    """The plan in force, as the flow reports it to the command of this id."""
    logic.send_plan(id, dry_run=True)
    return until_of(flow, "plan_compared", id)


def members(logic: LogicFlow, flow: FlowProcess, id: str) -> list[str]:
    """The ids of the workers of the plan in force."""
    return [*the_plan(logic, flow, id)["plan"]["workers"]]


def hosts(logic: LogicFlow, flow: FlowProcess, id: str) -> dict[str, str]:
    """The host on which each worker runs."""
    places = the_plan(logic, flow, id)["places"]
    return {worker: place.rpartition(" ")[2] for worker, place in places.items()}


def expect_plan(
    logic: LogicFlow, flow: FlowProcess, id: str, factor: int, first: str | None = None
) -> None:
    """Wait until a plan is in force as a whole: with two workers, the version and the bins of the
    first of them."""
    until_of(flow, "reconfigured", id)
    plan = the_plan(logic, flow, f"{id}-shown")["plan"]
    assert f"'factor': {factor}" in str(plan["operators"])
    assert len(plan["workers"]) == 2
    assert first is None or next(iter(plan["bins"].values())) == first


def end(logic: LogicFlow, flow: FlowProcess) -> None:
    """End the flow once all numbers are in the totals."""
    logic.until_answered(flow)
    kill(flow.process.pid, signal.SIGINT)
    assert flow.exit_code() == 128 + signal.SIGINT, flow.said
