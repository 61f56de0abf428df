"""The keepalive: a worker reports that it lives while user functions make a turn long.

Guarantees that statistics stay current and links stay open where each call of a user function
checks `due` first. Another thread sets `due`, so a check costs a few nanoseconds per record. That
thread also reads which operator, or which single call, blocks the loop. Cost: two writes per
operator and turn.
"""

from __future__ import annotations

from collections.abc import Callable


def _send_nothing() -> None:
    """Send no keepalive, as no driver expects one."""


class Keepalive:
    """A keepalive that each call of a user function checks first, outside the handler of errors.

    >>> keepalive = Keepalive(lambda: print("alive"), due=True)
    >>> if keepalive.due: keepalive.send()
    alive
    """

    __slots__ = ("due", "operator", "send", "since")

    def __init__(self, send: Callable[[], None] = _send_nothing, due: bool = False) -> None:
        self.send = send
        """Sends the keepalive. Raises where the driver cannot receive it."""
        self.due = due
        """Whether a keepalive is due."""
        self.operator = ""
        """The operator, or step of a chain, whose turn runs; '' between turns."""
        self.since = 0.0
        """The last time at which the loop was active, by the worker's clock."""


NO_KEEPALIVE = Keepalive()
"""A keepalive without a driver."""
