"""What earlier lives of a flow have left behind: which results are out, and what was ruled.

Guarantees I5 for results: one of (bin b, time t) is out if and only if in some earlier life the
mark of b's owner at t was later than t (design 5; the latest life's marks alone would be wrong
after a second crash). Owners follow from how a life began and what its coordinator decided. A
decision that nobody ever heard of does no harm: its time is not before any mark of its life. Cost:
one comparison per batch behind the greatest mark, before it a look-up per record and life.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dataflow.batch import Int64s
from dataflow.decisions import Begins, Decision
from dataflow.migrate.instructions import Revoke
from dataflow.migrate.moves import Moves
from dataflow.migrate.parcels import Order
from dataflow.migrate.routing import Routing
from dataflow.once.marks import Mark
from dataflow.rulings import BEHIND_ALL, NO_PAST, Past, Ruling
from state.antichain import Antichain
from state.bins import BinSpace
from state.ids import Incarnation, WorkerId
from state.time import MIN_TIME

Mask = npt.NDArray[np.bool_]
Written = tuple[Incarnation, Decision]
"""A decision of a life."""


@dataclass(slots=True)
class _Life:
    """One that has come to an end."""

    begins: Begins
    changes: list[Moves | Revoke] = field(default_factory=list)
    marks: defaultdict[str, dict[WorkerId, int]] = field(
        default_factory=lambda: defaultdict[str, dict[WorkerId, int]](dict)
    )
    """Of each sink, by worker."""
    rulings: list[Ruling] = field(default_factory=list)

    def ruled(self) -> Iterator[Ruling]:
        """What its sources have ruled; where a partition had come to its end, what follows is not
        before anything that is out of this life."""
        mark = max((time for marks in self.marks.values() for time in marks.values()), default=0)
        for one in self.rulings:
            yield one._replace(time=mark) if one.time == BEHIND_ALL else one

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


class Earlier:
    """Which results of one sink are out already.

    >>> space = BinSpace(1)
    >>> begins = Begins(0, (WorkerId(0), WorkerId(1)), 2)
    >>> mark = Mark(Incarnation(1), WorkerId(1), {"sink": 50})
    >>> earlier = History(space, [(Incarnation(1), begins)], [mark]).of("sink", 0)
    >>> earlier.out(np.array([0, 1, 1]), np.array([40, 40, 50])).tolist()
    [False, True, False]
    """

    def __init__(self, lives: Iterable[tuple[Routing, Int64s]], first: int) -> None:
        """`lives` have their owners, and the mark of each worker, shape (workers,)."""
        self._first, self._lives = first, list(lives)
        self._mark = max((int(marks.max()) for _, marks in self._lives), default=MIN_TIME)

    def out(self, bins: Int64s, times: Int64s) -> Mask:
        """Of some bins' results at some times, shapes (n,): which are."""
        found = np.zeros(len(times), np.bool_)
        if self._mark > int(times.min(initial=self._mark)):
            for routing, marks in self._lives:
                owners = routing.destinations(bins + self._first, times)
                found |= marks[owners] > times
        return found

    def settle(self, time: int) -> None:
        """Nothing will be asked of before a time."""
        for routing, _ in self._lives:
            routing.settle(Antichain.of(time))


class History:
    """Of all lives before this one."""

    def __init__(
        self,
        space: BinSpace,
        journal: Iterable[Written] = (),
        marks: Iterable[Mark] = (),
        past: Past = NO_PAST,
    ) -> None:
        """`past` is known otherwise than by marks."""
        self._known = past
        self._space = space
        self._lives: dict[Incarnation, _Life] = {}
        self.mark = MIN_TIME
        """The greatest of all: no life to come decides anything for a time before it."""
        self.orders: list[Order] = []
        """Partitions that had come to their topics."""
        for incarnation, decision in journal:
            self._note(incarnation, decision)
        for mark in marks:
            self._mark(mark)

    def past(self, reached: Mapping[int, Collection[str]]) -> Past:
        """What sources have ruled; `reached` are the sinks to which each leads, by its number."""
        if self._known is not NO_PAST:
            return self._known
        ruled = [one for life in self._lives.values() for one in life.ruled()]
        marks = {
            source: max([MIN_TIME, *(life.mark_of(sinks) for life in self._lives.values())])
            for source, sinks in reached.items()
        }
        return Past(self.mark, [*map(begins, self.orders), *ruled], marks)

    def of(self, sink: str, first: int) -> Earlier:
        """Of a sink whose bins have numbers from `first` on."""
        marked = (life for life in self._lives.values() if sink in life.marks)
        lives = ((life.routing(self._space), life.by_worker(sink)) for life in marked)
        return Earlier(lives, first)

    def _note(self, incarnation: Incarnation, decision: Decision) -> None:
        match decision:
            case Begins(checkpoint=None):
                # What is out of before has nothing to do with a flow that begins anew.
                self.orders.clear()
                self._lives = {incarnation: _Life(decision)}
            case Begins():
                self._lives[incarnation] = _Life(decision)
            case Moves() | Revoke() if incarnation == self._last:
                self._lives[incarnation].changes.append(decision)
            case Order(offset=int()) if incarnation == self._last:
                self.orders.append(decision)

    @property
    def _last(self) -> Incarnation | None:
        """The life that had begun last: what an earlier one decides then counts for nothing."""
        return next(reversed(self._lives), None)

    def _mark(self, mark: Mark) -> None:
        if (life := self._lives.get(mark.incarnation)) is None:
            return
        for sink, time in mark.times.items():
            life.marks[sink][mark.worker] = time
        self.mark = max([self.mark, *mark.times.values()])
        life.rulings.extend(mark.rulings)


def begins(order: Order) -> Ruling:
    """What the order for a partition that nobody had read says of its records' times.

    >>> from dataflow.protocols import Partition
    >>> begins(Order(0, Partition(3), 7, WorkerId(1), offset=4))
    Ruling(origin=0, partition=3, offset=4, time=8, last=None)
    """
    assert order.offset is not None
    return Ruling(order.source, order.partition, order.offset, order.begins)


NO_HISTORY = History(BinSpace(0))
"""Of a flow that begins."""
