"""Flink SQL in one JVM: a cluster of one task manager with two slots, which this process drives.

Guarantees that a query counts as started once all its tasks run, by the times that Flink notes.
The JVM ends with this process. Its heap holds the state; as in Meander by default, no checkpoints
are taken. Cost: 3 GiB of heap.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from benchmarks.nexmark import engines
from benchmarks.nexmark.flink_queries import statements
from benchmarks.open_loop import Lost
from benchmarks.running import WORKERS
from meander.connectors.local_broker.broker import HOST, free_port
from meander.connectors.local_broker.java import java

OPENED = (
    "lang", "lang.reflect", "net", "io", "nio", "text", "time", "util", "util.concurrent",
    "util.concurrent.atomic", "util.concurrent.locks",
)  # fmt: skip
"""Packages of java.base that Flink reads by reflection."""
HEAP = "-Xmx3g"
PUBLISHED = {
    "table.exec.mini-batch.enabled": "true", "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "5000",
}  # fmt: skip
"""What Nexmark publishes for Flink's throughput."""
PROMPT = {"execution.buffer-timeout.interval": "1 ms"}
"""Where latency counts, a buffer leaves before it is full; by default within 100 ms."""
LOOK = 0.01
REFRESH = "50"
"""Milliseconds after which Flink's interface looks at a job again; by default 3,000."""
PATIENCE = 300.0
"""Seconds in which a bounded query has to end."""
WITHIN = 120.0
"""Seconds in which the tasks of a query have to run."""


@dataclass(frozen=True, slots=True)
class Job:
    """A query that runs; `began` is when its tasks did, seconds since 1970."""

    began: float
    _client: Any
    _ended: Any
    """A future of its end. A cluster that has ended makes no further one."""

    def ended(self) -> None:
        """Return once a bounded query has ended. Raises Lost where it takes too long."""
        deadline = time.monotonic() + PATIENCE
        while not self._ended.isDone():
            if time.monotonic() > deadline:
                raise Lost(f"a query of Flink takes more than {PATIENCE:g} s")
            time.sleep(LOOK)
        self._ended.get()

    def cancel(self) -> None:
        """End a query."""
        self._client.cancel().get()


class Flink:
    """A JVM in which queries run, one at a time."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._gateway = gateway

    def run(
        self, query: str, bootstrap: str, prefix: str, sink: str, windows: tuple[float, float],
        *, bounded: bool,
    ) -> Job:  # fmt: skip
        """Start a query. A bounded one reads what the topics hold now."""
        port = free_port()
        environment = self._environment(port, PUBLISHED if bounded else PROMPT)
        *tables, insert = statements(query, bootstrap, prefix, sink, *windows, bounded=bounded)
        for statement in tables:
            environment.executeSql(statement)
        client = environment.executeSql(insert).getJobClient().get()
        ended = client.getJobExecutionResult()
        job = f"http://{HOST}:{port}/jobs/{client.getJobID().toString()}"
        return Job(_await_tasks(job, ended.isDone), client, ended)

    def _environment(self, port: int, settings: dict[str, str]) -> Any:  # noqa: ANN401 - of Java
        flink = self._gateway.jvm.org.apache.flink
        configuration = flink.configuration.Configuration()
        fixed = {
            "execution.target": "local",
            "parallelism.default": str(WORKERS), "taskmanager.numberOfTaskSlots": str(WORKERS),
            "pipeline.object-reuse": "true", "table.local-time-zone": "UTC",
            "rest.bind-port": str(port), "rest.port": str(port), "web.refresh-interval": REFRESH,
        }  # fmt: skip
        for name, value in (fixed | settings).items():
            configuration.setString(name, value)
        settings_of = flink.table.api.EnvironmentSettings.newInstance().inStreamingMode()
        made = settings_of.withConfiguration(configuration).build()
        return flink.table.api.TableEnvironment.create(made)


@contextmanager
def running(log: Path = Path(os.devnull)) -> Iterator[Flink]:
    """A JVM for the block. Raises SetupError where Flink cannot be fetched."""
    classes = os.pathsep.join(map(str, engines.flink()))
    opens = [
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (*(f"java.{one}" for one in OPENED), "sun.nio.ch")
    ]
    with log.open("w") as output:
        port = launch_gateway(
            classpath=classes, javaopts=[HEAP, "-Duser.timezone=UTC", *opens], die_on_exit=True,
            redirect_stdout=output, redirect_stderr=output, java_path=java(),
        )  # fmt: skip
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        try:
            yield Flink(gateway)
        finally:
            gateway.shutdown()
            if gateway.java_process is not None:
                gateway.java_process.wait()


def _await_tasks(job: str, ended: Callable[[], bool]) -> float:
    """Return when all tasks of a job ran, seconds since 1970. A task may have ended meanwhile, as
    the REST interface starts after the job."""
    deadline, tasks = time.monotonic() + WITHIN, list[Any]()
    while not ended():
        # The interface ends before the job reports its end.
        with suppress(OSError, HTTPException):
            tasks = [
                task
                for vertex in _get(job)["vertices"]
                for task in _get(f"{job}/vertices/{vertex['id']}")["subtasks"]
            ]
            if tasks and all(task["status"] in {"RUNNING", "FINISHED"} for task in tasks):
                return max(map(_ran_at, tasks)) / 1000
        assert time.monotonic() < deadline, f"its tasks do not run: {tasks}"
        time.sleep(LOOK)
    raise Lost("a query of Flink has ended before its tasks could be seen: drain more events")


def _get(address: str) -> Any:  # noqa: ANN401 - of JSON
    with urlopen(address) as answer:
        return json.load(answer)


def _ran_at(task: dict[str, Any]) -> float:
    """Return when a task began to run, milliseconds since 1970. Its start is when Flink deployed
    it.

    >>> _ran_at({"start-time": 1000, "status-duration": {"DEPLOYING": 8, "INITIALIZING": 60}})
    1068
    """
    lasted: dict[str, float] = task["status-duration"]
    first: float = task["start-time"]
    return first + sum(max(0, lasted.get(one, 0)) for one in ("DEPLOYING", "INITIALIZING"))
