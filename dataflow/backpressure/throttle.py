"""The throttle: limits the time and memory of a worker that moves of bins take from records.

Guarantees that pre-copies, prefetches and compaction take at most a share of the time of long
turns, and the rest of short ones. They take none while bins are in transit, as records then wait.

The share follows the latency: it halves when records have taken too long, and grows otherwise.
Moves at their time get some milliseconds of each turn. Pre-copies and moves each have half of the
memory, or that of one bin (I6). Cost: two clock reads per slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from meander.dataflow.interfaces import Clock

TURN = 0.002
"""The least seconds of a turn. Moves may fill them."""

SLICE = 0.016
"""The most seconds of a turn for moves."""

LEAST, FIRST, MOST = 0.1, 0.3, 0.9
"""The least, the first and the greatest share of a worker's time for pre-copies and prefetches."""

GROWTH = 0.2
"""The growth of the share in a second."""

T = TypeVar("T")


class Moving(Protocol):
    """A bin on its way to the state topic, or from it."""

    @property
    def memory_bound(self) -> int:
        """Return the most bytes that it may hold in memory until its next step."""


M = TypeVar("M", bound=Moving)


class MemoryBudget:
    """A budget that bounds the memory of bins on their way.

    >>> class Bin:
    ...     memory_bound = 60
    >>> budget = MemoryBudget(lambda: 100)
    >>> bins = [budget.admit(Bin()) for _ in range(2)]
    >>> budget.open
    False
    >>> bins[0].memory_bound = 0; budget.open
    True
    """

    def __init__(self, max_bytes: Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._admitted: list[Moving] = []

    @property
    def open(self) -> bool:
        """Return whether the budget has room for a further bin."""
        self._admitted = [one for one in self._admitted if one.memory_bound]
        held = sum(one.memory_bound for one in self._admitted)
        return not held or held < self._max_bytes()

    def admit(self, one: M) -> M:
        """Count a bin until it holds no bytes any more. Return the bin."""
        self._admitted.append(one)
        return one


class MoveThrottle:
    """A throttle that limits the moves of one worker.

    `latency` is the target in seconds, and `memory` returns the available bytes.

    >>> class Still:
    ...     def now_ms(self): return 0
    ...     def monotonic(self): return 0.0
    ...     def undisturbed(self): return 0.0
    >>> throttle = MoveThrottle(Still(), latency=0.1, memory=lambda: 100)
    >>> throttle.end_turn(busy=0.004); round(throttle.seconds_left, 6)
    0.001714
    >>> throttle.end_turn(busy=0.0005); round(throttle.seconds_left, 6)
    0.0015
    """

    def __init__(self, clock: Clock, latency: float, memory: Callable[[], int]) -> None:
        self._clock, self._latency = clock, latency
        self.precopy_memory = MemoryBudget(lambda: memory() // 2)
        """The budget of pre-copies and prefetches."""
        self.move_memory = MemoryBudget(lambda: memory() // 2)
        """The budget of moves at their time."""
        self.seconds_left = TURN
        """The seconds left to moves before the next turn."""
        self.bins_in_transit = False
        """Whether records wait for bins, so that pre-copies and prefetches stop."""
        self.share = FIRST
        """The current share of the worker's time."""
        self._passed_at = self._halved = clock.monotonic()
        """The time at which the last records passed, and the time of the last halving. Records read
        before that were on their way then, or waited for bins, so their latency does not count."""
        self._spent = 0.0

    def note_passed(self, read_at: float) -> None:
        """Adapt the share to the latency of records that have passed all sinks."""
        now = self._clock.monotonic()
        if now - read_at <= self._latency:
            self.share = min(MOST, self.share + GROWTH * (now - self._passed_at))
        elif read_at >= self._halved and not self.bins_in_transit:
            self.share = max(LEAST, self.share / 2)
            self._halved = now
        self._passed_at = now

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count the time that a slice of moves takes."""
        started_at = self._clock.monotonic()
        yield
        seconds = self._clock.monotonic() - started_at
        self._spent += seconds
        self.seconds_left -= seconds

    def run_due(self, moves: Iterable[T]) -> Iterator[T]:
        """Yield the first moves until `SLICE` seconds have passed; at least one."""
        until = self._clock.monotonic() + SLICE
        for one in moves:
            yield one
            if self._clock.monotonic() >= until:
                return

    def pop_waiting(self, waiting: deque[T]) -> Iterator[T]:
        """Remove and yield waiting moves while this turn has time. The caller puts back an
        unfinished one."""
        for _ in range(len(waiting)):
            if not self.open:
                return
            with self.measure():
                yield waiting.popleft()

    @property
    def open(self) -> bool:
        """Return whether this turn has time for a further slice."""
        return self.seconds_left > 0 and not self.bins_in_transit

    def end_turn(self, busy: float) -> None:
        """Compute the time for moves in the next turn from the `busy` seconds of this turn."""
        if self.bins_in_transit:
            # Records read so far may have waited for a bin, so their latency does not count.
            self._halved = self._clock.monotonic()
        others = busy - self._spent
        self._spent = 0.0
        more = max(TURN - others, self.share / (1 - self.share) * others)
        # Overspent time reduces the next turn.
        self.seconds_left = min(self.seconds_left, 0.0) + min(more, SLICE)
