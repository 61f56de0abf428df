"""The keepalive: a worker reports that it lives while user functions make a turn long.

Guarantees that statistics stay current and links stay open where each call of a user function
checks `due` first. Another thread sets `due`, so a check costs a few nanoseconds per record. That
thread also sees which operator, or which single call, blocks the loop. Cost: two writes per
operator and turn.
"""

from __future__ import annotations

from collections.abc import Callable


def _unheard() -> None:
    """Send no keepalive, as no driver waits for one."""


class Keepalive:
    """A keepalive that is checked before each call of a user function, outside the handler of its
    errors.

    >>> pulse = Keepalive(lambda: print("alive"), due=True)
    >>> if pulse.due: pulse.beat()
    alive
    """

    __slots__ = ("beat", "due", "operator", "since")

    def __init__(self, beat: Callable[[], None] = _unheard, due: bool = False) -> None:
        self.beat = beat
        """Sends the keepalive. Raises where the driver cannot receive it."""
        self.due = due
        """Whether a keepalive is due."""
        self.operator = ""
        """The operator, or step of a chain, whose turn runs; '' between turns."""
        self.since = 0.0
        """The last time at which the loop was active, by the worker's clock."""


NO_KEEPALIVE = Keepalive()
"""A keepalive that reports to no driver."""
