"""The stderr of Spark's JVM and of the Python processes that it starts on this machine.

Guarantees that the driver's log holds the last lines of a dead worker that ran on this machine. A
crash of native code, or a process that dies before it registers, shows its cause nowhere else.
Lines of Spark's own log are left out. Cost: nothing until a worker has died.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

LINES = 15
LENGTH = 300
"""The limit of characters of a line."""
BYTES = 1 << 16
"""The limit of bytes that are read of a file."""
_SPARKS = re.compile(
    r"\d\d/\d\d/\d\d \d\d:|\s+at [\w.$/]+\(|\s+\.\.\. \d+ more"
    r"|(Caused by: )?(java|javax|scala|sun|org\.apache)\."
)
"""Lines of Spark's log, and of Java's exceptions in it."""


class Stderr:
    """A file to which all these processes write while a Spark context lasts."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def size(self) -> int:
        """The bytes written so far; 0 after the context has ended."""
        return self.file.stat().st_size if self.file.exists() else 0

    def since(self, start: int) -> list[str]:
        r"""Return the last lines written after an offset, without those of Spark's log.

        >>> from tempfile import NamedTemporaryFile
        >>> with NamedTemporaryFile("w+") as file:
        ...     _ = file.write("before\n26/11/25 10:00:00 WARN X: y\n\tat a.B(C)\nno memory\n")
        ...     file.flush()
        ...     Stderr(Path(file.name)).since(7)
        ['no memory']
        """
        if not self.file.exists():
            return []
        with self.file.open("rb") as file:
            file.seek(max(start, self.size - BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        written = [line for line in lines if line.strip() and not _SPARKS.match(line)]
        return [line[:LENGTH] for line in written[-LINES:]]


_OF: dict[int, Stderr] = {}
"""The file of each JVM, by its process id."""


def note(process: int, file: Path) -> None:
    """Note the file to which a JVM writes."""
    _OF[process] = Stderr(file)


def of(process: int) -> Stderr:
    """Return the file of a JVM; an empty one for a JVM that was started elsewhere."""
    return _OF.get(process, Stderr(Path(os.devnull)))
