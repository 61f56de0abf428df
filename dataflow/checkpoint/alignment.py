"""The alignment of one worker before a checkpoint with few bytes in flight.

Its sources pause and report how far they have sent. The coordinator names the furthest time of any
source as the limit. All sources send up to the limit and nothing later, so earlier records drain.
Guarantees that the unpassed bytes of this worker are within the bound when it reports so: they can
only become fewer. No link blocks: waiting records stay in the log. Cost: two frames and two reports
per worker.
"""

from __future__ import annotations

from collections.abc import Collection

from meander.dataflow.backpressure.inflight import InFlightBytes
from meander.dataflow.control.reports import Aligned, SendReport, SourcesPaused
from meander.dataflow.operators.source.operator import SourceOperator
from meander.dataflow.wire import PauseFrame
from meander.state.times.time import MIN_TIME


class Alignment:
    """An alignment of the sources of one worker."""

    def __init__(
        self, sources: Collection[SourceOperator], inflight: InFlightBytes, report: SendReport
    ) -> None:
        self._sources, self._inflight, self._report = sources, inflight, report
        self._awaited: PauseFrame | None = None

    @property
    def busy(self) -> bool:
        """Whether the worker waits for bytes in flight to drain."""
        return self._awaited is not None

    def receive(self, frame: PauseFrame) -> None:
        """Handle a pause of the coordinator."""
        furthest = max((source.furthest for source in self._sources), default=MIN_TIME)
        limit = furthest if frame.limit is None else frame.limit
        for source in self._sources:
            source.pause_after(limit)
        if frame.limit is None:
            self._report(SourcesPaused(frame.checkpoint, furthest))
        else:
            self._awaited = frame

    def step(self) -> None:
        """Report once few enough bytes are in flight."""
        if self._awaited is not None and self._aligned(self._awaited):
            self._report(Aligned(self._awaited.checkpoint))
            self._awaited = None

    def release(self) -> None:
        """Let the sources continue after a freeze or a cancelled checkpoint."""
        self._awaited = None
        for source in self._sources:
            source.pause_after(None)

    def _aligned(self, frame: PauseFrame) -> bool:
        assert frame.limit is not None, "the frame has a limit"
        left = self._inflight.unpassed
        sent = all(source.sent_up_to(frame.limit) for source in self._sources)
        few = bool(frame.max_bytes) and left <= frame.max_bytes
        return (sent and few) or all(source.passed(frame.limit) for source in self._sources)
