"""Log lines: the name of an event, and fields.

Guarantees that an entry takes one line of text (logfmt), whatever its values hold. A detail below
it, such as a traceback, may take more. A name is in the past tense, with nouns of the glossary. No
field may hold a setting of Kafka, as that may be a secret.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Value = str | int | float | bool

_PLAIN = re.compile(r"[^\s\"=]+")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log line that is the message of a `logging.LogRecord`.

    >>> print(LogLine("worker_started", {"worker": 1, "host": "vm", "reason": "a new one"}))
    worker_started worker=1 host=vm reason="a new one"
    """

    event: str
    fields: Mapping[str, Value] = field(default_factory=dict)
    detail: str = ""
    """Lines of text that follow, such as a traceback."""

    def __str__(self) -> str:
        pairs = (f"{name}={_format(value)}" for name, value in self.fields.items())
        line = " ".join([self.event, *pairs])
        return f"{line}\n{self.detail}" if self.detail else line


class LineLogger:
    """A logger that writes lines with an event and fields.

    Call it as `log.info("worker_started", worker=1, process=4711, host="vm")`.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, exc_info: BaseException | None = None, **fields: Value) -> None:
        """Log an event for developers of Meander only."""
        self.log(logging.DEBUG, LogLine(event, fields), exc_info)

    def info(self, event: str, /, **fields: Value) -> None:
        """Log a normal event."""
        self.log(logging.INFO, LogLine(event, fields))

    def warning(self, event: str, /, detail: str = "", **fields: Value) -> None:
        """Log an event that users should see to."""
        self.log(logging.WARNING, LogLine(event, fields, detail))

    def error(
        self,
        event: str,
        /,
        detail: str = "",
        exc_info: BaseException | None = None,
        **fields: Value,
    ) -> None:
        """Log a failure."""
        self.log(logging.ERROR, LogLine(event, fields, detail), exc_info)

    def log(self, level: int, line: LogLine, exc_info: BaseException | None = None) -> None:
        """Log a line at a level of `logging`."""
        self._logger.log(level, line, exc_info=exc_info)


def _format(value: Value) -> str:
    r"""Return a value as a line shows it.

    >>> [_format(value) for value in ("vm", "two words", "", 'a="b"', True, 0.12345, 7)]
    ['vm', '"two words"', '""', '"a=\\"b\\""', 'true', '0.123', '7']
    """
    match value:
        case bool():
            return str(value).lower()
        case float():
            return str(round(value, 3))
        case int():
            return str(value)
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
