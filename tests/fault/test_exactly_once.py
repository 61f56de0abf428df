"""I5 and I8: who reads what is committed sees each result once, though workers and the driver are
killed, stopped and continued again and again."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from meander.connectors.local_broker.broker import LocalBroker
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import until
from tests.support.process.counting_flow import HEARTBEAT_TIMEOUT, CountingFlow
from tests.support.process.dying_driver import dying_driver
from tests.support.process.flow_process import FlowProcess, alive, kill, meander, until_silent
from tests.support.process.rescale_states import JOIN, LEAVE
from tests.support.property.budget import FIRST_SEED, RESCALING


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


def chosen() -> list[tuple[bool, str]]:
    """All states of a join and of a leave where `make soak` has time for them; else the seed draws
    one before its decision, and one from there on."""
    if RESCALING:
        return [(states is JOIN, state) for states in (JOIN, LEAVE) for state in states]
    drawn, rng = list[tuple[bool, str]](), random.Random(f"drivers {FIRST_SEED}")
    for states in JOIN, LEAVE:
        decided = states.index("decided")
        drawn += [
            (states is JOIN, rng.choice(some)) for some in (states[:decided], states[decided:])
        ]
    return drawn


def until_dead(
    flow: FlowProcess, counting: CountingFlow, id: str, workers: tuple[int, int]
) -> None:
    """Have a driver go from some workers to others until it dies in that, while lines come.

    It is told so in each execution: an overloaded machine may end one, and its rescale with it.
    """
    flow.until_event("started")
    done, executions = counting.committed.total(), 0
    counting.feed()
    until(lambda: counting.committed.total() > done, f"more is out: {flow.said}")

    def dead() -> bool:
        nonlocal executions
        if len(flow.of("started")) > executions:
            executions += 1
            # A rescale of an earlier driver may go on first.
            counting.rescale(f"before {id}, {executions}", workers[0])
            counting.rescale(f"{id}, {executions}", workers[1])
        counting.feed(10)
        return flow.process.poll() is not None

    until(dead, f"the driver has died: {flow.said}")


@pytest.mark.soak
def test_each_result_is_committed_once_though_drivers_die_while_workers_join_or_leave(
    broker: Broker,
    prefix: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """The next driver waits for the lease, as no terminal reads, and workers of the last may work
    on as it starts. It continues with the rescales that were under way."""
    counting, cases = CountingFlow(broker, prefix, tmp_path), chosen()
    counting.feed()
    died = list[FlowProcess]()
    options = counting.run("--workers", "2", "--master", "local[4]")
    with contextlib.ExitStack() as drivers:
        for number, (joins, state) in enumerate(cases):
            print(f"MEANDER_SEED={FIRST_SEED}: {'join' if joins else 'leave'}, {state}")
            id = f"rescale {number}"
            flow = drivers.enter_context(
                dying_driver(tmp_path, broker.bootstrap, id, state, *options)
            )
            died.append(flow)
            until_dead(flow, counting, id, (2, 4) if joins else (4, 2))
            assert flow.exit_code() == -signal.SIGKILL, flow.said
        with meander(tmp_path, broker.bootstrap, *options, "--until-end") as flow:
            assert flow.exit_code() == 0, flow.said
        for flow in died:
            flow.until_gone()
    assert counting.committed == counting.wanted
    record_property("deaths of drivers while workers joined and left", len(cases))
