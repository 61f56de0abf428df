"""A worker with a placement runs on that host or executor of a Spark cluster, or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import cast

import pytest
from pyspark import SparkContext

from meander.app.driver.workers.placement import executors
from meander.app.protocol.placement import LOCAL
from meander.dataflow.control.resources import Resources
from tests.support.kafka.brokers import Broker
from tests.support.process.placed_workers import opened
from tests.support.process.spark_cluster import cluster

HOSTS = ("127.0.0.1", "127.0.0.2")
SCENARIO = [sys.executable, "-m", "tests.support.process.placed_workers"]
Found = dict[str, object]


@pytest.fixture(scope="module")
def found(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What came of each worker on a cluster of two hosts with two slots each."""
    with cluster(tmp_path_factory.mktemp("spark"), 2, HOSTS, cores=2) as master:
        command = [*SCENARIO, master, broker.bootstrap]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return cast(Found, json.loads(ended.stdout.splitlines()[-1]))


def test_spark_lists_an_executor_on_each_host_with_its_slots(found: Found) -> None:
    first, second = cast(list[str], found["executors"])
    assert first.endswith(HOSTS[0])
    assert second.endswith(HOSTS[1])
    assert found["slots"] == [2, 2]


def test_a_worker_runs_on_the_named_host_and_in_the_named_executor(found: Found) -> None:
    _, second = cast(list[str], found["executors"])
    assert found["on the host"] == second
    assert found["in the executor"] == second


def test_a_worker_without_a_free_slot_fails_with_the_free_slots_of_all_hosts(found: Found) -> None:
    error = str(found["beyond its slots"])
    assert error.startswith("worker 2: no free slot on host 127.0.0.2: 2 of 2 slots run ")
    assert "127.0.0.1 (executor" in error
    assert "2 of 2 slots free" in error


def test_the_error_before_a_start_names_the_workers_in_the_slots(found: Found) -> None:
    running = "no free slot on host 127.0.0.2: 2 of 2 slots run worker 0 and worker 1"
    assert running in str(found["refused"])
    together = "worker 8: no free slot on host 127.0.0.1: 2 of 2 slots run worker 6 and worker 7"
    assert together in str(found["refused together"])
    assert found["granted"] == ""


def test_an_unknown_host_or_executor_is_an_error_that_names_the_known_hosts(found: Found) -> None:
    known = "hosts known: 127.0.0.1 (executor"
    error = str(found["on an unknown host"])
    assert error.startswith("worker 3: Spark has no host 192.0.2.1; name another one; " + known)
    error = str(found["in an unknown executor"])
    assert error.startswith("worker 4: Spark has no executor 77; name another one; " + known)


def test_a_worker_that_spark_starts_elsewhere_refuses_to_run(found: Found) -> None:
    first, _ = cast(list[str], found["executors"])
    error = str(found["elsewhere"])
    assert error.startswith(f"worker 5: Spark started it in {first}, but it must run on host 127")


def test_failed_placements_harm_no_other_worker(found: Found) -> None:
    first, _ = cast(list[str], found["executors"])
    assert found["anywhere"] == first, "the only host with free slots"
    assert found["running"] == [0, 1, 6]
    assert found["listed"] == [1, 2]
    rejected = "the driver rejected it: the test is over"
    assert [rejected in str(end) for end in cast(list[str], found["ends"])] == [True] * 3


def test_a_local_master_has_one_executor_whose_workers_know_it(
    context: SparkContext, broker: Broker
) -> None:
    (only,) = executors(context)
    assert (only.id, only.slots) == (LOCAL, context.defaultParallelism)
    placement = Resources(executor=LOCAL, host=only.host)
    with opened(context, broker.bootstrap) as workers:
        assert workers.start(0, placement, placement) == str(only.place)
        assert [one.running for one in executors(context)] == [1]
        nowhere = Resources(host="192.0.2.1")
        assert "Spark has no host 192.0.2.1" in workers.start(1, nowhere, nowhere)
        workers.end()
