"""The restarts of a flow: how many failures it survives, and the pause before each restart.

Guarantees that the first restart comes at once, and that the pause doubles with each further one. A
failure counts until a new checkpoint is complete, or `window` seconds have passed. Cost:
negligible.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

LONGEST_PAUSE: Final = 60.0
"""The longest pause in seconds."""


@dataclass(slots=True)
class Restarts:
    """A count of the failures that lie close together; times are in seconds.

    >>> restarts = Restarts(attempts=3, backoff=1.0, window=600.0)
    >>> [restarts.pause_after(now, progressed=False) for now in (0.0, 10.0, 20.0, 30.0)]
    [0.0, 1.0, 2.0, None]
    >>> restarts.pause_after(40.0, progressed=True)
    0.0
    """

    attempts: int
    backoff: float
    window: float
    _failures: deque[float] = field(default_factory=deque)
    """The time of each failure that counts."""

    def pause_after(self, now: float, *, progressed: bool) -> float | None:
        """Count a failure; return the pause before the restart, or None where the flow fails.

        `progressed` tells whether a checkpoint has become complete since the last restart.
        """
        if progressed:
            self._failures.clear()
        while self._failures and self._failures[0] <= now - self.window:
            self._failures.popleft()
        self._failures.append(now)
        count = len(self._failures)
        if count > self.attempts:
            return None
        return 0.0 if count == 1 else min(LONGEST_PAUSE, self.backoff * 2.0 ** (count - 2))
