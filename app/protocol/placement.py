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

from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.schemas.errors import MeanderError, SetupError

LOCAL = "driver"
"""The id of the one executor of a master `local[N]`, as Spark names it."""


def expect_placed(name: str, resources: Resources) -> None:
    """Raise MeanderError unless this process is a task of an executor where a worker may run."""
    if resources.place == ANYWHERE:
        return
    here = own_executor()
    if here is None:
        raise SetupError(
            name,
            f"it must run on {resources.place}, and this system does not tell it where it runs",
            "run the executors on Linux, or start it without a placement",
        )  # fmt: skip
    # A local master has one executor, which the driver has compared by Spark's own list.
    if here.executor != LOCAL and not resources.admits(here):
        raise MeanderError(
            name, f"Spark started it in {here}, but it must run on {resources.place}",
            "see why that executor has ended, or name another one",
        )  # fmt: skip


def own_executor() -> Resources | None:
    """Return the executor that this process is a task of; None where the system does not tell it.

    Spark does not pass it to Python. The JVM that has started this process has it as arguments.
    """
    found = map(executor_of, _commands(os.getpid()))
    return next((one for one in found if one is not None), None)


def executor_of(command: Sequence[str]) -> Resources | None:
    """Return the executor that a command starts; None for any other command.

    >>> print(executor_of(["java", "CoarseX", "--executor-id", "1", "--hostname", "spark-b"]))
    executor 1 on host spark-b
    >>> print(executor_of(["python", "-m", "meander.app.worker.daemon"]))
    None
    """
    if "org.apache.spark.deploy.SparkSubmit" in command:
        return Resources(os.environ.get("SPARK_LOCAL_IP", ""), LOCAL)
    options = dict(pairwise(command))
    if "--executor-id" not in options or "--hostname" not in options:
        return None
    return Resources(options["--hostname"], options["--executor-id"])


def _commands(process: int) -> Iterator[list[str]]:
    """Yield the commands of the ancestors of a process; none on a system without `/proc`."""
    while process > 1:
        folder = Path(f"/proc/{process}")
        try:
            process = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            yield Path(f"/proc/{process}/cmdline").read_text(errors="replace").split("\0")
        except OSError:
            return
