"""When outboxes are empty for good: before a worker leaves, and before the flow ends.

Results in an outbox leave by a checkpoint. So a worker that has given its bins and partitions away
goes only once all that was to come to it has come, and a checkpoint that was begun after that has
been sent; and so does the flow that has come to its end. Guarantees that nothing comes to an outbox
that was found empty. Cost: a checkpoint for each who leaves, and one at the end.
"""

from __future__ import annotations

from meander.dataflow.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from meander.state.keys.ids import WorkerId


class OutboxDrain:
    """That of the outboxes of one life; without any, all are empty."""

    def __init__(self, checkpoints: CheckpointCoordinator, outboxes: bool) -> None:
        self._checkpoints, self._outboxes = checkpoints, outboxes
        self._leavers: dict[WorkerId, int] = {}
        """The last checkpoint that had been begun when all had come that was to come to each."""
        self._ended: int | None = None
        """The last that had been begun when the flow had come to its end."""

    def left(self, worker: WorkerId, come: bool) -> bool:
        """Whether nothing more comes to a leaver, as `come` says, and its outboxes are empty."""
        if not (come and self._outboxes):
            return come
        return self._sent_after(self._leavers.setdefault(worker, self._checkpoints.number))

    def end(self) -> None:
        """Nothing more comes to any outbox."""
        if self._outboxes and self._ended is None:
            self._ended = self._checkpoints.number

    @property
    def over(self) -> bool:
        """Whether nothing is in any outbox, nor will be."""
        return not self._outboxes or self._sent_after(self._ended)

    @property
    def waits(self) -> bool:
        """Whether a checkpoint is waited for."""
        waiting = [self._ended, *self._leavers.values()]
        return any(one is not None and not self._sent_after(one) for one in waiting)

    def _sent_after(self, number: int | None) -> bool:
        return number is not None and self._checkpoints.sent > number
