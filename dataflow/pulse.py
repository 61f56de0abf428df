"""How a worker is heard of in the middle of a turn that user functions make long.

Guarantees that whoever calls a user's function many times, and looks before each call whether a
sign of life is due, keeps the worker from being taken for dead. Somebody else's thread says when
one is due, so looking costs a few nanoseconds a record.
"""

from __future__ import annotations

from collections.abc import Callable


def _unheard() -> None:
    """Where nobody waits for a sign of life."""


class Pulse:
    """Looked at before each call of a user's function, outside of what catches its errors.

    >>> pulse = Pulse(lambda: print("alive"), due=True)
    >>> if pulse.due: pulse.beat()
    alive
    """

    __slots__ = ("beat", "due")

    def __init__(self, beat: Callable[[], None] = _unheard, due: bool = False) -> None:
        self.beat = beat
        """Gives the sign; raises where nobody hears."""
        self.due = due
        """Whether it is time for one."""


UNHEARD = Pulse()
"""Where nobody listens."""
