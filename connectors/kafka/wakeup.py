"""Rouses a loop that sleeps in a poll, from any thread.

Guarantees that a call made before the sleep ends it as well, and that calls never block nor fail,
also once the loop has ended. Cost: a socket pair per loop, a byte per call.
"""

from __future__ import annotations

import socket
import threading

from meander.schemas.log_lines import LineLogger

log = LineLogger(__name__)


class LoopWakeup:
    """Rouses a loop that waits in a poll; `set` may be called from any thread.

    >>> wakeup = LoopWakeup()
    >>> wakeup.set(); wakeup.set()
    >>> wakeup.clear(), wakeup.clear()
    (True, False)
    >>> wakeup.close(); wakeup.set()
    """

    def __init__(self) -> None:
        self._closing = threading.Lock()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """What to poll for reading."""
        return self._reader.fileno()

    def set(self) -> None:
        """Have the loop look again."""
        with self._closing:
            if self._writer.fileno() < 0:
                return  # who calls from another thread cannot know that the loop has ended
            try:
                self._writer.send(b"\0")
            except BlockingIOError:
                log.debug("wakeup_skipped", reason="enough calls wait already")

    def clear(self) -> bool:
        """Forget the calls so far; whether there were any."""
        try:
            return bool(self._reader.recv(4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Release both ends."""
        with self._closing:
            self._reader.close()
            self._writer.close()
