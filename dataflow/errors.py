"""The error for a lost worker. Real and simulated workers share its words."""

from __future__ import annotations

from meander.schemas.errors import MeanderError

KILLED = "its process was killed, or crashed"


class WorkerLost(MeanderError):
    """An error that a flow raises where a worker is lost: it continues from a checkpoint alone."""


def lost(worker: str, cause: str) -> WorkerLost:
    """Return the error that ends an execution. `worker` names the worker and its host.

    >>> print(lost("worker 1", KILLED))
    worker 1: its process was killed, or crashed; run the flow again: it has no checkpoint to go...
    """
    remedy = "run the flow again: it has no checkpoint to go on from, so it starts anew"
    return WorkerLost(worker, cause, remedy)
