"""I5 and I8 on a Spark cluster: an executor's JVM is killed, with all that runs in it, or stopped
and continued, and the flow goes on from its newest checkpoint on what executors there are."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import until
from tests.support.process.counting_flow import CountingFlow
from tests.support.process.flow_process import FlowProcess, alive, has_states, kill, meander
from tests.support.process.spark_cluster import cluster, executor_of


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a cluster with an executor more than the flow needs."""
    with cluster(tmp_path_factory.mktemp("spark"), 3) as address:
        yield address


@contextmanager
def counting_on(
    master: str, broker: Broker, prefix: str, folder: Path
) -> Iterator[tuple[CountingFlow, FlowProcess]]:
    """A flow of two workers that has committed something, to its end by a signal."""
    counting = CountingFlow(broker, prefix, folder)
    counting.feed()
    words = counting.run("--workers", "2", "--master", master)
    with meander(folder, broker.bootstrap, *words) as flow:
        flow.until_event("started")
        until(lambda: counting.committed.total() >= 100, "some are out")
        yield counting, flow
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 130, flow.said


def test_a_flow_survives_the_kill_of_an_executor(
    broker: Broker, prefix: str, tmp_path: Path, master: str
) -> None:
    with counting_on(master, broker, prefix, tmp_path) as (counting, flow):
        lost, other = flow.workers[1], flow.workers[0]
        executor, spared = executor_of(lost), executor_of(other)
        assert executor != spared, "one worker of the flow on each"
        counting.feed()
        kill(executor)
        until(lambda: len(flow.of("started")) > 1, f"it lives again: {flow.said}")
        assert not alive(lost), "it was the executor's"
        counting.feed()
        counting.until_all(flow)
        assert executor_of(other) == spared, "it goes on in its process"


def test_a_stopped_worker_that_escaped_its_kill_commits_nothing_later(
    broker: Broker, prefix: str, tmp_path: Path, master: str
) -> None:
    """Its executor has been stopped with it, so the word that ends it comes too late."""
    with counting_on(master, broker, prefix, tmp_path) as (counting, flow):
        zombie = flow.workers[1]
        executor = executor_of(zombie)
        counting.feed()
        for process in (executor, zombie):
            kill(process, signal.SIGSTOP)
        until(lambda: len(flow.of("started")) > 1, f"it lives again: {flow.said}")
        counting.feed()
        counting.until_all(flow)
        assert alive(zombie) and has_states(zombie), "else there is none to be fenced off"
        kill(zombie, signal.SIGCONT)
        # Its process ends with a word to its executor, which still cannot hear it.
        until(lambda: not has_states(zombie), "it has noticed")
        kill(executor, signal.SIGCONT)
        until(lambda: not alive(zombie), "its executor has heard it")
        counting.feed()
        counting.until_all(flow)
