"""Plans that come into force on real processes: as a whole at one time, or the old one stays."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, until
from tests.support.process.flow_process import kill, meander
from tests.support.process.logic_flow import LogicFlow
from tests.support.process.spark_cluster import cluster

HOSTS = "127.0.0.1", "127.0.0.2"

pytestmark = pytest.mark.timeout(2 * PATIENCE)


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
        for n, step in enumerate(("reconfiguring", "accepted", "joined", "plan_in_force")):
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
            plan = logic.plan_in_force
            assert plan["workers"] == {str(worker): {} for worker in range(3 - n % 2)}
            assert f"'factor': {n + 2}" in str(plan["operators"])
        logic.until_answered(flow)
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT, flow.said
    logic.check()


def test_each_kind_of_reconfiguration_and_a_mixed_one_pass_under_load_on_two_spark_workers(
    logic: LogicFlow, broker: Broker, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    a, b = HOSTS
    with cluster(tmp_path_factory.mktemp("spark"), 2, HOSTS, cores=4) as master:
        words = logic.run("--workers", "2", "--master", master, "--heartbeat-timeout", "20")
        with meander(tmp_path, broker.bootstrap, *words) as flow:
            with logic.load():
                flow.until_event("checkpointed")
                apply(logic, operators={"total": {"parameters": {"factor": 5}}})
                apply(logic, bins={"0": "0-63", "1": "64-255"})
                apply(logic, workers={"0": {}, "1": {}, "2": {}})
                apply(logic, workers={"0": {"host": a}, "1": {"host": b}, "2": {"host": b}})
                assert sorted(hosts(logic).values()) == [a, b, b]
                # A moved worker has a successor with another id.
                (first,) = (one for one, host in hosts(logic).items() if host == a)
                other = next(one for one, host in hosts(logic).items() if host == b)
                many = {f"9{n}": {"host": a} for n in range(4)}
                refused = logic.plan(yaml.safe_dump({"workers": {first: {}, **many}}))
                assert refused.exit_code() == 1
                assert "no free slot on host 127.0.0.1" in str(refused.of("rejected"))
                apply(
                    logic,
                    workers={first: {"host": b}, other: {"host": a}},
                    operators={
                        "total": {"parameters": {"factor": 3}},
                        "above": {"parameters": {"limit": 1}},
                    },
                    bins={first: "0-99", other: "100-255"},
                )
                assert sorted(hosts(logic).values()) == [a, b]
            logic.until_answered(flow)
            kill(flow.process.pid, signal.SIGINT)
            assert flow.exit_code() == 128 + signal.SIGINT, flow.said
    results = logic.check()
    assert {"", "Total(factor=5)", "Total(factor=3)"} == results.keys()


def apply(logic: LogicFlow, **sections: object) -> None:
    """Bring a plan into force; the flow has no other afterwards."""
    text = yaml.safe_dump(sections)
    applied = logic.plan(text)
    assert applied.exit_code() == 0, (applied.events, applied.said)


def hosts(logic: LogicFlow) -> dict[str, str]:
    """The host of each worker, as its plan has it; the flow has nothing to do for it."""
    workers = logic.plan_in_force["workers"]
    compared = logic.asked("diff", logic.write(yaml.safe_dump({"workers": workers})))
    assert compared.of("plan_compared")[-1]["operations"] == []
    return {worker: its["host"] for worker, its in workers.items()}
