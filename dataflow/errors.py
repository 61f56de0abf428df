"""Errors of workers that the engine or the driver handles."""

from __future__ import annotations

from meander.schemas.errors import MeanderError

KILLED = "its process was killed, or crashed"


class WorkerLost(MeanderError):
    """An error that ends a flow without a checkpoint where a worker is lost."""


class WritesDropped(Exception):
    """An error of a writer that has dropped all undelivered batches. Its sink writes them again."""


def worker_lost(worker: str, cause: str) -> WorkerLost:
    """Return the error that ends an execution. `worker` names the worker and its host.

    >>> print(worker_lost("worker 1", KILLED))
    worker 1: its process was killed, or crashed; run the flow again: without a checkpoint it...
    """
    remedy = "run the flow again: without a checkpoint it starts from scratch"
    return WorkerLost(worker, cause, remedy)
