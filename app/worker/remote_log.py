"""A worker's log on its way to the driver's.

Guarantees that logging is possible from any thread and never blocks: lines wait here until the
worker's loop takes them to its link, at most `MOST` of them; what is beyond is counted and said.
What a user's function prints is logged too.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections import deque
from collections.abc import Iterator

from meander.app.protocol.messages import Log
from meander.dataflow.interfaces import Wakeup

MOST = 10_000
PRINTED = "print"
"""The logger under which printed lines stand."""


class RemoteLog(logging.Handler):
    """Collects what this process logs."""

    def __init__(self, wakeup: Wakeup, level: int) -> None:
        super().__init__(level)
        self.setFormatter(logging.Formatter("%(message)s"))
        self._wakeup = wakeup
        self._lines: deque[Log] = deque(maxlen=MOST)
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record for the loop."""
        self._lost += len(self._lines) == MOST
        text = self.format(record)
        self._lines.append(Log(logger=record.name, level=record.levelno, text=text))
        self._wakeup.set()

    def lines(self) -> Iterator[Log]:
        """Take what has been logged since the last call."""
        while self._lines:
            yield self._lines.popleft()
        if self._lost:
            text = f"{self._lost} lines of this worker's log were lost: there were too many"
            self._lost = 0
            yield Log(logger=__name__, level=logging.WARNING, text=text)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Log to the driver while the block lasts."""
        root = logging.getLogger()
        root.addHandler(self)
        before = root.level
        root.setLevel(self.level)
        try:
            with contextlib.redirect_stdout(_Printed()):
                yield
        finally:
            root.setLevel(before)
            root.removeHandler(self)


class _Printed(io.TextIOBase):
    """Makes lines of what is printed."""

    def __init__(self) -> None:
        self._begun = ""
        self._log = logging.getLogger(PRINTED)

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._log.info("%s", line)
        return len(text)
