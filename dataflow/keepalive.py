"""How a worker is heard of in the middle of a turn that user functions make long.

Guarantees that who calls a user's function many times, and looks before each call whether a sign
is due, has the worker's figures stay up to date and its links heard. Another thread says when one
is due, so a look costs a few nanoseconds a record; and that thread sees which operator's turn, or
which single call of a function, keeps the loop. Cost: two writes per operator and turn.
"""

from __future__ import annotations

from collections.abc import Callable


def _unheard() -> None:
    """Where nobody waits for a sign of life."""


class Keepalive:
    """Looked at before each call of a user's function, outside of what catches its errors.

    >>> pulse = Keepalive(lambda: print("alive"), due=True)
    >>> if pulse.due: pulse.beat()
    alive
    """

    __slots__ = ("beat", "due", "operator", "since")

    def __init__(self, beat: Callable[[], None] = _unheard, due: bool = False) -> None:
        self.beat = beat
        """Gives the sign; raises where nobody hears."""
        self.due = due
        """Whether it is time for one."""
        self.operator = ""
        """The one whose turn it is, of a chain the step; '' between turns."""
        self.since = 0.0
        """When the loop was last seen to do something, by the worker's clock."""


NO_KEEPALIVE = Keepalive()
"""Where nobody listens."""
