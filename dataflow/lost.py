"""What is said of a worker that a flow has lost: real workers and simulated ones say the same."""

from __future__ import annotations

from schemas.errors import MeanderError

KILLED = "its process was killed, or crashed"


def lost(worker: str, cause: str) -> MeanderError:
    """The end of a flow without one of its workers, which is named with where it ran.

    >>> print(lost("worker 1", KILLED))
    worker 1: its process was killed, or crashed; start the flow anew: until checkpoints exist...
    """
    remedy = "start the flow anew: until checkpoints exist, it cannot go on without one of its"
    return MeanderError(worker, cause, f"{remedy} workers")
