"""A migration to a worker that is not there has it started; whatever comes between, every command
is answered once, the driver goes on, and a worker that came for nothing goes again."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar, cast

import pytest

from meander import Flow
from meander.app.driver.commands import CommandHandler, OpenCommands
from meander.app.recovery.decision_log import DecisionLog
from meander.connectors.topics.control import ControlTopic, RawCommand
from meander.dataflow.control.decisions import CommandsDoneDecision, Decision
from meander.dataflow.coordinator.rescaler import Rescaler
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import Simulation
from meander.dataflow.simulation.worker_pool import SimulatedPool
from meander.schemas.status import (
    Aborted,
    Accepted,
    CommandRejected,
    Completed,
    Event,
    Joined,
    JoinFailed,
    Left,
    Planned,
    Rescaled,
    Rescaling,
)
from meander.state.keys.ids import WorkerId
from meander.state.times.time import to_millis
from meander.testing import TestFlow
from tests.support.sim.manual_flow import until

PARTITIONS, RECORDS, KEYS, SLOTS = 4, 1200, 40, 5
TWO, THREE = WorkerId(2), WorkerId(3)
E = TypeVar("E", bound=Event)


class ManualTopic:
    """A control topic: what is put there is taken at the next poll."""

    def __init__(self) -> None:
        self.dealt: list[int] = []
        self._count = 0
        self._new: deque[RawCommand] = deque()

    def put(self, *commands: dict[str, object]) -> None:
        for command in commands:
            told = json.dumps({"meander": "command"} | command).encode()
            self._new.append(RawCommand(self._count, told, 0))
            self._count += 1

    def poll(self) -> list[RawCommand]:
        taken, self._new = [*self._new], deque()
        return taken

    def commit(self, offset: int) -> None:
        self.dealt.append(offset)


class ManualDecisionLog:
    """Nothing that the control topic waits for is under way; what is written is durable."""

    started = durable = 0

    def __init__(self) -> None:
        self.written: list[Decision] = []

    def __call__(self, decision: Decision) -> Callable[[], bool]:
        self.written.append(decision)
        return lambda: True


class ManualPool(SimulatedPool):
    """Simulated workers; those that are launched are ready when a test says so."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self.launched: list[WorkerId] = []
        self.up = False

    def launch(self, workers: Iterable[WorkerId]) -> None:
        self.launched += workers
        super().launch(workers)

    @property
    def ready(self) -> Sequence[WorkerId]:
        return super().ready if self.up else []


class Driven:
    """A flow of two workers and four bins, with the driver's part in commands."""

    def __init__(self, run: TestFlow, sink: ListSink) -> None:
        self.sink, self.sim, self.coordinator = sink, run.sim, run.sim.coordinator
        self.topic, self.pool = ManualTopic(), ManualPool(run.sim)
        self.decision_log = ManualDecisionLog()
        self.open_commands = OpenCommands()
        self.rescaler = Rescaler(self.coordinator, self.pool, run.sim.clock, SLOTS)
        self.commands = CommandHandler(
            run.sim.plan, cast(ControlTopic, self.topic), cast(DecisionLog, self.decision_log),
            self.coordinator, self.rescaler, self.open_commands,
        )  # fmt: skip
        self.told: list[Event] = []
        self._heard = 0
        self.until(lambda: self.coordinator.ready)

    def migrate(self, id: str, worker: int, **more: object) -> dict[str, object]:
        return {"type": "migrate", "id": id, "bins": "all", "worker": worker} | more

    def soon(self) -> int:
        """A time that can be named yet, milliseconds."""
        least = self.coordinator.closed_before
        assert least is not None
        return to_millis(least) + 20

    def act(self) -> None:
        """The driver looks at everything once."""
        self.told += self.commands.poll()
        self.flow()

    def flow(self) -> None:
        """The engine goes on, and the driver hears of it."""
        self.sim.act()
        for event in self.sim.events[self._heard :]:
            self.told += self.commands.follow(event)
        self._heard = len(self.sim.events)

    def until(self, holds: Callable[[], bool], act: Callable[[], None] | None = None) -> None:
        until(holds, act or self.act, 100_000)

    def until_passed(self, millis: int) -> None:
        """No command can have this time any more."""
        self.until(
            lambda: (least := self.coordinator.closed_before) is None or to_millis(least) > millis
        )

    def until_told(self, kind: type[Event], id: str) -> None:
        self.until(lambda: any(isinstance(event, kind) and event.key == id for event in self.told))

    def said(self, id: str) -> list[str]:
        """What became of a command, bin for bin left out."""
        return [one.type for one in self.told if one.key == id and one.type != "bin_moved"]

    def the(self, kind: type[E], id: str) -> E:
        """The only event of a kind that was told of a command."""
        (found,) = (event for event in self.told if isinstance(event, kind) and event.key == id)
        return found

    def bins(self) -> set[int]:
        """Who has any."""
        return {*map(int, self.coordinator.owners())}

    def end(self) -> None:
        """Let the flow come to its end: it goes on whatever became of commands."""
        self.until(lambda: self.sim.done)
        counts = [value for value in self.sink.values if isinstance(value, tuple)]
        assert len(counts) == len({*counts}) == PARTITIONS * RECORDS


@pytest.fixture
def driven() -> Iterator[Driven]:
    sink, flow = ListSink(), Flow("f", bins=2)
    records = [[(ms, (ms + p) % KEYS) for ms in range(RECORDS)] for p in range(PARTITIONS)]
    keyed = flow.source(ListSource(records)).key_by(lambda k: k)
    keyed.fold("n", lambda: 0, lambda n, k: (n + 1, (k, n + 1))).sink(sink)
    with TestFlow(flow, 2, seed=7) as run:
        yield Driven(run, sink)


def test_a_worker_that_a_migration_names_is_started_joins_and_gets_the_bins(
    driven: Driven,
) -> None:
    driven.topic.put(driven.migrate("m", 2))
    driven.until_told(Rescaling, "m")
    assert driven.pool.launched == [TWO]
    driven.pool.up = True
    driven.until_told(Completed, "m")
    assert driven.said("m") == ["rescaling", "joined", "accepted", "completed"]
    assert driven.the(Accepted, "m").offset == 0
    assert driven.bins() == {2}
    assert driven.topic.dealt == [0]
    driven.end()


def test_a_worker_that_came_for_nothing_goes_again(driven: Driven) -> None:
    time = driven.soon()
    driven.topic.put(driven.migrate("m", 2, time=time))
    driven.until_passed(time)
    driven.pool.up = True
    driven.until_told(Rescaled, "m")
    assert driven.said("m") == ["rescaling", "joined", "rejected", "left", "rescaled"]
    rejected = driven.the(CommandRejected, "m")
    assert f"time {time} ms is closed" in rejected.reason
    assert driven.pool.handles == [0, 1]
    assert driven.bins() == {0, 1}
    driven.end()


def test_a_rejected_id_can_be_given_again_however_its_workers_came_and_went(
    driven: Driven,
) -> None:
    for worker in (2, 3):
        time = driven.soon()
        driven.pool.up = False
        driven.topic.put(driven.migrate("m", worker, time=time))
        driven.until_passed(time)
        driven.pool.up = True
        driven.until(lambda: len(driven.said("m")) == 5)
        assert driven.said("m") == ["rescaling", "joined", "rejected", "left", "rescaled"]
        driven.told.clear()
    driven.end()


def test_a_joined_worker_that_cannot_leave_again_is_reported(driven: Driven) -> None:
    driven.pool.up = True
    driven.topic.put(driven.migrate("m", 2))
    driven.until_told(Joined, "m")
    driven.until(lambda: driven.coordinator.closed_before is None, driven.flow)
    driven.until_told(Rescaled, "m")
    assert driven.said("m") == ["rescaling", "joined", "rejected", "rescaled"]
    ended = driven.the(Rescaled, "m")
    assert "worker 2 stays, though nothing moves to it: the flow's sources have" in ended.reason
    driven.end()


def test_a_worker_that_registers_after_the_end_does_not_join(driven: Driven) -> None:
    driven.topic.put(driven.migrate("m", 2))
    driven.until_told(Rescaling, "m")
    driven.until(lambda: driven.coordinator.closed_before is None)
    driven.pool.up = True
    driven.until_told(CommandRejected, "m")
    assert driven.said("m") == ["rescaling", "join_failed", "rejected"]
    driven.end()


@pytest.mark.parametrize(
    "command", [{"type": "checkpoint"}, {"type": "stop", "savepoint": "s"}], ids=["one", "the last"]
)
def test_a_command_that_asks_for_a_checkpoint_is_answered_by_another_driver_too(
    driven: Driven, command: dict[str, object]
) -> None:
    """That driver knows what the one that is lost has told, and no more."""
    driven.topic.put(command | {"id": "c"})
    driven.act()
    next = OpenCommands()
    for event in driven.told:
        next.note(event)
    assert [event.id for event in next.end(resumed=1)] == ["c"]


@pytest.mark.parametrize("joined", [False, True])
def test_a_migration_waits_behind_another_to_the_same_joining_worker(
    driven: Driven, joined: bool
) -> None:
    driven.topic.put(driven.migrate("m1", 2, bins=[0, 1]))
    driven.until_told(Rescaling, "m1")
    if joined:
        driven.pool.up = True
        driven.until_told(Joined, "m1")
    driven.topic.put(driven.migrate("m2", 2, bins=[2, 3]))
    driven.act()
    driven.pool.up = True
    driven.until_told(Completed, "m2")
    driven.until_told(Completed, "m1")
    assert driven.said("m1") == ["rescaling", "joined", "accepted", "completed"]
    assert driven.said("m2") == ["accepted", "completed"]
    assert driven.the(Accepted, "m2").offset == 1
    accepted = [event.id for event in driven.told if isinstance(event, Accepted)]
    assert accepted == ["m1", "m2"]
    assert driven.topic.dealt == [0, 1]
    assert (driven.bins(), driven.pool.launched) == ({2}, [TWO])


def test_a_migration_waits_for_a_worker_that_a_rescale_has_started(driven: Driven) -> None:
    driven.topic.put({"type": "rescale", "id": "up", "workers": 3})
    driven.until_told(Rescaling, "up")
    driven.topic.put(driven.migrate("m", 2))
    driven.act()
    driven.pool.up = True
    driven.until_told(Completed, "m")
    assert driven.said("up")[-1] == "rescaled"
    assert driven.bins() == {2}


def test_a_joining_worker_stays_for_a_migration_that_waits_for_it(driven: Driven) -> None:
    time = driven.soon()
    driven.topic.put(driven.migrate("m1", 2, time=time), driven.migrate("m2", 2))
    driven.until_passed(time)
    driven.pool.up = True
    driven.until_told(Completed, "m2")
    assert driven.said("m1") == ["rescaling", "joined", "rejected"]
    assert driven.said("m2") == ["accepted", "completed"]
    assert driven.bins() == {2}


def test_it_goes_once_nothing_waits_for_it(driven: Driven) -> None:
    time = driven.soon()
    driven.topic.put(driven.migrate("m1", 2, time=time), driven.migrate("m2", 2, time=time))
    driven.until_passed(time)
    driven.pool.up = True
    driven.until_told(Left, "m1")
    assert driven.said("m2") == ["rejected"]
    assert driven.pool.handles == [0, 1]


def test_no_number_is_used_twice(driven: Driven) -> None:
    driven.topic.put(driven.migrate("m1", 2), driven.migrate("m2", 2), driven.migrate("m3", 3))
    driven.until_told(Rescaling, "m1")
    driven.pool.drop(TWO, "worker 2: it died")
    driven.until_told(CommandRejected, "m2")
    assert driven.said("m1") == ["rescaling", "join_failed", "rejected"]
    assert driven.said("m2") == ["rejected"]
    driven.pool.up = True
    driven.until_told(Completed, "m3")
    assert driven.pool.launched == [TWO, THREE]
    assert driven.the(JoinFailed, "m1").reason == "worker 2: it died"


# -- aborted


@pytest.mark.parametrize("id", ["first", "second"])
def test_a_migration_that_waits_for_its_worker_can_be_aborted(driven: Driven, id: str) -> None:
    driven.topic.put(driven.migrate("first", 2), driven.migrate("second", 2))
    driven.until_told(Rescaling, "first")
    driven.topic.put({"type": "abort", "id": "a", "command": id})
    driven.until_told(Aborted, id)
    aborted = driven.the(Aborted, id)
    assert (aborted.by, aborted.bins, aborted.unmoved) == ("a", 0, [0, 1, 2, 3])
    rejected = driven.the(CommandRejected, id)
    assert rejected.offset == ["first", "second"].index(id), "who follows it hears of its end"
    driven.pool.up = True
    other = {"first": "second", "second": "first"}[id]
    driven.until_told(Completed, other)
    assert "accepted" not in driven.said(id)
    assert driven.bins() == {2}
    assert driven.topic.dealt[-1] == 2
    assert driven.decision_log.written[-1] == CommandsDoneDecision(3), (
        "where the next execution takes up commands"
    )
    assert driven.open_commands.handled == 3


def test_an_unneeded_joining_worker_joins_and_leaves(driven: Driven) -> None:
    driven.topic.put(driven.migrate("m", 2))
    driven.until_told(Rescaling, "m")
    abort: dict[str, object] = {"type": "abort", "id": "a", "command": "m"}
    driven.topic.put(abort, abort)
    driven.until_told(CommandRejected, "a")
    assert "id 'a' was used before" in driven.the(CommandRejected, "a").reason
    driven.pool.up = True
    driven.until_told(Rescaled, "m")
    assert driven.said("m") == [
        "rescaling", "rejected", "aborted", "joined", "left", "rescaled"
    ]  # fmt: skip
    assert driven.pool.handles == [0, 1]
    driven.end()


def test_a_rescale_can_be_aborted_until_it_starts(driven: Driven) -> None:
    driven.topic.put(
        {"type": "rescale", "id": "up", "workers": 3},
        {"type": "rescale", "id": "next", "workers": 4},
    )
    driven.until_told(Rescaling, "up")
    driven.topic.put(
        {"type": "abort", "id": "a", "command": "up"},
        {"type": "abort", "id": "b", "command": "no"},
        {"type": "abort", "id": "c", "command": "next"},
    )
    driven.until_told(Aborted, "next")
    started = driven.the(CommandRejected, "a").reason
    assert "'up' has started to change the workers, so it has to complete: wait" in started
    assert driven.the(CommandRejected, "b").reason.endswith("is not running: name one of 'next'")
    assert driven.the(Aborted, "next").by == "c"
    assert driven.the(CommandRejected, "next").offset == 1, "its follower hears of the end"
    driven.pool.up = True
    driven.until_told(Rescaled, "up")
    assert driven.pool.handles == [0, 1, 2]
    assert driven.topic.dealt[-1] == 4
    driven.end()


# -- what is said before


def test_a_dry_run_says_what_would_move_to_a_worker_that_would_be_started(
    driven: Driven,
) -> None:
    driven.topic.put(driven.migrate("m", 2, dry_run=True))
    driven.until_told(Planned, "m")
    planned = driven.the(Planned, "m")
    assert {move[3] for move in planned.moves} == {2}
    assert sorted(move[1] for move in planned.moves) == [0, 1, 2, 3]
    driven.topic.put(driven.migrate("no", 2, dry_run=True, operator="n"))
    driven.until_told(CommandRejected, "no")
    assert not driven.pool.launched


def test_a_dry_run_says_that_there_is_no_slot(driven: Driven) -> None:
    driven.rescaler._slots = 2
    driven.topic.put(driven.migrate("m", 2, dry_run=True))
    driven.until_told(CommandRejected, "m")
    reason = driven.the(CommandRejected, "m").reason
    assert "3 workers need a slot each, and the master has 2 in all" in reason


@pytest.mark.parametrize("worker", [1, 2], ids=["that is there", "to be started"])
def test_an_id_that_comes_twice_in_a_moment_is_the_first_ones(driven: Driven, worker: int) -> None:
    driven.pool.up = True
    driven.topic.put(driven.migrate("m", worker), driven.migrate("m", 1, bins=[0]))
    driven.until_told(Completed, "m")
    accepted = driven.the(Accepted, "m")
    assert (accepted.offset, len(accepted.bins)) == (0, 4)
    rejected = driven.the(CommandRejected, "m")
    assert (rejected.offset, "was used before" in rejected.reason) == (1, True)


# -- shares


def test_a_rescale_to_the_same_number_gives_a_share_to_a_worker_without_bins(
    driven: Driven,
) -> None:
    driven.topic.put(driven.migrate("m", 1))
    driven.until_told(Completed, "m")
    assert driven.coordinator.without_bins() == [0]
    driven.topic.put({"type": "rescale", "id": "same", "workers": 2})
    driven.until_told(Rescaled, "same")
    assert driven.said("same") == ["rescaling", "rescaled"]
    assert driven.coordinator.without_bins() == []
    driven.end()


def test_a_rescale_reports_that_the_joining_workers_got_no_bins(driven: Driven) -> None:
    driven.pool.up = True
    driven.topic.put({"type": "rescale", "id": "up", "workers": 3})
    driven.until_told(Joined, "up")
    driven.until(lambda: driven.coordinator.closed_before is None, driven.flow)
    driven.until_told(Rescaled, "up")
    ended = driven.the(Rescaled, "up")
    assert ended.workers == 3
    assert ended.reason.startswith("the joined workers get no share: the flow's sources have ended")
    driven.end()
