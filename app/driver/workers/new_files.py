"""New files of a flow's code on their way to running workers.

Guarantees that a worker has a file before it hears of a version in it: the driver submits a change
of logic once all workers have acknowledged the files so far. Cost: one message per worker and set
of files.
"""

from __future__ import annotations

from collections.abc import Iterable

from meander.app.driver.workers.worker_handle import WorkerHandle
from meander.app.loading.flow_code import FlowCode
from meander.app.protocol.messages import AddFiles
from meander.connectors.links.links import CurveLinks


class NewFiles:
    """The new files of one flow, as its workers get them."""

    def __init__(self, links: CurveLinks, code: FlowCode) -> None:
        self._links, self._code = links, code

    def send(self, workers: Iterable[WorkerHandle]) -> None:
        """Send each worker the files that it has not been sent."""
        for worker in workers:
            if worker.files_sent < self._code.number:
                worker.files_sent = self._code.number
                message = AddFiles(number=self._code.number, files=self._code.added)
                self._links.send_message(worker.id, message.to_bytes())

    def reached(self, worker: WorkerHandle) -> bool:
        """Return whether a worker has all files."""
        return worker.files >= self._code.number
