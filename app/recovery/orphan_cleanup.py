"""The orphan cleanup of an execution: delete records that no checkpoint names any more.

Earlier executions left such orphans on the state and in-flight topics (`state/checkpoint/orphans`).
Guarantees that the driver's loop never waits: a thread reads at a limited pace. It reads only
records older than the start of this execution, so none of a later one, whatever clocks say. It
reads the usable checkpoints up to that start in the decision log, so no earlier execution can add
one. An error or the end of the execution costs only space, which the next cleanup frees. Cost:
reads both topics once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from meander.app.recovery.checkpoint_index import CheckpointIndex, retained_checkpoints
from meander.app.recovery.restart import read_decisions, up_to_start
from meander.connectors.kafka.client import Settings
from meander.connectors.topics import checkpoints, tombstones
from meander.connectors.topics.internal_topics import TopicNames
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.checkpoint.orphans import Orphans
from meander.state.keys.ids import ExecutionId

log = LineLogger(__name__)

PACE = 16 << 20
"""The limit of bytes that are read per second."""
RECORD = 4 << 10
"""The least size at which a record counts, because each record also costs time of the loop."""


class OrphanCleanup:
    """A cleanup of the driver: one thread that reads both topics and deletes orphans.

    `before` is the checkpoint from which the execution started. `ends` maps each topic to the end
    of each partition before the execution started.
    """

    def __init__(
        self,
        settings: Settings,
        names: TopicNames,
        execution: ExecutionId,
        before: Checkpoint | None,
        ends: Mapping[str, Sequence[int]],
    ) -> None:
        self._settings, self._names = settings, names
        self._execution, self._before, self._ends = execution, before, ends
        self._closed = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="orphan-cleanup")

    def start(self) -> None:
        """Start the thread, once the flow no longer waits for the topics."""
        self._thread.submit(self._run).add_done_callback(_log_error)

    def close(self) -> None:
        """Stop the thread at its next record."""
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        try:
            orphans = self._orphans()
            for topic, ends in self._ends.items():
                spans = [range(end) for end in ends]
                tombstones.delete_matching(
                    self._settings, topic, spans, orphans.includes, self._paced
                )
        except MeanderError as error:
            log.warning("orphan_cleanup_failed", reason=str(error))

    def _orphans(self) -> Orphans:
        decided = read_decisions(self._settings, self._names.decisions)
        index = CheckpointIndex.of(up_to_start(decided, self._execution))
        with checkpoints.open_checkpoints(self._settings, self._names) as reader:
            found = retained_checkpoints(reader, index)
        for error in found.unreadable.values():
            # The records that an unreadable checkpoint names are unknown, and must stay.
            raise error
        before = [] if self._before is None else [self._before]
        return Orphans.of([*found.found.values(), *before])

    def _paced(self, size: int) -> bool:
        return self._closed.wait(max(size, RECORD) / PACE)


def _log_error(done: Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.error("orphan_cleanup_failed", exc_info=error)
