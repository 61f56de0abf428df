"""What earlier lives of a flow have left behind: which results are out, and what was ruled.

Guarantees I5 for results: one of (bin b, time t) is out if and only if in some earlier life the
mark of b's owner at t was later than t (design 5; the latest life's marks alone would be wrong
after a second crash). It went out in the first of these, as all later ones have suppressed it.
Owners follow from how a life began and what its coordinator decided. A decision that nobody ever
heard of does no harm: its time is not before any mark of its life. Cost: one comparison per batch
behind the greatest mark, before it a look-up per record and life.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from meander.dataflow.control.decisions import Begins, Decision
from meander.dataflow.control.instructions import Revoke
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.routing import Routing
from meander.dataflow.control.timestamp_overrides import (
    BEHIND_ALL,
    NO_PAST,
    OverrideHistory,
    TimestampOverride,
)
from meander.dataflow.exactly_once.checksum import Checksum, Out
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.records.batch import Int64s
from meander.state.checkpoint.in_flight import Author
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, ExecutionId, WorkerId
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME

NOBODY = -1
Written = tuple[ExecutionId, Decision]
"""A decision of a life."""


class PreviousWorker(NamedTuple):
    """A worker in a life of the flow that is over."""

    life: ExecutionId
    worker: WorkerId


@dataclass(slots=True)
class _Life:
    """One that has come to an end."""

    begins: Begins
    changes: list[Moves | Revoke] = field(default_factory=list)
    marks: defaultdict[str, dict[WorkerId, int]] = field(
        default_factory=lambda: defaultdict[str, dict[WorkerId, int]](dict)
    )
    """Of each sink, by worker."""
    out: defaultdict[tuple[str, WorkerId], list[Out | None]] = field(
        default_factory=lambda: defaultdict[tuple[str, WorkerId], list[Out | None]](list)
    )
    """Of each sink on each worker what left with its marks, in order; None where nobody knows."""
    rulings: list[TimestampOverride] = field(default_factory=list)
    sent: set[Author] = field(default_factory=set)
    """Whose part of which checkpoint's outboxes is out."""

    def ruled(self) -> Iterator[TimestampOverride]:
        """What its sources have ruled; where a partition had come to its end, what follows is not
        before anything that is out of this life."""
        mark = max((time for marks in self.marks.values() for time in marks.values()), default=0)
        for one in self.rulings:
            yield one._replace(time=mark) if one.time == BEHIND_ALL else one

    def moves(self, space: BinSpace) -> list[Moves]:
        """Those that were not revoked, by time; each names the bins alone that changed hands."""
        routing, found = self.routing(space), list[Moves]()
        for one in routing.unsettled():
            bins = np.array(one.bins, np.int64)
            owners = routing.destinations(bins, np.full(len(bins), one.time - 1))
            given = bins[owners != one.target]
            found.append(replace(one, bins=tuple(map(Bin, given.tolist()))))
        return found

    def mark_of(self, sinks: Collection[str]) -> int:
        """The greatest of some sinks'."""
        some = (time for sink in sinks for time in self.marks.get(sink, {}).values())
        return max(some, default=MIN_TIME)

    def routing(self, space: BinSpace) -> Routing:
        """Who owned which bin when."""
        routing = Routing(space, self.begins.owners)
        for change in self.changes:
            match change:
                case Moves():
                    routing.add(change)
                case Revoke(command, time):
                    routing.revoke(command, time)
        return routing

    def by_worker(self, sink: str) -> Int64s:
        """A sink's mark on each worker; of those who have committed nothing, the least time."""
        targets = (change.target for change in self.changes if isinstance(change, Moves))
        marks = self.marks[sink]
        found = np.full(1 + max(*self.begins.owners, *targets, *marks), MIN_TIME, np.int64)
        for worker, time in marks.items():
            found[worker] = time
        return found

    def claims(self, sink: str, anew: int) -> Iterator[tuple[WorkerId, Out]]:
        """What each worker has committed of a sink's results, as far as all of it comes again
        where all from a time on do: of a transaction that began earlier some may not."""
        for worker in self.marks.get(sink, ()):
            left = self.out[sink, worker]
            whole = [out for out in left if out is not None and out.since >= anew]
            if whole and None not in left:
                yield worker, Out(whole[0].since, sum((out.tally for out in whole), Checksum()))


@dataclass(frozen=True, slots=True)
class EndedExecution:
    """What a life that is over has committed of one sink."""

    life: ExecutionId
    routing: Routing
    marks: Int64s
    """Of each worker, shape (workers,)."""


class CommittedResults:
    """Which results of one sink are out already, and who has committed them.

    >>> space = BinSpace(1)
    >>> begins = Begins(0, (WorkerId(0), WorkerId(1)), 2)
    >>> mark = CommitMarker(ExecutionId(1), WorkerId(1), {"sink": 50})
    >>> earlier = History(space, [(ExecutionId(1), begins)], [mark]).of("sink", 0)
    >>> whose = earlier.whose(np.array([0, 1, 1]), np.array([40, 40, 50]))
    >>> [earlier.predecessors[number] if number != NOBODY else None for number in whose]
    [None, PreviousWorker(life=1, worker=1), None]
    """

    def __init__(
        self,
        lives: Iterable[EndedExecution],
        first: int,
        claims: Mapping[PreviousWorker, Out],
        replays: bool,
    ) -> None:
        """The sink's bins have numbers from `first` on."""
        self._first, self._lives = first, list(lives)
        self.claims, self.replays = claims, replays
        """What is known of what they have committed; whether the flow has lived before at all."""
        self.predecessors = [
            PreviousWorker(one.life, WorkerId(worker))
            for one in self._lives
            for worker in range(len(one.marks))
        ]
        """By number."""
        self.mark = max((int(one.marks.max()) for one in self._lives), default=MIN_TIME)
        """The greatest of all: nothing of it or later is out."""

    def whose(self, bins: Int64s, times: Int64s) -> Int64s:
        """Of some bins' results at some times, shapes (n,), who has committed each: a number of
        `predecessors`, or NOBODY."""
        found = np.full(len(times), NOBODY, np.int64)
        if self.mark > int(times.min(initial=self.mark)):
            first = 0
            for one in self._lives:
                owners = one.routing.destinations(bins + self._first, times)
                out = (found == NOBODY) & (one.marks[owners] > times)
                found[out] = first + owners[out]
                first += len(one.marks)
        return found

    def settle(self, time: int) -> None:
        """Nothing will be asked of before a time."""
        for one in self._lives:
            one.routing.settle(Antichain.of(time))


class History:
    """Of all lives before this one."""

    def __init__(
        self,
        space: BinSpace,
        journal: Iterable[Written] = (),
        marks: Iterable[CommitMarker] = (),
        past: OverrideHistory = NO_PAST,
    ) -> None:
        """`past` is known otherwise than by marks."""
        self._known = past
        self._space = space
        self._lives: dict[ExecutionId, _Life] = {}
        self.mark = MIN_TIME
        """The greatest of all: no life to come decides anything for a time before it."""
        self.orders: list[ReassignPartition] = []
        """Partitions that had come to their topics."""
        for execution, decision in effective(journal):
            self._note(execution, decision)
        for mark in marks:
            self._mark(mark)

    def past(self, reached: Mapping[int, Collection[str]]) -> OverrideHistory:
        """What sources have ruled; `reached` are the sinks to which each leads, by its number."""
        if self._known is not NO_PAST:
            return self._known
        ruled = [one for life in self._lives.values() for one in life.ruled()]
        marks = {
            source: max([MIN_TIME, *(life.mark_of(sinks) for life in self._lives.values())])
            for source, sinks in reached.items()
        }
        return OverrideHistory(self.mark, [*map(begins, self.orders), *ruled], marks)

    def of(self, sink: str, first: int) -> CommittedResults:
        """Of a sink whose bins have numbers from `first` on."""
        lives = (
            EndedExecution(execution, life.routing(self._space), life.by_worker(sink))
            for execution, life in self._lives.items()
            if sink in life.marks
        )
        return CommittedResults(lives, first, self.claims(sink), self.replays)

    def sent(self, author: Author) -> bool:
        """Whether what has been written of an outbox is out: all of it, or nothing."""
        life = self._lives.get(author.execution)
        return life is not None and author in life.sent

    @property
    def last_sent(self) -> int:
        """The last checkpoint of which anything in an outbox is out; 0 where nothing is."""
        sent = (one.checkpoint for life in self._lives.values() for one in life.sent)
        return max(sent, default=0)

    @property
    def moves(self) -> list[Moves]:
        """All that were decided and not revoked, of the bins that really changed hands."""
        return [one for life in self._lives.values() for one in life.moves(self._space)]

    def timed(self, since: ExecutionId) -> set[str]:
        """The sinks that have said by times what is out, from a life on."""
        lives = (life for execution, life in self._lives.items() if execution >= since)
        return {sink for life in lives for sink in life.marks}

    @property
    def replays(self) -> bool:
        """Whether the flow has lived before."""
        return len(self._lives) > 1

    def claims(self, sink: str) -> dict[PreviousWorker, Out]:
        """What of a sink's results the replay has to give again, by who has committed it."""
        anew = self._begun_anew.get(sink)
        return {
            PreviousWorker(execution, worker): out
            for execution, life in self._lives.items()
            if anew is not None
            for worker, out in life.claims(sink, anew)
        }

    def anew(self, sink: str) -> int:
        """Of no result from this time on it matters whether it was let go of before this life."""
        lives = self._lives.values()
        marked = (life.mark_of([sink]) for life in lives)
        return self._begun_anew.get(sink, max(marked, default=MIN_TIME))

    @property
    def _begun_anew(self) -> dict[str, int]:
        """From when on results come again in this life."""
        last = self._last
        return {} if last is None else dict(self._lives[last].begins.anew)

    def _note(self, execution: ExecutionId, decision: Decision) -> None:
        match decision:
            case Begins(checkpoint=None):
                # What is out of before has nothing to do with a flow that begins anew.
                self.orders.clear()
                self._lives = {execution: _Life(decision)}
            case Begins():
                self._lives[execution] = _Life(decision)
            case Moves() | Revoke() if execution == self._last:
                self._lives[execution].changes.append(decision)
            case ReassignPartition(offset=int()) if execution == self._last:
                self.orders.append(decision)

    @property
    def _last(self) -> ExecutionId | None:
        """The life that had begun last: what an earlier one decides then counts for nothing."""
        return next(reversed(self._lives), None)

    def _mark(self, mark: CommitMarker) -> None:
        if (life := self._lives.get(mark.execution)) is None:
            return
        for sink, time in mark.times.items():
            life.marks[sink][mark.worker] = time
            life.out[sink, mark.worker].append(mark.out.get(sink))
        self.mark = max([self.mark, *mark.times.values()])
        life.rulings.extend(mark.rulings)
        if mark.sent:
            life.sent.add(Author(mark.execution, mark.sent, mark.worker))


def effective(journal: Iterable[Written]) -> Iterator[Written]:
    """Leave out each beginning of an execution that lies behind that of a later one.

    Its driver had lost the flow before the record arrived. Each execution of a later claim has a
    greater execution than each of an earlier claim (`app.recovery.claiming`).

    >>> early, late = (ExecutionId(1), Begins(0, (), 1)), (ExecutionId(2), Begins(0, (), 2))
    >>> [int(execution) for execution, _ in effective([early, late, early])]
    [1, 2]
    """
    last: ExecutionId | None = None
    for execution, decision in journal:
        if isinstance(decision, Begins):
            if last is not None and execution < last:
                continue
            last = execution
        yield execution, decision


def begins(order: ReassignPartition) -> TimestampOverride:
    """What the order for a partition that nobody had read says of its records' times.

    >>> from meander.dataflow.interfaces import Partition
    >>> begins(ReassignPartition(0, Partition(3), 7, WorkerId(1), offset=4))
    TimestampOverride(origin=0, partition=3, offset=4, time=8, last=None)
    """
    assert order.offset is not None
    return TimestampOverride(order.source, order.partition, order.offset, order.begins)


NO_HISTORY = History(BinSpace(0))
"""Of a flow that begins."""
