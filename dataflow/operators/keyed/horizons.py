"""Horizons: for each bin a timer that no far timer of the bin precedes.

Guarantees that the first of them is at most the first far timer of all bins. Cost: O(log n) to set
one, O(1) to see the first.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

from meander.dataflow.operators.keyed.timer_queue import HEAP_SLACK
from meander.state.encoding.timers import Timer
from meander.state.keys.ids import Bin


class Horizons:
    """The horizons of bins with far timers.

    >>> horizons = Horizons()
    >>> horizons.set(Bin(0), (5, b"a")); horizons.set(Bin(1), (7, b"b")); horizons.first
    ((5, b'a'), 0)
    >>> horizons.pop(Bin(0)), horizons.first
    ((5, b'a'), ((7, b'b'), 1))
    """

    def __init__(self) -> None:
        self._timers: dict[Bin, Timer] = {}
        self._heap: list[tuple[Timer, Bin]] = []
        """The same, and some former ones."""

    def __len__(self) -> int:
        return len(self._timers)

    def set(self, bin: Bin, timer: Timer) -> None:
        """Set the horizon of a bin."""
        self._timers[bin] = timer
        heapq.heappush(self._heap, (timer, bin))
        if len(self._heap) > 2 * len(self._timers) + HEAP_SLACK:
            self._heap = [(timer, bin) for bin, timer in self._timers.items()]
            heapq.heapify(self._heap)

    def get(self, bin: Bin) -> Timer | None:
        """Return the horizon of a bin, or None."""
        return self._timers.get(bin)

    def pop(self, bin: Bin) -> Timer | None:
        """Remove and return the horizon of a bin, or None."""
        return self._timers.pop(bin, None)

    @property
    def first(self) -> tuple[Timer, Bin] | None:
        """Return the first horizon and its bin, or None."""
        while self._heap and self._timers.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    @property
    def bins(self) -> Collection[Bin]:
        """Return the bins that have horizons."""
        return self._timers.keys()
