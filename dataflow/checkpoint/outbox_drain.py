"""The outbox drain: it empties all outboxes before a worker leaves and before the flow ends.

Results leave an outbox by a checkpoint. A worker without bins and partitions therefore exits in two
steps. First all its remaining records arrive; then a checkpoint that started afterwards has
committed the outbox contents. The end of a flow works likewise. Guarantees that no result enters an
outbox that was found empty. Cost: one checkpoint per leaving worker, and one at the end.
"""

from __future__ import annotations

from meander.dataflow.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from meander.state.keys.ids import WorkerId


class OutboxDrain:
    """A drain of all outboxes of one execution."""

    def __init__(self, checkpoints: CheckpointCoordinator, outboxes: bool) -> None:
        self._checkpoints, self._outboxes = checkpoints, outboxes
        self._leaving: dict[WorkerId, int] = {}
        """The last checkpoint that had started when all records of a leaving worker had arrived."""
        self._ended: int | None = None
        """The last checkpoint that had started when the flow ended."""

    def is_drained(self, worker: WorkerId, arrived: bool) -> bool:
        """Return whether a leaving worker's outboxes are empty; `arrived` states whether all its
        records came."""
        if not (arrived and self._outboxes):
            return arrived
        return self._sent_after(self._leaving.setdefault(worker, self._checkpoints.number))

    def end(self) -> None:
        """Note that no more results enter any outbox."""
        if self._outboxes and self._ended is None:
            self._ended = self._checkpoints.number

    @property
    def over(self) -> bool:
        """Whether all outboxes are empty for good."""
        return not self._outboxes or self._sent_after(self._ended)

    @property
    def awaits_checkpoint(self) -> bool:
        """Whether the drain waits for a checkpoint."""
        waiting = [self._ended, *self._leaving.values()]
        return any(one is not None and not self._sent_after(one) for one in waiting)

    def _sent_after(self, number: int | None) -> bool:
        return number is not None and self._checkpoints.sent > number
