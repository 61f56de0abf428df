"""A Spark cluster on this machine: a standalone master, and workers that start executors."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark

from meander.connectors.local_broker.java import java
from tests.support.kafka.topics import until

HOME = Path(pyspark.__file__).parent
STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
REGISTERED = "Successfully registered with master"
EXECUTOR = "CoarseGrainedExecutorBackend"


@contextlib.contextmanager
def cluster(folder: Path, workers: int, cores: int = 1) -> Iterator[str]:
    """Its master's address while the block lasts; each worker has so many cores."""
    with ExitStack() as stack:
        master = stack.enter_context(_daemon(folder, "master.Master", "--port", "0"))
        until(lambda: STARTED.search(master.read_text()) is not None, "the master runs")
        found = STARTED.search(master.read_text())
        assert found is not None
        some = ("--cores", str(cores), "--memory", "1g", "--work-dir", str(folder / "work"))
        for _ in range(workers):
            said = stack.enter_context(_daemon(folder, "worker.Worker", *some, found[1]))
            until(lambda: REGISTERED in said.read_text(), "a worker has registered")  # noqa: B023
        yield found[1]


def executor_of(process: int) -> int:
    """The JVM that a worker descends from."""
    while EXECUTOR.encode() not in Path(f"/proc/{process}/cmdline").read_bytes():
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        assert process > 1, "no executor's process"
    return process


@contextlib.contextmanager
def _daemon(folder: Path, name: str, *words: str) -> Iterator[Path]:
    """One of Spark's own processes while the block lasts, and what it says."""
    said = folder / f"{name}-{len(list(folder.iterdir()))}.log"
    command = [
        java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m",
        "-cp", f"{HOME / 'jars'}/*", f"org.apache.spark.deploy.{name}",
        "--host", "127.0.0.1", "--webui-port", "0", *words,
    ]  # fmt: skip
    own = {
        "SPARK_HOME": str(HOME), "SPARK_SCALA_VERSION": "2.13", "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    with (
        said.open("w") as file,
        subprocess.Popen(command, stderr=file, env=os.environ | own) as process,
    ):
        try:
            yield said
        finally:
            process.kill()
