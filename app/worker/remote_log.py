"""Send the log of a worker to the driver.

Guarantees that any thread can log and never blocks. Lines wait here until the worker's loop sends
them, at most `MOST` of them; further lines are dropped and counted. Printed lines beyond the
worker's share of `PRINTS` a second are omitted and counted, because each costs the driver's loop up
to a millisecond. Lines that a user's function prints or logs as plain text are sent as the field
`text`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections import deque
from collections.abc import Iterator
from itertools import count

from meander.app.common.clock import SystemClock
from meander.app.protocol.messages import Log
from meander.dataflow.interfaces import Clock, Wakeup
from meander.schemas.log_lines import LineLogger, LogLine, Value

MOST = 10_000
PRINTS = 200
"""The printed lines of all workers that are sent in a second."""
PRINTED = "print"
"""The logger of printed lines."""
_FORMATTER = logging.Formatter()


class RemoteLog(logging.Handler):
    """A handler that collects the log lines of this process for its loop."""

    def __init__(
        self, wakeup: Wakeup, level: int, workers: int = 1, clock: Clock | None = None
    ) -> None:
        """`workers` is the number of workers among which `PRINTS` is shared."""
        super().__init__(level)
        self._wakeup = wakeup
        self._printed = _Printed(max(1, PRINTS // workers), clock or SystemClock())
        self._lines: deque[tuple[int, Log]] = deque(maxlen=MOST)
        """Each line with its number. A gap tells the loop of dropped lines without a lock."""
        self._numbers = count()
        self._next = 0
        """The number of the line that the loop takes next, if none is dropped."""

    def emit(self, record: logging.LogRecord) -> None:
        """Buffer a record for the loop."""
        line = _sent(record)
        self._lines.append((next(self._numbers), line))
        self._wakeup.set()

    def lines(self) -> Iterator[Log]:
        """Yield the lines logged since the last call."""
        self._printed.report()
        lost = 0
        while self._lines:
            number, line = self._lines.popleft()
            lost += number - self._next
            self._next = number + 1
            yield line
        if lost:
            fields: dict[str, Value] = {"lines": lost}
            yield Log(
                logger=__name__, level=logging.WARNING, event="log_lines_lost", fields=fields,
                detail="",
            )  # fmt: skip

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Log to the driver while the block lasts."""
        root = logging.getLogger()
        root.addHandler(self)
        before = root.level
        root.setLevel(self.level)
        try:
            with contextlib.redirect_stdout(self._printed):
                yield
        finally:
            self._printed.report(at_once=True)
            root.setLevel(before)
            root.removeHandler(self)


def _sent(record: logging.LogRecord) -> Log:
    line = record.msg
    if not isinstance(line, LogLine):
        line = LogLine("text_logged", {"text": record.getMessage()})
    detail = [line.detail] if line.detail else []
    if record.exc_info is not None:
        detail.append(_FORMATTER.formatException(record.exc_info))
    return Log(
        logger=record.name, level=record.levelno, event=line.event, fields=dict(line.fields),
        detail="\n".join(detail),
    )  # fmt: skip


class _Printed(io.TextIOBase):
    """A text stream that logs each line, at most `limit` of them in a second."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit, self._clock, self._lock = limit, clock, threading.RLock()
        self._unfinished = ""
        self._log = LineLogger(PRINTED)
        self._second = float("-inf")
        """The time at which the present second began."""
        self._count = self._omitted = 0

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._unfinished = (self._unfinished + text).split("\n")
            for line in lines:
                self._report(at_once=False)
                self._count += 1
                if self._count <= self._limit:
                    self._log.info("text_printed", text=line)
                else:
                    self._omitted += 1
        return len(text)

    def report(self, *, at_once: bool = False) -> None:
        """Log how many lines have been omitted, once their second is over or `at_once`."""
        with self._lock:
            self._report(at_once=at_once)

    def _report(self, *, at_once: bool) -> None:
        now = self._clock.monotonic()
        if now < self._second + 1 and not at_once:
            return
        omitted, self._second, self._count, self._omitted = self._omitted, now, 0, 0
        if omitted:
            self._log.warning("prints_omitted", lines=omitted, limit=f"{self._limit} a second")
