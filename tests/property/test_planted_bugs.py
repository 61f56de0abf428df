"""The oracle test can fail: each of these bugs, planted in the engine, is caught in few runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from meander.dataflow.control.routing import Routing
from meander.dataflow.coordinator.partition_assignment import PartitionAssignment
from meander.dataflow.migration.migrator import Migrator
from meander.dataflow.migration.partition_migrator import PartitionMigrator
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.exchange import Exchange
from meander.dataflow.operators.keyed import columnar
from meander.dataflow.operators.keyed.incoming_bins import IncomingBins
from meander.dataflow.operators.keyed.logic import Process
from meander.dataflow.operators.keyed.operator import KeyedOperator
from meander.dataflow.operators.keyed.timers import Timers
from meander.dataflow.operators.output_group import Outputs
from meander.dataflow.operators.source.operator import SourceOperator
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.progress import Progress
from meander.dataflow.runtime.operator_factory import OperatorFactory
from meander.dataflow.simulation.simulator import LinkKey, SimNetwork
from meander.schemas.errors import MeanderError
from meander.state.encoding.timers import TIMER, Timer, index_key, split_index, tag_of
from meander.state.keys.ids import Bin, WorkerId
from meander.state.store.store import Databases
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME
from tests.support.progress.planted_bugs import LeavesAtOnce
from tests.support.property.case_run import DIFFERS, CaseRun
from tests.support.property.cases import (
    random_case,
    with_aborts,
    with_comings_and_goings,
    with_growth,
    with_some_comings_and_goings,
    with_some_full_bins,
)
from tests.support.property.frontier_watch import watch_frontiers
from tests.support.property.planted import plant, runs

RUNS = 40
SHOWN = {
    "a joining worker is told of nothing": 5, "each that notices it has it given away": 24,
    "side outputs are mistaken for the first": 20, "a leaving worker leaves at once": 212,
}  # fmt: skip
"""The seeds that show them, as it is now."""


def _settle_early(routing: Any, _: Antichain) -> None:
    if routing._changes:
        _, _, moves, member = routing._changes.pop(0)
        routing._owners[member] = moves.target


def _only_control(keyed: Any) -> Antichain:
    return keyed._control()  # type: ignore[no-any-return]


_receive = Exchange._receive


def _unbound(router: Any) -> bool:
    router._control = Antichain
    return _receive(router)


def _never_frozen(timers: Any, bin: int, time: int) -> None:
    timers._departures.setdefault(bin, []).append(time)


_close_ended = SourceOperator._close_ended


def _dropping(source: Any) -> bool:
    for partition in source._partitions.values():
        if source._reader.ended(partition.number):
            partition.queue.clear()
    return _close_ended(source)


_call = Process._call


def _half_done(process: Any, *called: Any) -> None:
    *_, context, _, _, _ = called
    if _call(process, *called) is not None:
        context._timers.clear()


_next = KeyedOperator._next


def _behind_a_slice(keyed: Any, frontier: Antichain, most: int) -> Any:
    """Timers wait until the records that are applied in one pass are through."""
    logic, rows, calls = _next(keyed, frontier, most)
    if len(rows):
        version = keyed._version_at(int(rows.batch.times[0]))
        calls = keyed._calls(Antichain.of(MIN_TIME), calls.iterations, most, version)
    return logic, rows, calls


_send = Outputs.send

PLANTED: dict[str, tuple[Any, str, Callable[..., Any], str]] = {
    "records do not wait for their bin": (
        IncomingBins,
        "stash",
        lambda self, rows, bins: rows,
        f"{DIFFERS}|I3",
    ),
    "state is taken before it is final": (
        Migrator,
        "_due",
        lambda self, outgoing: outgoing.leaving[:8],
        f"{DIFFERS}|I3",
    ),
    "the old copy stays for ever": (Migrator, "_drop_acknowledged", lambda self: None, "I2"),
    "timers fire where the bin was": (
        Timers,
        "start_departure",
        _never_frozen,
        f"{DIFFERS}|I2|I7|a name has one time",
    ),
    "records are applied as they come": (Rows, "sorted", lambda self, *_: self, DIFFERS),
    "records are routed before commands are known": (
        Exchange,
        "_receive",
        _unbound,
        f"{DIFFERS}|I2",
    ),
    "what a failing function has emitted stands": (Process, "_call", _half_done, DIFFERS),
    "a value that does not fit is lost": (
        columnar,
        "_fits",
        lambda *_: False,
        f"{DIFFERS}|I5",
    ),
    "a move is folded in before it is decided": (Routing, "compact", _settle_early, "I7"),
    "an operator applies records before all of its time have arrived": (
        KeyedOperator,
        "_complete_frontier",
        _only_control,
        DIFFERS,
    ),
    "timers overtake records on disk": (
        KeyedOperator,
        "_earlier_times",
        lambda self, applied=0: self._queued_times(applied),
        DIFFERS,
    ),
    "timers wait for the end of a slice": (KeyedOperator, "_next", _behind_a_slice, DIFFERS),
    "side outputs are mistaken for the first": (
        Outputs,
        "send",
        lambda self, time, batch, number=0: _send(self, time, batch),
        DIFFERS,
    ),
    "records are dropped at a partition's end": (
        SourceOperator,
        "_close_ended",
        _dropping,
        "each record once",
    ),
}
"""And what is said of it."""


# -- in progress tracking, where frontiers are watched


_flush, _downgrade, _deliver, _take_orders, _open_to, _begin = (
    Progress.flush,
    Capability.downgrade,
    SimNetwork.deliver,
    PartitionMigrator._receive,
    Progress.open_to,
    PartitionMigrator._start,
)


def _forgetting(progress: Any) -> bool:
    changes = progress.changes.drain()
    first = next((change for change in changes if change[2] < 0), None)
    for change in changes:
        if change != first:
            progress.changes.add(*change)
    return _flush(progress)


def _overtaking(network: Any, lane: LinkKey, number: int) -> None:
    if lane[2] == "progress" and len(network.frames[lane]) > 1:
        network.frames[lane].rotate(1)
    _deliver(network, lane, number)


def _too_far(capability: Any, time: Any) -> None:
    _downgrade(capability, time + 1)


def _split(progress: Any) -> bool:
    if not progress.ready:
        return _flush(progress)
    changes = sorted(progress.changes.drain(), key=lambda change: change[2])
    for change in changes:
        progress.changes.add(*change)
        _flush(progress)
    return bool(changes)


def _unheld(migrator: Any) -> bool:
    received = _take_orders(migrator)
    for _, capability in migrator._open:
        capability.drop()
    return received


def _from_the_start(migrator: Any, order: Any, offset: int, capability: Any) -> None:
    source, output = migrator._outputs[order.source]
    capability.drop()
    early = Capability(output.location, MIN_TIME, source._progress.changes)
    _begin(migrator, replace(order, time=MIN_TIME), offset, early)


def _open_with_nothing(progress: Any, newcomer: WorkerId) -> None:
    known, progress.contribution = progress.contribution, {}
    _open_to(progress, newcomer)
    progress.contribution = known


PLANTED_IN_PROGRESS: dict[str, list[tuple[type, str, Callable[..., Any]]]] = {
    "a decrement is dropped": [(Progress, "flush", _forgetting)],
    "an update is told in two, decrements first": [(Progress, "flush", _split)],
    "an update overtakes those before it": [(SimNetwork, "deliver", _overtaking)],
    "a capability is used after its release": [
        (Capability, "check", lambda self, time: None),
        (Capability, "downgrade", _too_far),
    ],
    "an order to move a partition is not held": [
        (Capability, "check", lambda self, time: None),
        (PartitionMigrator, "_receive", _unheld),
    ],
    "a new partition begins where the flow did": [(PartitionMigrator, "_start", _from_the_start)],
    "a leaving worker leaves at once": [
        (Progress, "_leave_when_done", LeavesAtOnce._leave_when_done)
    ],
    "a joining worker is told of nothing": [(Progress, "open_to", _open_with_nothing)],
}


@pytest.mark.parametrize("bug", PLANTED_IN_PROGRESS)
def test_a_planted_bug_of_progress_is_caught(
    bug: str,
    databases: Databases,
    capabilities: list[Capability],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I1 or I7 fails: a frontier ahead, a message behind one, or a flow without an end; or one has
    left that keeps state (I2)."""
    for owner, method, planted in PLANTED_IN_PROGRESS[bug]:
        plant(monkeypatch, owner, method, planted)
    namespace = count(1_000_000 * (101 + list(PLANTED_IN_PROGRESS).index(bug)))

    def tried() -> None:
        for seed in runs(SHOWN.get(bug, 0), RUNS):
            case = with_some_comings_and_goings(random_case(seed))
            watch_frontiers(case, next(namespace), databases, capabilities)

    with pytest.raises((AssertionError, MeanderError), match=r"I[127]"):
        tried()


_take_note = PartitionAssignment.report


def _by_whoever_hears(migrator: Any) -> bool:
    received = False
    for message in migrator._orders.drain():
        received = True
        order = message.payload
        capability = migrator._outputs[order.source][1].mint(message)
        if order.offset is None:
            capability.drop()
        else:
            migrator._start(order, order.offset, capability)
    return received


def _forgetful(reading: Any, worker: WorkerId, event: Any) -> None:
    under_way, reading._under_way = reading._under_way, {}
    _take_note(reading, worker, event)
    reading._under_way = under_way


def _from_the_second(migrator: Any, order: Any, offset: int, capability: Any) -> None:
    _begin(migrator, order, offset + 1, capability)


PLANTED_IN_GROWTH: dict[str, tuple[type, str, Callable[..., Any], str]] = {
    "each worker reads a new partition": (
        PartitionMigrator,
        "_receive",
        _by_whoever_hears,
        "once|I9",
    ),
    # Where one worker gets it twice, its reader stumbles over the number.
    "each that notices it has it given away": (
        PartitionAssignment,
        "report",
        _forgetful,
        r"once|I[179]|^\d+\b",
    ),
    "its first record is left out": (PartitionMigrator, "_start", _from_the_second, "once"),
}
"""Where partitions come to topics, and what is said of it."""


@pytest.mark.parametrize("bug", PLANTED_IN_GROWTH)
def test_a_planted_bug_of_new_partitions_is_caught(
    bug: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, method, planted, said = PLANTED_IN_GROWTH[bug]
    plant(monkeypatch, owner, method, planted)
    namespace = count(1_000_000 * (201 + list(PLANTED_IN_GROWTH).index(bug)))

    def tried() -> None:
        for seed in runs(SHOWN.get(bug, 0), RUNS):
            case = random_case(seed)
            CaseRun(with_growth(case, case.workers)).check(databases, next(namespace))

    with pytest.raises((AssertionError, MeanderError, KeyError), match=said):
        tried()


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(
    bug: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, method, planted, said = PLANTED[bug]
    plant(monkeypatch, owner, method, planted)
    namespace = count(1_000_000 * (1 + list(PLANTED).index(bug)))

    def tried() -> None:
        for seed in runs(SHOWN.get(bug, 0), RUNS):
            CaseRun(random_case(seed)).check(databases, next(namespace))

    with pytest.raises((AssertionError, MeanderError), match=said):
        tried()


def test_a_bin_that_does_not_wait_for_what_its_last_owner_writes_is_caught(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: of one key the next owner's results are there before those of the last one."""
    plant(monkeypatch, OperatorFactory, "_has_reached", lambda factory, sinks: lambda time: True)
    namespace = count(98_000_000)

    def tried() -> None:
        for seed in runs(26, RUNS):
            case = with_some_full_bins(random_case(seed))
            CaseRun(with_some_comings_and_goings(with_aborts(case))).check(
                databases, next(namespace)
            )

    with pytest.raises(AssertionError, match="I9"):
        tried()


def test_a_new_reader_that_waits_for_no_frontier_is_caught(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: where records apply as they arrive, those that it sends overtake the last ones of whoever
    read the partition before."""
    plant(monkeypatch, SourceOperator, "_may_send", lambda self, lane: True)
    namespace = count(99_000_000)

    def tried() -> None:
        for seed in runs(33, RUNS):
            case = with_comings_and_goings(random_case(seed, ("arrival",)))
            CaseRun(case).check(databases, next(namespace))

    with pytest.raises(AssertionError, match="a partition's own order is kept"):
        tried()


_cancel, _near = Timers.cancel, Timers.near


def test_a_cancelled_timer_that_returns_after_a_move_is_caught(
    monkeypatch: pytest.MonkeyPatch, databases: Databases
) -> None:
    """I2: a bin takes along what has been cancelled there."""
    cancelled = WeakKeyDictionary[Timers, set[tuple[Bin, Timer]]]()

    def cancel(timers: Timers, bin: Bin, key: bytes, name: str) -> None:
        tag = tag_of(key, name)
        if (time := timers._here._times.get(tag)) is not None:
            cancelled.setdefault(timers, set()).add((bin, (time, tag)))
        if (found := timers._rows._find(bin, index_key(tag))) is not None:
            clock, time = split_index(found)
            if clock == TIMER:
                cancelled.setdefault(timers, set()).add((bin, (time, tag)))
        _cancel(timers, bin, key, name)

    def near(timers: Timers, bin: Bin) -> list[Timer]:
        found, departures = _near(timers, bin), timers._departures.get(bin)
        if departures is None:
            return found
        lost = {timer for at, timer in cancelled.get(timers, ()) if at == bin}
        return sorted({*found, *(timer for timer in lost if timer[0] >= departures[0])})

    namespace = count()

    def check(seed: int) -> None:
        case = random_case(seed, ("timers", "connect"))
        CaseRun(case).check(databases, next(namespace))

    def tried() -> None:
        for seed in range(RUNS):
            check(seed)

    plant(monkeypatch, Timers, "cancel", cancel)
    plant(monkeypatch, Timers, "near", near)
    with pytest.raises(AssertionError, match=f"{DIFFERS}|a name has one time"):
        tried()
