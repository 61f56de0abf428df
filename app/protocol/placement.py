"""The Spark executor of a worker, and the placement that names where a worker must run.

Guarantees that a worker with a placement runs there or not at all. Spark takes the placement as a
preference, and drops it where the executor has ended. So the task compares the placement with the
executor that it finds itself in, and opens nothing elsewhere. Cost: 0.5 ms for each task.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.struct import FrozenStruct

LOCAL = "driver"
"""The id of the one executor of a master `local[N]`, as Spark names it."""


class ExecutorAddress(FrozenStruct, forbid_unknown_fields=True):
    """An address of an executor, as Spark names it.

    >>> print(ExecutorAddress("1", "spark-b"))
    executor 1 on host spark-b
    """

    id: str
    host: str

    def __str__(self) -> str:
        return f"executor {self.id} on host {self.host}"


class Placement(FrozenStruct, forbid_unknown_fields=True):
    """A placement that names the host of a worker, its executor, or both.

    >>> print(Placement(host="spark-b"), Placement(executor="1"), sep=", ")
    host spark-b, executor 1
    >>> Placement(host="spark-b").admits(ExecutorAddress("1", "spark-a"))
    False
    >>> Placement()
    Traceback (most recent call last):
    meander.schemas.errors.SetupError: a placement: it names neither host nor executor; name one.
    """

    host: str = ""
    executor: str = ""

    def __post_init__(self) -> None:
        """Raise SetupError for a placement that names nothing."""
        if not self.host and not self.executor:
            raise SetupError("a placement", "it names neither host nor executor", "name one")

    def __str__(self) -> str:
        if self.host and self.executor:
            return str(ExecutorAddress(self.executor, self.host))
        return f"executor {self.executor}" if self.executor else f"host {self.host}"

    def admits(self, executor: ExecutorAddress) -> bool:
        """Return whether a worker with this placement may run in an executor."""
        return self.host in ("", executor.host) and self.executor in ("", executor.id)


def expect_placed(name: str, placement: Placement | None) -> None:
    """Raise MeanderError unless this process is a task of an executor that a placement names."""
    if placement is None:
        return
    here = own_executor()
    if here is None:
        raise SetupError(
            name, f"it must run on {placement}, and this system does not tell it where it runs",
            "run the executors on Linux, or start it without a placement",
        )  # fmt: skip
    # A local master has one executor, which the driver has compared by Spark's own list.
    if here.id != LOCAL and not placement.admits(here):
        raise MeanderError(
            name, f"Spark started it in {here}, but it must run on {placement}",
            "see why that executor has ended, or name another one",
        )  # fmt: skip


def own_executor() -> ExecutorAddress | None:
    """Return the executor that this process is a task of; None where the system does not tell it.

    Spark does not pass it to Python. The JVM that has started this process has it as arguments.
    """
    found = map(executor_of, _commands(os.getpid()))
    return next((one for one in found if one is not None), None)


def executor_of(command: Sequence[str]) -> ExecutorAddress | None:
    """Return the executor that a command starts; None for any other command.

    >>> executor_of(["java", "CoarseX", "--executor-id", "1", "--hostname", "spark-b"])
    ExecutorAddress(id='1', host='spark-b')
    >>> print(executor_of(["python", "-m", "meander.app.worker.daemon"]))
    None
    """
    if "org.apache.spark.deploy.SparkSubmit" in command:
        return ExecutorAddress(LOCAL, os.environ.get("SPARK_LOCAL_IP", ""))
    options = dict(pairwise(command))
    if "--executor-id" not in options or "--hostname" not in options:
        return None
    return ExecutorAddress(options["--executor-id"], options["--hostname"])


def _commands(process: int) -> Iterator[list[str]]:
    """Yield the commands of the ancestors of a process; none on a system without `/proc`."""
    while process > 1:
        folder = Path(f"/proc/{process}")
        try:
            process = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            yield Path(f"/proc/{process}/cmdline").read_text(errors="replace").split("\0")
        except OSError:
            return
