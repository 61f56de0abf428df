"""The survivors of a failed execution: workers that wait for the next execution.

Guarantees that each survivor either joins the next execution, once, or exits. Until then it stays
on the links of the failed execution. Only `end` and `close` block, for a bounded time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from meander.app.driver.workers.spark_launcher import SparkTask
from meander.app.driver.workers.worker_handle import WorkerHandle
from meander.app.protocol.launch_arguments import Arguments
from meander.app.protocol.messages import Exit, WorkerHeartbeat
from meander.connectors.links.links import CurveLinks, member_name
from meander.schemas.log_lines import LineLogger
from meander.state.keys.ids import WorkerId

log = LineLogger(__name__)

EXIT_WITHIN = 0.5
"""Seconds for a task to end after `Exit`, and again after Spark was told to kill it."""


class Survivors:
    """A set of workers that survived one execution, and the links of that execution."""

    def __init__(self, links: CurveLinks, handles: Iterable[WorkerHandle]) -> None:
        self._links = links
        self._handles, self._closed = {handle.id: handle for handle in handles}, False

    def __len__(self) -> int:
        return len(self._handles)

    def reuse(
        self, members: Sequence[WorkerId], arguments: Arguments, ended: Callable[[], None]
    ) -> SparkTask | None:
        """Let a survivor continue as the worker of these arguments; return its task, if one does.

        The survivor is the one that held this worker's place among the `members` of the checkpoint,
        because it has the states of that place. `ended` is called when its task ends.
        """
        rank = arguments.worker
        was = members[rank] if rank < len(members) else WorkerId(rank)
        handle = self._handles.pop(was, None)
        if handle is None or handle.task.ended is not None:
            return None
        self._links.send_message(handle.id, arguments.restart().to_bytes())
        handle.task.continue_as(member_name(WorkerId(arguments.worker)), ended)
        return handle.task

    def send_heartbeats(self) -> None:
        """Keep the leases of all survivors."""
        for worker in self._handles:
            self._links.send_message(worker, WorkerHeartbeat().to_bytes())

    def close(self) -> None:
        """End all survivors that no execution reuses. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        handles = list(self._handles.values())
        self._handles.clear()
        for handle in handles:
            self._links.send_message(handle.id, Exit().to_bytes())
        end(handles)
        self._links.close()


def end(handles: Iterable[WorkerHandle]) -> None:
    """Wait for the tasks of workers that were told to exit; let Spark kill the others."""
    deadline = time.monotonic() + EXIT_WITHIN
    left = [handle for handle in handles if not handle.task.join(deadline - time.monotonic())]
    for handle in left:
        log.debug("task_cancelled", worker=handle.id)
        # It survived the failure, so its end is not the cause.
        handle.end_reported = True
        handle.task.cancel()
    deadline = time.monotonic() + EXIT_WITHIN
    for handle in left:
        handle.task.join(deadline - time.monotonic())
