"""The throttle: limits the time and memory of a worker that moves of bins take from records.

Guarantees that pre-copies, prefetches and compaction take at most a share of the time of long
turns, and the rest of short ones. They take none while bins are in transit, as records then wait.

The share follows the latency: it halves when records have taken too long, and grows while they have
not. Moves at their time get some milliseconds of each turn. Each kind has half of the memory, or
one bin's (I6). Cost: two clock reads per slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from meander.dataflow.interfaces import Clock

TURN = 0.002
"""Seconds that a turn takes at least, as the loop paces itself. Moves may fill them."""


SLICE = 0.016
"""The most seconds of a turn for moves. Records are processed between."""

LEAST, FIRST, MOST = 0.1, 0.3, 0.9
"""Shares of a worker's time for pre-copies and prefetches."""

GROWTH = 0.2
"""The share of a worker's time that the share grows by in a second."""

T = TypeVar("T")


class Moving(Protocol):
    """A bin that moves to the state topic, or from it."""

    @property
    def memory_bound(self) -> int:
        """Return the most bytes that it may hold in memory until its next step."""


M = TypeVar("M", bound=Moving)


class MemoryBudget:
    """A budget that bounds the memory of bins on their way.

    >>> class Bin:
    ...     memory_bound = 60
    >>> room = MemoryBudget(lambda: 100)
    >>> bins = [room.admit(Bin()) for _ in range(2)]
    >>> room.open
    False
    >>> bins[0].memory_bound = 0; room.open
    True
    """

    def __init__(self, most_bytes: Callable[[], int]) -> None:
        self._most = most_bytes
        self._admitted: list[Moving] = []

    @property
    def open(self) -> bool:
        """Return whether there is room for one more bin."""
        self._admitted = [one for one in self._admitted if one.memory_bound]
        held = sum(one.memory_bound for one in self._admitted)
        return not held or held < self._most()

    def admit(self, one: M) -> M:
        """Count a bin until it holds no bytes any more, and return it."""
        self._admitted.append(one)
        return one


class MoveThrottle:
    """A throttle that limits the moves of one worker. `latency` is the target in seconds, and
    `memory` returns the bytes available.

    >>> class Still:
    ...     def now_ms(self): return 0
    ...     def monotonic(self): return 0.0
    >>> pace = MoveThrottle(Still(), latency=0.1, memory=lambda: 100)
    >>> pace.turn(busy=0.004); round(pace.left, 6)
    0.001714
    >>> pace.turn(busy=0.0005); round(pace.left, 6)
    0.0015
    """

    def __init__(self, clock: Clock, latency: float, memory: Callable[[], int]) -> None:
        self._clock, self._latency = clock, latency
        self.ahead, self.due = (
            MemoryBudget(lambda: memory() // 2),
            MemoryBudget(lambda: memory() // 2),
        )
        """The budgets of pre-copies and prefetches, and of moves at their time."""
        self.left = TURN
        """Seconds that moves may take before the next turn."""
        self.yields = False
        """Whether bins are in transit, so that pre-copies and prefetches stop."""
        self.share = FIRST
        """The share of the worker's time."""
        self._heard = self._halved = clock.monotonic()
        """The time at which the last records passed, and a read time before which latencies do not
        count. Such records were on their way at the last halving, or waited for bins."""
        self._spent = 0.0

    def passed(self, read_at: float) -> None:
        """Adapt the share where records of a read time have passed all sinks."""
        now = self._clock.monotonic()
        if now - read_at <= self._latency:
            self.share = min(MOST, self.share + GROWTH * (now - self._heard))
        elif read_at >= self._halved and not self.yields:
            self.share = max(LEAST, self.share / 2)
            self._halved = now
        self._heard = now

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of a slice of moves."""
        began = self._clock.monotonic()
        yield
        took = self._clock.monotonic() - began
        self._spent += took
        self.left -= took

    def hurry(self, things: Iterable[T]) -> Iterator[T]:
        """Yield the first things until a `SLICE` has passed; at least one."""
        until = self._clock.monotonic() + SLICE
        for thing in things:
            yield thing
            if self._clock.monotonic() >= until:
                return

    def turns(self, waiting: deque[T]) -> Iterator[T]:
        """Remove and yield waiting things while this turn has time. The caller returns a thing that
        is not finished."""
        for _ in range(len(waiting)):
            if not self.open:
                return
            with self.spending():
                yield waiting.popleft()

    @property
    def open(self) -> bool:
        """Return whether this turn has time for another slice."""
        return self.left > 0 and not self.yields

    def turn(self, busy: float) -> None:
        """Compute the time for moves in the next turn from the `busy` seconds of this turn."""
        if self.yields:
            # Records read so far may have waited for a bin, so their latency does not count.
            self._halved = self._clock.monotonic()
        others = busy - self._spent
        self._spent = 0.0
        more = max(TURN - others, self.share / (1 - self.share) * others)
        # Overspent time reduces the next turn.
        self.left = min(self.left, 0.0) + min(more, SLICE)
