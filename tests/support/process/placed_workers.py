"""Workers with placements on a Spark cluster of two hosts, in a process of its own.

Only one Spark context fits into a process. `python -m` with the master and the broker's
address prints what came of each worker as one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from pyspark import SparkContext

from meander.app.driver.workers.placement import executors, expect_free_slots
from meander.app.driver.workers.spark_launcher import SparkTask, spark_context
from meander.app.loading.loader import SourceFiles
from meander.app.protocol.launch_arguments import Arguments
from meander.app.protocol.registration import RegistrationServer
from meander.connectors.links.links import CurveKeys, CurveLinks, member_name
from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.schemas.errors import SetupError
from meander.state.keys.ids import COORDINATOR, WorkerId
from tests.support.kafka.topics import PATIENCE, until

LOCAL, HEARTBEAT_TIMEOUT = "127.0.0.1", 60.0
NEVER_LAUNCHED = WorkerId(99)
"""A worker that the driver expects, so that the others wait for it once they have registered."""


class PlacedWorkers:
    """The workers of one flow that have registered, or have failed."""

    def __init__(self, spark: SparkContext, bootstrap: str, server: RegistrationServer) -> None:
        self.spark, self._bootstrap, self._server = spark, bootstrap, server
        self.tasks: dict[WorkerId, SparkTask] = {}
        server.expect(NEVER_LAUNCHED)

    def start(self, number: int, task: Resources, worker: Resources) -> str:
        """Start a worker; where it runs, or the error with which it has ended.

        Spark gets the placement of the task, and the worker expects its own.
        """
        id = WorkerId(number)
        started = self.tasks[id] = SparkTask(
            self.spark, f"test-{id}", member_name(id), self._arguments(id, worker).to_bytes(),
            lambda: None, task,
        )  # fmt: skip
        started.start()
        until(lambda: self._has_answered(id), f"worker {id} has registered or ended")
        if started.ended is None:
            return str(self.occupants()[member_name(id)])
        self._server.remove(id, "it has ended")
        return str(started.ended.error)

    def occupants(self) -> dict[str, Resources]:
        """The executors of the registered workers."""
        found = self._server.registrations.values()
        at = {member_name(one.worker): one.register.executor for one in found}
        return {name: executor for name, executor in at.items() if executor is not None}

    def refusal(self, placements: Mapping[str, Resources]) -> str:
        """The error for workers that were not started yet; '' where all find a slot."""
        try:
            expect_free_slots(placements, executors(self.spark), self.occupants())
        except SetupError as error:
            return str(error)
        return ""

    def running(self) -> list[int]:
        """The workers whose tasks have not ended."""
        return sorted(id for id, task in self.tasks.items() if task.ended is None)

    def end(self) -> list[str]:
        """End all workers by a rejection; the errors of their tasks."""
        last = self.running()
        self._server.reject_all("the test is over")
        ended = [self.tasks[WorkerId(id)] for id in last]
        assert all(task.join(PATIENCE) for task in ended)
        return [str(task.ended and task.ended.error) for task in ended]

    def _has_answered(self, id: WorkerId) -> bool:
        self._server.poll()
        return self.tasks[id].ended is not None or id in self._server.registrations

    def _arguments(self, id: WorkerId, resources: Resources) -> Arguments:
        token, source = self._server.expect(id), SourceFiles("flow.py", {})
        return Arguments(
            flow="placed", execution=1, worker=id, joins=False, workers=6, token=token.token,
            server=token.address, server_key=token.public, entry=source.entry, files=source.files,
            environ={}, kafka={"bootstrap.servers": self._bootstrap}, prefix="placed.",
            until_end=False, start="earliest", topics={}, sources=(), skip_lost=False,
            checkpoint=None, heartbeat_timeout=HEARTBEAT_TIMEOUT, startup_timeout=PATIENCE,
            log_level=30, resources=resources,
        )  # fmt: skip


@contextmanager
def opened(spark: SparkContext, bootstrap: str) -> Iterator[PlacedWorkers]:
    """A flow without workers yet."""
    with (
        closing(CurveLinks(COORDINATOR, CurveKeys.generate(), LOCAL, HEARTBEAT_TIMEOUT)) as links,
        closing(RegistrationServer(LOCAL, links, HEARTBEAT_TIMEOUT)) as server,
    ):
        yield PlacedWorkers(spark, bootstrap, server)


def run(spark: SparkContext, bootstrap: str) -> dict[str, object]:
    """Start one worker after the other on two hosts of two slots each."""
    until(lambda: len(executors(spark)) == 2, "both executors have registered")
    first, second = executors(spark)
    with opened(spark, bootstrap) as workers:
        host, executor = Resources(host=second.host), Resources(executor=second.id)
        other, nowhere = Resources(host=first.host), Resources(host="192.0.2.1")
        found: dict[str, object] = {
            "executors": [str(first.place), str(second.place)],
            "slots": [first.slots, second.slots],
            "on the host": workers.start(0, host, host),
            "in the executor": workers.start(1, executor, executor),
            "beyond its slots": workers.start(2, host, host),
            "on an unknown host": workers.start(3, nowhere, nowhere),
            "in an unknown executor": workers.start(4, Resources(executor="77"), ANYWHERE),
            "elsewhere": workers.start(5, other, host),
            "anywhere": workers.start(6, ANYWHERE, ANYWHERE),
        }
        names = ("worker 7", "worker 8")
        found |= {
            "refused": workers.refusal({names[0]: host}),
            "refused together": workers.refusal(dict.fromkeys(names, other)),
            "granted": workers.refusal({names[0]: other}),
            "listed": [one.running for one in executors(spark)],
            "running": workers.running(),
            "ends": workers.end(),
        }
        return found


if __name__ == "__main__":
    master, bootstrap = sys.argv[1:]
    with spark_context(master, "placed workers") as context:
        print(json.dumps(run(context, bootstrap)))
