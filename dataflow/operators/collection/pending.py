"""Updates that wait at an input until the frontier has passed their times.

Guarantees that `take` gives each update once, at the first frontier that is not before its time.
Invariant: updates wait by the iterations of their times, each batch as it came. Cost: some numbers
per batch until a frontier passes its least time, then one comparison per update.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import chain

import numpy as np

from meander.dataflow.records.loop_times import Iterations, iterations_of, nested_time, outer_time
from meander.state.collections.layer import Updates
from meander.state.times.antichain import Antichain
from meander.state.times.time import END_TIME, Time


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Updates of some iterations, with their least and greatest outer time."""

    updates: Updates
    least: int
    greatest: int

    @staticmethod
    def of(updates: Updates) -> _Waiting:
        outer = updates.times[:, 0]
        return _Waiting(updates, int(outer.min()), int(outer.max()))


class PendingUpdates:
    """The waiting updates of one input.

    >>> pending = PendingUpdates(depth=1)
    >>> pending.add(Updates.of([(7, 1, (4,), 1), (7, 2, (6,), 1)]), ())
    >>> pending.take(Antichain.of(5)).values.tolist(), pending.least_times
    ([1], [6])
    """

    def __init__(self, depth: int) -> None:
        self._none = Updates.of([], depth)
        self._waiting: defaultdict[Iterations, list[_Waiting]] = defaultdict(list)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, updates: Updates, iterations: Iterations) -> None:
        """Add waiting updates of some iterations."""
        if len(updates):
            self._waiting[iterations].append(_Waiting.of(updates))

    @property
    def least_times(self) -> list[Time]:
        """Return the least waiting time of each combination of iterations."""
        return [
            nested_time(min(one.least for one in waiting), iterations)
            for iterations, waiting in self._waiting.items()
        ]

    def has_before(self, frontier: Antichain) -> bool:
        """Return whether an update waits whose time a frontier has passed."""
        return any(
            one.least < bound
            for iterations, waiting in self._waiting.items()
            for bound in [_bound(frontier, iterations)]
            for one in waiting
        )

    def take(self, frontier: Antichain) -> Updates:
        """Remove and return the updates that a frontier has passed."""
        found = [self._none]
        for iterations in [*self._waiting]:
            bound, kept = _bound(frontier, iterations), list[_Waiting]()
            for one in self._waiting.pop(iterations):
                if one.greatest < bound:
                    found.append(one.updates)
                elif one.least >= bound:
                    kept.append(one)
                else:
                    passed = one.updates.times[:, 0] < bound
                    found.append(one.updates.take(np.flatnonzero(passed)))
                    kept.append(_Waiting.of(one.updates.take(np.flatnonzero(~passed))))
            if kept:
                self._waiting[iterations] = kept
        return Updates.concat(found)

    def all(self) -> Updates:
        """Return all waiting updates."""
        waiting = chain.from_iterable(self._waiting.values())
        return Updates.concat([self._none, *(one.updates for one in waiting)])


def _bound(frontier: Antichain, iterations: Iterations) -> int:
    """Return the outer time before which a frontier has passed the times of some iterations.

    >>> _bound(Antichain.of((4, 2), (6, 0)), (1,)), _bound(Antichain.of((4, 2), (6, 0)), (3,))
    (6, 4)
    """
    return min(
        (
            outer_time(time)
            for time in frontier
            if all(map(int.__le__, iterations_of(time), iterations))
        ),
        default=END_TIME,
    )
