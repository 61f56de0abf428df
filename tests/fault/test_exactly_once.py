"""I5 and I8: who reads what is committed sees each result once, though workers and the driver are
killed, stopped and continued again and again."""

from __future__ import annotations

import random
import signal
from pathlib import Path

from meander.connectors.local_broker.broker import LocalBroker
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import until
from tests.support.process.counting_flow import HEARTBEAT_TIMEOUT, CountingFlow
from tests.support.process.flow_process import alive, kill, meander, until_silent


def test_each_result_is_committed_once_however_often_workers_are_killed(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    counting, rng = CountingFlow(broker, prefix, tmp_path), random.Random(5)
    counting.feed()
    with meander(tmp_path, broker.bootstrap, *counting.run("--workers", "2")) as flow:
        flow.until_event("started")
        for _ in range(2):
            lives = len(flow.of("started"))
            counting.feed()
            until(lambda: counting.committed.total() >= rng.randrange(100, 800), "some are out")
            kill(rng.choice([*flow.workers.values()][-2:]))
            until(lambda: len(flow.of("started")) > lives, f"it lives again: {flow.said}")  # noqa: B023
            counting.feed()
        counting.until_all(flow)
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 130, flow.said


def test_a_worker_that_was_stopped_through_a_recovery_commits_nothing_more(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    """It wakes up in the midst of what it was doing, unless Spark has killed it by then;
    `test_executor_dies` has one that Spark cannot reach."""
    counting = CountingFlow(broker, prefix, tmp_path)
    counting.feed()
    with meander(tmp_path, broker.bootstrap, *counting.run("--workers", "2")) as flow:
        flow.until_event("started")
        until(lambda: counting.committed.total() >= 100, "some are out")
        zombie = flow.workers[1]
        counting.feed()
        kill(zombie, signal.SIGSTOP)
        until(lambda: len(flow.of("started")) > 1, f"it lives again: {flow.said}")
        kill(zombie, signal.SIGCONT)
        counting.feed()
        until(lambda: not alive(zombie), "it has noticed")
        counting.until_all(flow)
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 130, flow.said


def test_each_result_is_committed_once_though_the_broker_is_killed_in_between(
    own_broker: LocalBroker, prefix: str, tmp_path: Path
) -> None:
    counting = CountingFlow(Broker(own_broker.bootstrap, "its own"), prefix, tmp_path)
    counting.feed()
    with meander(tmp_path, own_broker.bootstrap, *counting.run("--workers", "2")) as flow:
        flow.until_event("started")
        until(lambda: counting.committed.total() >= 100, "some are out")
        counting.feed()
        own_broker.kill()
        until(lambda: "broker_lost" in flow.said, "the flow has noticed")
        own_broker.start()
        counting.feed()
        counting.until_all(flow)
        taken = len(flow.of("checkpointed"))
        until(lambda: len(flow.of("checkpointed")) > taken, "checkpoints go on")
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 130, flow.said


def test_a_replay_that_gives_others_ends_the_flow_unless_they_are_accepted(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    counting = CountingFlow(broker, prefix, tmp_path, interval=None, says_where=True)
    counting.feed()
    with meander(tmp_path, broker.bootstrap, *counting.run("--workers", "2")) as flow:
        flow.until_event("started")
        until(lambda: counting.committed.total() >= 100, "some are out")
        kill(flow.workers[1])
        assert flow.exit_code() == 1, flow.said
        others = "as many, but others; have 'inspect', 'flat_map', 'key_by', 'count' give the same"
        assert others in flow.said
    until_silent(broker, prefix, HEARTBEAT_TIMEOUT)
    again = counting.run("--workers", "1", "--until-end", "--allow-nondeterminism")
    with meander(tmp_path, broker.bootstrap, *again) as flow:
        assert flow.exit_code() == 0, flow.said
        assert flow.of("replay_checked")[-1]["wrong"]
    assert counting.committed == counting.wanted


def test_a_driver_that_is_killed_while_workers_join_or_leave_repeats_nothing(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    """The next one waits for its lease, as it comes back at once and no terminal reads."""
    counting = CountingFlow(broker, prefix, tmp_path)
    counting.feed()
    # One of two workers has joined or left, the other is still on its way; or both are.
    up, down = ("2", "4"), ("3", "1")
    states = (*up, "rescaling"), (*up, "joined"), (*down, "rescaling"), (*down, "left")
    for before, after, state in states:
        words = counting.run("--workers", before, "--master", "local[4]")
        with meander(tmp_path, broker.bootstrap, *words) as flow:
            flow.until_event("started")
            done = counting.committed.total()
            counting.feed()
            until(lambda: counting.committed.total() > done, "more is out")  # noqa: B023
            words = ["rescale", "counts", "--workers", after, "--prefix", prefix, "--no-wait"]
            with meander(tmp_path, broker.bootstrap, *words) as command:
                assert command.exit_code() == 0, command.said
            flow.until_event(state)
            kill(flow.process.pid)
            flow.until_gone()
    end = counting.run("--workers", "1", "--until-end")
    with meander(tmp_path, broker.bootstrap, *end) as flow:
        assert flow.exit_code() == 0, flow.said
    assert counting.committed == counting.wanted
