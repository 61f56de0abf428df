"""A service rate for each worker, by timer.

Workers that are added here bring no cores with them, so what is to get faster by them must not need
any: each record takes its worker so long, as if the worker had a core of its own, and the machine
sleeps meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

GRAIN = 0.001
"""Seconds that a worker may be ahead: shorter sleeps take longer than they are asked to."""
BEHIND = 0.02
"""Seconds that a worker may be behind and make up for: sleeps end late where cores are few, and a
worker that lost that time each time would serve less than its rate."""


class Service:
    """One worker's: so many records per second, and no more but for what `BEHIND` is worth."""

    def __init__(
        self,
        rate: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._each, self._now, self._sleep = 1 / rate, now, sleep
        self._free = 0.0

    def take(self) -> None:
        """Serve one record."""
        now = self._now()
        self._free = max(self._free, now - BEHIND) + self._each
        if self._free - now > GRAIN:
            self._sleep(self._free - now)
