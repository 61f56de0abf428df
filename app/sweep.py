"""The sweep of one life: what earlier ones have left on the state and in-flight topics goes, as far
as nobody can name it any more (`state/unnamed.py`).

Guarantees that the loop waits for nothing: a thread reads, at a pace that leaves the broker and the
machine to the flow. What is there to go back to is read behind this life's beginning in the
journal, so nothing of an earlier life can be added. What goes wrong, or ends with the life, costs
room only, and the next life's sweep makes up for it. Cost: both topics are read once a life.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from app.lives import journal, until
from app.savepoints import Known, kept
from connectors import checkpoints, leftovers
from connectors.client import Settings
from connectors.topics import STATE_PARTITIONS, Names
from schemas.errors import MeanderError
from state.checkpoint import Checkpoint
from state.ids import Incarnation
from state.unnamed import Unnamed

log = logging.getLogger(__name__)

PACE = 16 << 20
"""Bytes that are read in a second, at most;"""
RECORD = 4 << 10
"""what a small record counts, as it takes the loop's time too."""


class Sweep:
    """For the coordinator only; `before` is what the life has begun with."""

    def __init__(
        self, settings: Settings, names: Names, life: Incarnation, before: Checkpoint | None
    ) -> None:
        self._settings, self._names, self._life, self._before = settings, names, life, before
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
        since = [0] * STATE_PARTITIONS
        try:
            unnamed = self._unnamed()
            for topic in (self._names.in_flight, self._names.state):
                leftovers.erase(self._settings, topic, since, unnamed.goes, self._paced)
        except MeanderError as error:
            log.warning("what earlier lives have left on the topics stays for now: %s", error)

    def _unnamed(self) -> Unnamed:
        known = Known.by(until(journal(self._settings, self._names.decisions), self._life))
        with checkpoints.reading(self._settings, self._names) as there:
            found = kept(there, known)
        for error in found.unreadable.values():
            # What it names must stay, and nobody here knows what that is.
            raise error
        before = [] if self._before is None else [self._before]
        return Unnamed.of(self._life, [*found.found.values(), *before])

    def _paced(self, size: int) -> bool:
        return self._over.wait(max(size, RECORD) / PACE)


def _told(done: Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.error("what earlier lives have left could not be swept", exc_info=error)
