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


def test_each_result_is_committed_once_though_workers_are_killed_or_wake_up_after_a_recovery(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    """The one that wakes up is in the midst of what it was doing, unless Spark has killed it by
    then; `test_executor_dies` has one that Spark cannot reach."""
    counting, rng = CountingFlow(broker, prefix, tmp_path), random.Random(5)
    counting.feed()
    with meander(tmp_path, broker.bootstrap, *counting.run("--workers", "2")) as flow:
        flow.until_event("started")
        counting.feed()
        until(lambda: counting.committed.total() >= rng.randrange(100, 800), "some are out")
        counting.feed()
        kill(rng.choice([*flow.workers.values()]))
        until(lambda: len(flow.of("started")) > 1, f"it lives again: {flow.said}")
        done = counting.committed.total()
        counting.feed()
        until(lambda: counting.committed.total() > done, "more is out")
        zombie = flow.workers[1]
        counting.feed()
        kill(zombie, signal.SIGSTOP)
        until(lambda: len(flow.of("started")) > 2, f"it lives again: {flow.said}")
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


def chosen() -> list[tuple[int, int, str]]:
    """Workers before and after a rescale, and a state of it: all of them where `make soak` has time
    for them; else the seed draws one before the decision of a join or of a leave, and of the other
    one from there on."""
    rng, drawn = random.Random(f"drivers {FIRST_SEED}"), list[tuple[int, int, str]]()
    late = rng.random() < 0.5
    for before, after, states in (2, 4, JOIN), (4, 2, LEAVE):
        at = states.index("decided")
        some = states if RESCALING else [rng.choice(states[at:] if late else states[:at])]
        drawn += [(before, after, state) for state in some]
        late = not late
    return drawn


def feed_until_dead(
    counting: CountingFlow, flow: FlowProcess, id: str, before: int, after: int
) -> None:
    """Feed lines all the time, and rescale the flow, until its driver dies in that."""
    executions = 0

    def dead() -> bool:
        nonlocal executions
        # An overloaded machine may end an execution, and its rescales with it.
        if len(flow.of("started")) > executions:
            executions += 1
            # Those of earlier drivers may go on first.
            counting.rescale(f"before {id}, {executions}", before)
            counting.rescale(f"{id}, {executions}", after)
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
    """The next driver waits for the lease, as no terminal reads. It continues the rescales, and
    workers of the last one may still be there as it starts."""
    counting, died = CountingFlow(broker, prefix, tmp_path), list[FlowProcess]()
    counting.feed()
    words = counting.run("--master", "local[4]")
    with contextlib.ExitStack() as drivers:
        for before, after, state in chosen():
            print(f"MEANDER_SEED={FIRST_SEED}: {before} -> {after}, {state}")
            id = f"rescale {len(died)}"
            run = *words, "--workers", str(before)
            driver = dying_driver(tmp_path, broker.bootstrap, id, state, *run)
            died.append(flow := drivers.enter_context(driver))
            flow.until_event("started")
            done = counting.committed.total()
            counting.feed()
            until(lambda: counting.committed.total() > done, "more is out")  # noqa: B023
            feed_until_dead(counting, flow, id, before, after)
            assert flow.exit_code() == -signal.SIGKILL, flow.said
        with meander(tmp_path, broker.bootstrap, *words, "--until-end") as flow:
            assert flow.exit_code() == 0, flow.said
        for flow in died:
            flow.until_gone()
    assert counting.committed == counting.wanted
    record_property("deaths of drivers while workers joined and left", len(died))
