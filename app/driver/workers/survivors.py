"""The workers that outlive another: what becomes of them between two lives of their flow.

Guarantees that each goes on once at most, as one of the next life's, or its process ends. They
stay on the links of the life that is over until they have been told either. Nothing here blocks,
but for `end` and `close`, which are bounded.
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

LEAVE = 0.5
"""Seconds that a task gets to end after `bye`, and again after Spark was told to kill it."""


class Survivors:
    """Those of one life, and its links."""

    def __init__(self, links: CurveLinks, hands: Iterable[WorkerHandle]) -> None:
        self._links = links
        self._hands, self._closed = {hand.id: hand for hand in hands}, False

    def __len__(self) -> int:
        return len(self._hands)

    def call(
        self, members: Sequence[WorkerId], arguments: Arguments, ended: Callable[[], None]
    ) -> SparkTask | None:
        """Have the one go on that is to be this worker, as its place among the `members` of the
        checkpoint says: so it is given what it has had. Its task, or None where there is none;
        `ended` is called at its end."""
        rank = arguments.worker
        was = members[rank] if rank < len(members) else WorkerId(rank)
        hand = self._hands.pop(was, None)
        if hand is None or hand.task.ended is not None:
            return None
        self._links.tell(hand.id, arguments.again().to_bytes())
        hand.task.outlives(member_name(WorkerId(arguments.worker)), ended)
        return hand.task

    def beat(self) -> None:
        """Have them wait on."""
        for worker in self._hands:
            self._links.tell(worker, WorkerHeartbeat().to_bytes())

    def close(self) -> None:
        """End all who are not wanted any more; nothing, the second time."""
        if self._closed:
            return
        self._closed = True
        hands = list(self._hands.values())
        self._hands.clear()
        for hand in hands:
            self._links.tell(hand.id, Exit().to_bytes())
        end(hands)
        self._links.close()


def end(hands: Iterable[WorkerHandle]) -> None:
    """See that the tasks of some workers end that have been told so."""
    deadline = time.monotonic() + LEAVE
    left = [hand for hand in hands if not hand.task.join(deadline - time.monotonic())]
    for hand in left:
        log.debug("task_cancelled", worker=hand.id)
        # It lived to see the failure, so its end is no cause of that.
        hand.told = True
        hand.task.cancel()
    deadline = time.monotonic() + LEAVE
    for hand in left:
        hand.task.join(deadline - time.monotonic())
