"""Ctrl-C and SIGTERM: they interrupt a program at once as it starts, and a flow between two turns.

Guarantees that the first signal never interrupts a turn of a running flow, because the loop checks
`received`. A second signal interrupts at once.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

_CAUGHT = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A request of a signal that the program ends."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Signals:
    """A set of signal handlers of the main thread."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._rouse: Callable[[], None] | None = None

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Raise Interrupted for signals while the block lasts."""
        before = {number: signal.getsignal(number) for number in _CAUGHT}
        self._install()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self, rouse: Callable[[], None]) -> Iterator[None]:
        """Note the first signal and call `rouse` while the block lasts."""
        # Again, because Spark's context has installed its own handler.
        self._install()
        self._rouse = rouse
        try:
            yield
        finally:
            self._rouse = None

    def _install(self) -> None:
        for number in _CAUGHT:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._rouse is None or self.received is not None:
            raise Interrupted(number)
        self.received = number
        self._rouse()


SIGNALS: Final = Signals()
"""The signal handlers of a command."""
