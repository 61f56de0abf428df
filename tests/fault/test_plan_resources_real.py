"""A worker of a plan takes so many slots of a Spark cluster, and keeps its resources."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, until
from tests.support.process.flow_process import FlowProcess, kill, meander
from tests.support.process.logic_flow import LogicFlow
from tests.support.process.spark_cluster import cluster

A, B = "127.0.0.1", "127.0.0.2"

pytestmark = pytest.mark.timeout(2 * PATIENCE)


def test_a_worker_gets_cores_and_memory_moves_to_more_and_keeps_them_after_a_crash(
    logic: LogicFlow, broker: Broker, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with cluster(tmp_path_factory.mktemp("spark"), 2, (A, B), cores=4) as master:
        words = logic.run("--workers", "2", "--master", master, "--heartbeat-timeout", "20")
        with meander(tmp_path, broker.bootstrap, *words) as flow:
            with logic.load():
                flow.until_event("checkpointed")
                apply(logic, {"0": on(A), "1": on(B, 2, "64m")})
                (first,) = (one for one, its in workers(logic).items() if its["host"] == A)
                large = other(logic, first)
                assert workers(logic)[large] == on(B, 2, "64m")
                assert places(logic)[large].endswith(f"on host {B} with 2 cores and 64m of memory")

                apply(logic, {first: on(A), large: on(B, 2, "128m")})
                larger = other(logic, first)
                assert larger != large, "a successor has the memory"
                assert workers(logic) == {first: on(A), larger: on(B, 2, "128m")}

                taken = (
                    f"no 3 free slots together on host {B}: 2 of 4 slots run worker {larger} (2)"
                )
                assert taken in refusal(logic, {first: on(A), larger: on(B, 3, "128m")})
                many = f"its 5 cores are more than the 4 slots of host {B}"
                assert many in refusal(logic, {first: on(A), larger: on(B, 5, "128m")})
                assert workers(logic) == {first: on(A), larger: on(B, 2, "128m")}

                kill(flow.workers[int(larger)])
                until(lambda: len(flow.of("started")) == 2, f"the flow has recovered: {flow.said}")
                assert sorted(map(str, workers(logic).values())) == sorted(
                    map(str, [on(A), on(B, 2, "128m")])
                )
            logic.until_answered(flow)
            kill(flow.process.pid, signal.SIGINT)
            assert flow.exit_code() == 128 + signal.SIGINT, flow.said
    logic.check()


def on(host: str, cores: int = 1, memory: str = "") -> dict[str, object]:
    """The resources of a worker, as a plan has them."""
    more = {"cores": cores, "memory": memory} if memory else {}
    return {"host": host, **more}


def plan(logic: LogicFlow, wanted: dict[str, dict[str, object]]) -> FlowProcess:
    """Apply a plan of workers."""
    return logic.plan(yaml.safe_dump({"workers": wanted}))


def apply(logic: LogicFlow, wanted: dict[str, dict[str, object]]) -> None:
    """Bring a plan into force."""
    applied = plan(logic, wanted)
    assert applied.exit_code() == 0, (applied.events, applied.said)


def refusal(logic: LogicFlow, wanted: dict[str, dict[str, object]]) -> str:
    """The reason for which a plan is rejected."""
    refused = plan(logic, wanted)
    assert refused.exit_code() == 1, refused.events
    return str(refused.of("rejected"))


def workers(logic: LogicFlow) -> dict[str, dict[str, object]]:
    """The resources of each worker in the plan in force."""
    found: dict[str, dict[str, object]] = logic.plan_in_force["workers"]
    return found


def other(logic: LogicFlow, first: str) -> str:
    """The worker beside one of two."""
    (found,) = workers(logic).keys() - {first}
    return found


def places(logic: LogicFlow) -> dict[str, str]:
    """Where each worker runs, and with what."""
    (compared,) = logic.asked("diff", logic.write("{}")).of("plan_compared")
    found = compared["places"]
    assert isinstance(found, dict)
    return found
