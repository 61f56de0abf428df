"""A version is decided once each worker has loaded it, at a time behind all earlier changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import pytest

from meander.dataflow.control.command import SwitchLogic
from meander.dataflow.control.decisions import Decision, PendingDecisions
from meander.dataflow.control.logic_change import (
    LogicChange,
    LogicUpdate,
    LogicVersion,
    PrepareLogic,
)
from meander.dataflow.control.reports import LogicPrepared
from meander.dataflow.coordinator.logic_changes import LogicChanges
from meander.dataflow.graph.graph import Location
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.change_batch import ChangeBatch
from meander.dataflow.simulation.simulator import SimClock
from meander.schemas.control import CommandError
from meander.schemas.status import CommandRejected, LogicAccepted, LogicChanged
from meander.state.keys.ids import WorkerId

ZERO, ONE, TWO = map(WorkerId, range(3))
FIRST = LogicVersion("First")


class Preparation:
    """The changes of logic of two workers, with answers that a test gives."""

    def __init__(self, earlier: Sequence[LogicChange] = (), start: int = 0) -> None:
        self.sent: list[tuple[WorkerId, PrepareLogic]] = []
        self.broadcast: list[LogicChange] = []
        self.advances = ChangeBatch()
        self.durable = True
        self.decisions = PendingDecisions(self._write)
        self.changes = LogicChanges(
            {"a": FIRST, "b": FIRST}, earlier, start, self.decisions, SimClock(),
            lambda worker, instruction: self.sent.append((worker, instruction)),
            self.broadcast.append,
            lambda time: Capability(Location(0), time, self.advances),
        )  # fmt: skip
        self.workers, self.closed_before = [ZERO, ONE], 5
        self._ids = count()

    def _write(self, decision: Decision) -> Callable[[], bool]:
        return lambda: self.durable

    def submit(self, name: str, time: int | None = None, operator: str = "a") -> None:
        command = SwitchLogic(f"c{next(self._ids)}", {operator: LogicUpdate(name, {})}, time)
        self.changes.check(command, max(self.closed_before, self.changes.soon + 1))
        self.changes.submit(command)
        self.step()

    def step(self, closed_before: int | None = -1, acknowledged: bool = False) -> None:
        least = self.closed_before if closed_before == -1 else closed_before
        self.changes.step(self.workers, least, lambda time: acknowledged)
        self.decisions.send()

    def answer(self, worker: WorkerId, upgrades: bool = False, error: str = "") -> None:
        """A worker answers all that it was asked and has not answered."""
        for asked, instruction in [*self.sent]:
            if asked == worker:
                version = instruction.version
                report = LogicPrepared(
                    instruction.number, version.name, version.parameters, upgrades, error
                )
                self.changes.report(worker, report)
                self.sent.remove((asked, instruction))
        self.step()

    def prepare(self, name: str, time: int | None = None, upgrades: bool = False) -> None:
        self.submit(name, time)
        for worker in self.workers:
            self.answer(worker, upgrades)

    def complete(self, name: str, time: int | None = None, upgrades: bool = False) -> None:
        """Let a version take effect, so that later times remain."""
        self.prepare(name, time, upgrades)
        self.step(acknowledged=True)
        self.closed_before = self.times[-1] + 1

    @property
    def times(self) -> list[int]:
        return [change.time for change in self.broadcast]


@pytest.fixture
def flow() -> Preparation:
    return Preparation()


def test_a_version_is_decided_once_all_workers_have_loaded_it(flow: Preparation) -> None:
    flow.submit("Second")
    flow.answer(ZERO)
    assert flow.broadcast == []
    flow.answer(ONE)
    assert flow.broadcast == [LogicChange("c0", "a", 5, FIRST, LogicVersion("Second"))]


def test_a_leaving_worker_that_does_not_answer_is_not_awaited(flow: Preparation) -> None:
    flow.submit("Second")
    flow.answer(ZERO)
    flow.changes.forget(ONE)
    flow.workers = [ZERO]
    flow.step()
    assert len(flow.broadcast) == 1


def test_a_joining_worker_is_awaited(flow: Preparation) -> None:
    flow.submit("Second")
    flow.answer(ZERO)
    assert flow.changes.welcome(TWO, closed_before=5) == []
    flow.answer(ONE)
    assert flow.broadcast == []
    flow.answer(TWO, error="its file is missing")
    assert [type(event) for event in flow.changes.events()] == [LogicAccepted, CommandRejected]
    assert flow.changes.version("a") == FIRST


def test_the_answer_to_an_earlier_preparation_counts_for_no_other(flow: Preparation) -> None:
    flow.submit("Second")
    late = [one for one in flow.sent if one[0] == ONE]
    flow.answer(ZERO, error="it fails")
    flow.step()
    flow.sent.clear()
    flow.submit("Third")
    flow.answer(ZERO)
    for worker, instruction in late:
        version = instruction.version
        flow.changes.report(
            worker,
            LogicPrepared(instruction.number, version.name, version.parameters, True, ""),
        )
    flow.step()
    assert flow.broadcast == []
    flow.answer(ONE)
    assert [change.version.name for change in flow.broadcast] == ["Third"]
    assert flow.broadcast[0].generation == 0


def test_changes_of_one_operator_have_ascending_times(flow: Preparation) -> None:
    flow.complete("Second")
    flow.complete("Third")
    flow.complete("Fourth", time=8)
    flow.complete("Fifth")
    assert flow.times == [5, 6, 8, 9]


def test_a_version_follows_from_the_one_before_it(flow: Preparation) -> None:
    for name in ("Second", "Third"):
        flow.complete(name)
    names = [(one.before.name, one.version.name) for one in flow.broadcast]
    assert names == [("First", "Second"), ("Second", "Third")]


def test_a_decision_is_sent_once_it_is_durable(flow: Preparation) -> None:
    flow.durable = False
    flow.prepare("Second")
    assert (flow.broadcast, flow.decisions.least) == ([], 5)
    flow.durable = True
    flow.step()
    assert flow.times == [5]


def test_the_generation_counts_the_changes_that_upgrade_states(flow: Preparation) -> None:
    for name, upgrades in (("B", False), ("C", True), ("D", False), ("E", True)):
        flow.complete(name, upgrades=upgrades)
    assert [change.generation for change in flow.broadcast] == [0, 1, 1, 2]


def test_a_change_is_reported_once_all_workers_know_it(flow: Preparation) -> None:
    flow.prepare("Second")
    flow.step()
    assert [type(event) for event in flow.changes.events()] == [LogicAccepted]
    assert not flow.changes.idle
    flow.step(acknowledged=True)
    assert [type(event) for event in flow.changes.events()] == [LogicChanged]
    assert flow.changes.idle


@pytest.mark.parametrize("time", [None, 7])
def test_sources_advance_for_a_change_that_names_no_time(
    flow: Preparation, time: int | None
) -> None:
    flow.prepare("Second", time)
    named = time is not None
    assert flow.changes.requested == ([] if named else [5])
    flow.step(acknowledged=True)
    assert flow.changes.requested == []
    assert flow.advances.drain() == []


def test_a_far_change_holds_up_commands_for_its_own_operator_alone(flow: Preparation) -> None:
    """Without a time it would have to follow, and idle sources would move there."""
    flow.prepare("Second", time=1_000)
    with pytest.raises(CommandError, match="by command 'c0': name a later time"):
        flow.submit("Third", operator="a")
    flow.submit("Third", operator="b")
    assert [one.operator for _, one in flow.sent] == ["b", "b"]


def test_a_change_that_is_not_decided_before_the_end_is_rejected(flow: Preparation) -> None:
    flow.submit("Second")
    flow.submit("Third")
    for _ in range(3):
        flow.step(closed_before=None)
    kinds = [type(event) for event in flow.changes.events()]
    assert kinds == [LogicAccepted, LogicAccepted, CommandRejected, CommandRejected]
    assert flow.changes.idle


def test_undecided_commands_are_those_that_a_later_execution_finds_again(
    flow: Preparation,
) -> None:
    for n, name in enumerate(("Second", "Third", "Fourth")):
        flow.changes.submit(SwitchLogic(f"m{n}", {"a": LogicUpdate(name, {})}, offset=n + 7))
    flow.step()
    assert flow.changes.undecided == {7: "m0", 8: "m1", 9: "m2"}
    for worker in flow.workers:
        flow.answer(worker)
    assert flow.changes.undecided == {8: "m1", 9: "m2"}


CHANGES = [
    LogicChange("x", "a", 3, FIRST, LogicVersion("Second"), 0),
    LogicChange("y", "a", 6, LogicVersion("Second"), LogicVersion("Third"), 0),
    LogicChange("z", "a", 9, LogicVersion("Third"), LogicVersion("Fourth"), 1),
]


def test_a_change_without_a_time_follows_the_one_at_which_a_restart_begins() -> None:
    flow = Preparation(CHANGES[:2], start=6)
    flow.closed_before = 6
    flow.prepare("Fourth")
    assert flow.times == [7]


def test_a_change_of_an_earlier_execution_stands_and_is_reported_where_it_was_not() -> None:
    flow = Preparation(CHANGES, start=6)
    assert flow.changes.version("a") == LogicVersion("Fourth")
    flow.step(acknowledged=True)
    ids = [event.id for event in flow.changes.events() if isinstance(event, LogicChanged)]
    assert ids == ["y", "z"]
    with pytest.raises(CommandError, match="by command 'z': name a later time"):
        flow.submit("Fifth", time=9)
    flow.closed_before = 10
    flow.prepare("Fifth")
    assert flow.times == [10]
    assert flow.broadcast[0].generation == 1


@pytest.mark.parametrize("ids", [["x", "z", "unknown"], ["unknown", "z", "x", "x"]])
def test_commands_that_are_resumed_are_reported_once_in_the_order_of_decisions(
    ids: list[str],
) -> None:
    flow = Preparation(CHANGES, start=99)
    flow.changes.resume(ids)
    flow.changes.resume(ids)
    flow.step(acknowledged=True)
    found = [event.id for event in flow.changes.events() if isinstance(event, LogicChanged)]
    assert found == ["x", "z"]


def again(id: str, operator: str = "a", name: str | None = "Third", **more: object) -> SwitchLogic:
    return SwitchLogic(id, {operator: LogicUpdate(name, more)}, 6)


def test_a_command_that_is_decided_is_not_decided_again() -> None:
    """It comes again where its decision is durable, and no record says that it is done."""
    flow = Preparation(CHANGES, start=99)
    assert flow.changes.is_decided(again("y"))
    flow.changes.submit(again("y"))
    flow.step(acknowledged=True)
    kinds = [type(event) for event in flow.changes.events()]
    assert kinds == [LogicAccepted, LogicChanged]
    assert (flow.sent, flow.broadcast) == ([], [])


def test_another_command_with_the_id_of_a_decided_one_is_rejected() -> None:
    other = replace(again("y"), offset=5)
    with pytest.raises(CommandError, match="id 'y' was used before"):
        Preparation(CHANGES, start=99).changes.is_decided(other)


@pytest.mark.parametrize(
    ("closed_before", "needed"), [(2, "xyz"), (4, "xyz"), (7, "yz"), (10, "z"), (99, "z")]
)
def test_a_joining_worker_gets_the_changes_that_records_to_come_need(
    closed_before: int, needed: str
) -> None:
    flow = Preparation(CHANGES)
    found = flow.changes.welcome(TWO, closed_before)
    assert "".join(change.command for change in found) == needed


def test_a_joining_worker_gets_each_change_whose_upgrade_states_need() -> None:
    upgrading = [CHANGES[2], LogicChange("u", "a", 12, CHANGES[2].version, FIRST, 2)]
    flow = Preparation(upgrading)
    assert flow.changes.welcome(TWO, closed_before=99) == upgrading
