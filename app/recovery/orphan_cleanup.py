"""The sweep of one life: what earlier ones have left on the state and in-flight topics goes, as far
as nobody can name it any more (`state/checkpoint/orphans.py`).

Guarantees that the loop waits for nothing: a thread reads, at a pace that leaves the broker and the
machine to the flow. It reads what lay there before this life's beginning was written, so nothing of
a later life, whatever the clocks of hosts say. What is there to go back to is read behind that
beginning in the journal, so nothing of an earlier life can be added. What goes wrong, or ends with
the life, costs room only, and the next life's sweep makes up for it. Cost: reads both topics once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from meander.app.recovery.checkpoint_index import Known, kept
from meander.app.recovery.restart import journal, until
from meander.connectors.kafka.client import Settings
from meander.connectors.topics import checkpoints, tombstones
from meander.connectors.topics.topics import Names
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.checkpoint.orphans import Unnamed
from meander.state.keys.ids import ExecutionId

log = LineLogger(__name__)

PACE = 16 << 20
"""Bytes that are read in a second, at most;"""
RECORD = 4 << 10
"""what a small record counts, as it takes the loop's time too."""


class Sweep:
    """For the coordinator only; `before` is what the life has begun with, and `lying` how far each
    topic reached before it began, by partition."""

    def __init__(
        self,
        settings: Settings,
        names: Names,
        life: ExecutionId,
        before: Checkpoint | None,
        lying: Mapping[str, Sequence[int]],
    ) -> None:
        self._settings, self._names, self._life, self._before = settings, names, life, before
        self._lying = lying
        self._over = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sweep")

    def begin(self) -> None:
        """Once this life has begun, and nobody waits for what the topics hold."""
        self._thread.submit(self._sweep).add_done_callback(_told)

    def close(self) -> None:
        """Leave off."""
        self._over.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _sweep(self) -> None:
        try:
            unnamed = self._unnamed()
            for topic, ends in self._lying.items():
                spans = [range(end) for end in ends]
                tombstones.erase(self._settings, topic, spans, unnamed.goes, self._paced)
        except MeanderError as error:
            log.warning("orphan_cleanup_failed", reason=str(error))

    def _unnamed(self) -> Unnamed:
        known = Known.by(until(journal(self._settings, self._names.decisions), self._life))
        with checkpoints.reading(self._settings, self._names) as there:
            found = kept(there, known)
        for error in found.unreadable.values():
            # What it names must stay, and nobody here knows what that is.
            raise error
        before = [] if self._before is None else [self._before]
        return Unnamed.of([*found.found.values(), *before])

    def _paced(self, size: int) -> bool:
        return self._over.wait(max(size, RECORD) / PACE)


def _told(done: Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.error("orphan_cleanup_failed", exc_info=error)
