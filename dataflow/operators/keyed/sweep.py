"""The sweep: removes the keys of an operator whose due times have passed.

A round looks at the entries of all bins in slices, in memory and on disk. Guarantees that no record
meets a difference: a sweep removes only states that any later record would find expired
(`expiry.py`). Invariant: a round begins when a quarter of the time to live has gone by since the
last one began, or as soon as that one has ended. So expired keys take at most about a quarter of
the space of the others. Cost: four looks at an entry per time to live, 1 us each on disk, and that
of a removal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from meander.dataflow.operators.keyed.expiry import Expiry
from meander.dataflow.operators.keyed.stateful import StatefulOperator
from meander.dataflow.records.loop_times import outer_time
from meander.state.keys.ids import Bin
from meander.state.times.time import MIN_TIME, from_millis

SLICE: Final = 512
"""The entries that one step looks at."""
ROUNDS: Final = 4
"""The most rounds per time to live."""


class Sweep:
    """The sweep of one operator on one worker."""

    def __init__(self, keyed: StatefulOperator, expiry: Expiry) -> None:
        self._keyed, self._store = keyed, keyed.store
        self._pause = from_millis(max(1, expiry.millis // ROUNDS))
        self._next = MIN_TIME + 1
        """The time from which on the next round may begin."""
        self._left = deque[Bin]()
        """The bins that follow in this round."""
        self._bin: Bin | None = None
        self._slices: Iterator[list[bytes]] = iter(())
        self._until = MIN_TIME
        """The greatest due time of states that this round removes."""

    def step(self, is_elsewhere: Callable[[Bin], bool]) -> bool:
        """Look at a slice of entries. Return whether there was one. `is_elsewhere` returns whether
        a bin is not, or not for long, this worker's."""
        if self._bin is None:
            if not self._left and not self._begin_round():
                return False
            self._bin = self._left.popleft()
            self._slices = self._store.due_keys(self._bin, self._until, SLICE)
        if is_elsewhere(self._bin) or (keys := next(self._slices, None)) is None:
            self._bin = None
        elif keys:
            self._store.forget_due(keys, np.full(len(keys), self._bin), self._until)
        return True

    @property
    def busy(self) -> bool:
        """Return whether a round is under way."""
        return self._bin is not None or bool(self._left)

    def _begin_round(self) -> bool:
        """Begin a round where one is due. Return whether it has bins."""
        passed = self._passed
        if passed < self._next:
            return False
        self._until, self._next = passed, passed + self._pause
        self._left.extend(self._store.bins())
        return bool(self._left)

    @property
    def _passed(self) -> int:
        """Return a time before which all records have been applied; the least one where the flow
        has no time any more."""
        return min(map(outer_time, self._keyed.frontier), default=MIN_TIME)
