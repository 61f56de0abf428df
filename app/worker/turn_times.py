"""The turn times of a worker: the seconds in which it was active, under backpressure, on a core.

Guarantees that each figure only grows, so that a rare reader misses nothing. Cost: two additions
per turn.
"""

from __future__ import annotations

import time


class TurnTimes:
    """A record of how a worker has spent its time.

    >>> times = TurnTimes()
    >>> times.note(started=1.0, ended=1.5, worked=True, waits=False)
    >>> times.note(started=2.0, ended=2.25, worked=True, waits=True)
    >>> times.note(started=3.0, ended=3.0, worked=False, waits=False)
    >>> times.active, times.backpressure
    (0.75, 1.0)
    """

    def __init__(self) -> None:
        self.active = 0.0
        """The seconds of turns that did anything."""
        self.backpressure = 0.0
        """The seconds from each turn after which the worker could send or read no more, until the
        next."""
        self._waits_since: float | None = None
        self._cpu_before = time.process_time()

    def note(self, started: float, ended: float, worked: bool, waits: bool) -> None:
        """Note a turn between two times of the clock in seconds. `waits` says whether the worker
        lacks credit afterwards, or room for more bytes in flight."""
        if self._waits_since is not None:
            self.backpressure += started - self._waits_since
        if worked:
            self.active += ended - started
        self._waits_since = started if waits else None

    @property
    def cpu(self) -> float:
        """Return the CPU time of this process in seconds, without that of earlier executions."""
        return time.process_time() - self._cpu_before
