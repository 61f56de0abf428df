"""Wakes a loop that sleeps in a poll, from any thread.

Guarantees that a call ahead of the sleep ends it as well. Calls neither block nor fail, even after
the loop has ended. Cost: a socket pair per loop, a byte per call.
"""

from __future__ import annotations

import socket
import threading

from meander.schemas.log_lines import LineLogger

log = LineLogger(__name__)


class LoopWakeup:
    """A wakeup that ends a loop's poll; any thread may call `set`.

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
        """Return the file descriptor to poll for reading."""
        return self._reader.fileno()

    def set(self) -> None:
        """Wake the loop."""
        with self._closing:
            if self._writer.fileno() < 0:
                return  # a caller in another thread may come after the end of the loop
            try:
                self._writer.send(b"\0")
            except BlockingIOError:
                log.debug("wakeup_skipped", reason="enough calls wait already")

    def clear(self) -> bool:
        """Forget the calls so far; return whether there were any."""
        try:
            return bool(self._reader.recv(4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Release both ends."""
        with self._closing:
            self._reader.close()
            self._writer.close()
