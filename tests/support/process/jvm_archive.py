"""The classes that Spark's JVMs load, made into an archive once for a run of all tests.

A start of a JVM then costs 5 s of CPU, not 7. One that does not find the archive, as it is not made
yet, or that refuses it, loads its classes as ever.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from meander.app.driver.workers import spark_launcher

OPTIONS = "SPARK_SUBMIT_OPTS"
"""Where Spark's scripts look for more options of a driver's JVM."""
# Not a word about archives may come between the lines of a driver's standard output.
_LOG = "-Xlog:disable -Xlog:all=warning:stderr"
_AT_EXIT = 120.0
"""Seconds that a JVM gets to write it."""


@dataclass(frozen=True, slots=True)
class Archive:
    """One that is made in a folder."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "spark.jsa"

    @property
    def said(self) -> Path:
        """What its maker says."""
        return self.folder / "spark.log"

    def __str__(self) -> str:
        if self.path.exists():
            return f"in an archive of {self.path.stat().st_size >> 20} MiB"
        return f"in no archive\n{self.said.read_text(errors='replace')[-2000:]}".rstrip()

    def make(self) -> None:
        """Start Spark, run a job, and have the JVM write what it has loaded."""
        part = self.folder / "spark.part"
        os.environ[OPTIONS] = f"{_LOG} -XX:ArchiveClassesAtExit={shlex.quote(str(part))}"
        spark_launcher.JVM_END = _AT_EXIT
        with spark_launcher.spark_context("local[1]", "classes") as spark:
            assert spark.range(1, numSlices=1).map(str).collect() == ["0"]
        # At once, so that nobody finds half of it.
        part.rename(self.path)


@contextlib.contextmanager
def archived() -> Iterator[Archive]:
    """While the block lasts all JVMs of Spark look for an archive, which is made meanwhile."""
    with tempfile.TemporaryDirectory(prefix="meander-", ignore_cleanup_errors=True) as folder:
        archive = Archive(Path(folder))
        with archive.said.open("w") as said:
            maker = subprocess.Popen(
                [sys.executable, "-m", __name__, folder],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip
        quoted = shlex.quote(str(archive.path))
        os.environ[OPTIONS] = f"{_LOG} -Xshare:auto -XX:SharedArchiveFile={quoted}"
        try:
            yield archive
        finally:
            del os.environ[OPTIONS]
            # Its JVM ends when it does.
            maker.kill()
            maker.wait()


if __name__ == "__main__":
    Archive(Path(sys.argv[1])).make()
