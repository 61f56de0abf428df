"""Updates that wait at an input until the frontier has passed their times.

Guarantees that `take` gives each update once, at the first frontier that is not before its time.
Cost: one comparison per update, time of the frontier and take.
"""

from __future__ import annotations

import numpy as np

from meander.state.collections.columns import Int64s
from meander.state.collections.frontiers import not_before
from meander.state.collections.layer import Updates
from meander.state.times.antichain import Antichain


class PendingUpdates:
    """The waiting updates of one input.

    >>> pending = PendingUpdates(depth=1)
    >>> pending.add(Updates.of([(7, 1, (4,), 1), (7, 2, (6,), 1)]))
    >>> pending.take(Antichain.of(5)).values.tolist(), pending.times.tolist()
    ([1], [[6]])
    """

    def __init__(self, depth: int) -> None:
        self._none = Updates.of([], depth)
        self._waiting: list[Updates] = []

    def add(self, updates: Updates) -> None:
        """Add waiting updates."""
        self._waiting.append(updates)

    def take(self, frontier: Antichain) -> Updates:
        """Remove and return the updates that a frontier has passed."""
        waiting = self.all()
        later = not_before(waiting.times, frontier)
        self._waiting = [waiting.take(np.flatnonzero(later))] if later.any() else []
        return waiting.take(np.flatnonzero(~later)) if later.any() else waiting

    def all(self) -> Updates:
        """Return all waiting updates."""
        if len(self._waiting) > 1:
            self._waiting = [Updates.concat(self._waiting)]
        return self._waiting[0] if self._waiting else self._none

    @property
    def times(self) -> Int64s:
        """Return the times of all waiting updates, shape (n, depth)."""
        return self.all().times
