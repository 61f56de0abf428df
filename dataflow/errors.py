"""What is said of a worker that a flow has lost: real workers and simulated ones say the same."""

from __future__ import annotations

from meander.schemas.errors import MeanderError

KILLED = "its process was killed, or crashed"


class WorkerLost(MeanderError):
    """A flow cannot go on without one of its workers, but from a checkpoint."""


def lost(worker: str, cause: str) -> WorkerLost:
    """The end of a life of a flow, by a worker that is named with where it ran.

    >>> print(lost("worker 1", KILLED))
    worker 1: its process was killed, or crashed; run the flow again: it has no checkpoint to go...
    """
    remedy = "run the flow again: it has no checkpoint to go on from, so it starts anew"
    return WorkerLost(worker, cause, remedy)
