"""How much of a worker's time and memory goes into moving state while records go on.

Guarantees that what is fetched, written and merged ahead takes at most a share of the time of turns
that records make long, and what is left of short ones, and none while bins are on their way: then
records wait. The share follows a latency: it halves when records have taken longer, and grows again
while they have not. Moves whose time has come are hurried, some milliseconds of each turn. Either
has half of the memory, or one bin's (I6). Cost: two looks at the clock per slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from meander.dataflow.interfaces import Clock

TURN = 0.002
"""Seconds that a turn takes anyway, as a worker's loop turns no faster: such work may fill it."""


SLICE = 0.016
"""Seconds of a turn that go into moving state at most: records are handled between."""

LEAST, FIRST, MOST = 0.1, 0.3, 0.9
"""Of a worker's time, for what is moved ahead."""

GROWTH = 0.2
"""Of a worker's time, that the share grows by in a second."""

T = TypeVar("T")


class Moving(Protocol):
    """A bin on its way to the state topic, or from there."""

    @property
    def held(self) -> int:
        """The most bytes that it may have in memory until its next step."""


M = TypeVar("M", bound=Moving)


class MemoryBudget:
    """Memory for bins on their way.

    >>> class Bin:
    ...     held = 60
    >>> room = MemoryBudget(lambda: 100)
    >>> bins = [room.admit(Bin()) for _ in range(2)]
    >>> room.open
    False
    >>> bins[0].held = 0; room.open
    True
    """

    def __init__(self, most_bytes: Callable[[], int]) -> None:
        self._most = most_bytes
        self._admitted: list[Moving] = []

    @property
    def open(self) -> bool:
        """Whether there is room for one more bin."""
        self._admitted = [one for one in self._admitted if one.held]
        held = sum(one.held for one in self._admitted)
        return not held or held < self._most()

    def admit(self, one: M) -> M:
        """It takes room from now on, until it says that it holds nothing more."""
        self._admitted.append(one)
        return one


class MoveThrottle:
    """One worker's. `latency` is the one to be followed, in seconds; `memory` says how many bytes
    there are.

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
        """What is moved ahead, and what moves as its time has come."""
        self.left = TURN
        """Seconds that may be spent before the next turn."""
        self.yields = False
        """Whether bins are on their way, so that nothing is moved ahead."""
        self.share = FIRST
        """Of the worker's time."""
        self._heard = self._halved = clock.monotonic()
        """When the last records passed; and until when those were read of which nothing can be
        learned, as they were on their way when it was last halved, or waited for bins."""
        self._spent = 0.0

    def passed(self, read_at: float) -> None:
        """Records that were read at a time have passed all sinks."""
        now = self._clock.monotonic()
        if now - read_at <= self._latency:
            self.share = min(MOST, self.share + GROWTH * (now - self._heard))
        elif read_at >= self._halved and not self.yields:
            self.share = max(LEAST, self.share / 2)
            self._halved = now
        self._heard = now

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Around a slice of such work."""
        began = self._clock.monotonic()
        yield
        took = self._clock.monotonic() - began
        self._spent += took
        self.left -= took

    def hurry(self, things: Iterable[T]) -> Iterator[T]:
        """The first of these, until a `SLICE` has been spent on them; at least one."""
        until = self._clock.monotonic() + SLICE
        for thing in things:
            yield thing
            if self._clock.monotonic() >= until:
                return

    def turns(self, waiting: deque[T]) -> Iterator[T]:
        """One after another of what waits, taken out, as long as there is time in this turn; who is
        not through with it puts it back."""
        for _ in range(len(waiting)):
            if not self.open:
                return
            with self.spending():
                yield waiting.popleft()

    @property
    def open(self) -> bool:
        """Whether another slice may be done in this turn."""
        return self.left > 0 and not self.yields

    def turn(self, busy: float) -> None:
        """A turn is over, in which so many seconds went into work of any kind."""
        if self.yields:
            # What was read so far may have waited for a bin: that says nothing of the share.
            self._halved = self._clock.monotonic()
        others = busy - self._spent
        self._spent = 0.0
        more = max(TURN - others, self.share / (1 - self.share) * others)
        # What was spent beyond its measure is made up for.
        self.left = min(self.left, 0.0) + min(more, SLICE)
