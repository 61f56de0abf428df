"""What Spark's JVM and the Python processes that it starts on this machine write to stderr.

Guarantees that the last lines of a worker that died are in the driver's log, where the worker ran
beside the driver: a crash of native code, or a process that ends before it has registered, says its
cause nowhere else. Lines of Spark's own log are left out. Cost: nothing until a worker has died.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

LINES = 15
LENGTH = 300
"""Characters of a line at most."""
BYTES = 1 << 16
"""How much of a file is looked at."""
_SPARKS = re.compile(
    r"\d\d/\d\d/\d\d \d\d:|\s+at [\w.$/]+\(|\s+\.\.\. \d+ more"
    r"|(Caused by: )?(java|javax|scala|sun|org\.apache)\."
)
"""Lines of Spark's log, and of Java's exceptions in it."""


class Stderr:
    """The file to which all of them write, while a Spark context lasts."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def size(self) -> int:
        """Bytes that have been written; 0 where the context is over."""
        return self.file.stat().st_size if self.file.exists() else 0

    def since(self, start: int) -> list[str]:
        r"""The last lines that were written from an offset on, but for those of Spark's log.

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
        said = [line for line in lines if line.strip() and not _SPARKS.match(line)]
        return [line[:LENGTH] for line in said[-LINES:]]


_OF: dict[int, Stderr] = {}
"""By the process of a JVM."""


def note(process: int, file: Path) -> None:
    """Note the file to which a JVM writes."""
    _OF[process] = Stderr(file)


def of(process: int) -> Stderr:
    """Return that of a JVM; of one that was started elsewhere nothing is known."""
    return _OF.get(process, Stderr(Path(os.devnull)))
