"""A worker's part in what comes before a freeze, where less is to be in flight.

Its sources stop, and say how far they have sent. When the coordinator says how far any source has,
all send up to there, and nothing later; so what is before drains, and nothing else comes.
Guarantees that what this worker has read and the sinks have not passed is within the bound when it
says so: it can only become less. No link is blocked: what has to wait lies in the log. Cost: two
frames and two reports per worker.
"""

from __future__ import annotations

from collections.abc import Collection

from meander.dataflow.backpressure.inflight import Inflight
from meander.dataflow.control.reports import Aligned, SendReport, SourcesPaused
from meander.dataflow.operators.source.operator import SourceOperator
from meander.dataflow.wire import PauseFrame
from meander.state.times.time import MIN_TIME


class Alignment:
    """That of one worker."""

    def __init__(
        self, sources: Collection[SourceOperator], inflight: Inflight, report: SendReport
    ) -> None:
        self._sources, self._inflight, self._report = sources, inflight, report
        self._waits: PauseFrame | None = None

    @property
    def busy(self) -> bool:
        """Whether it is waited for that less is in flight."""
        return self._waits is not None

    def hear(self, frame: PauseFrame) -> None:
        """The coordinator's word."""
        furthest = max((source.furthest for source in self._sources), default=MIN_TIME)
        limit = furthest if frame.limit is None else frame.limit
        for source in self._sources:
            source.hold(limit)
        if frame.limit is None:
            self._report(SourcesPaused(frame.checkpoint, furthest))
        else:
            self._waits = frame

    def step(self) -> None:
        """See whether as little as may be is in flight."""
        if self._waits is not None and self._aligned(self._waits):
            self._report(Aligned(self._waits.checkpoint))
            self._waits = None

    def release(self) -> None:
        """All has been frozen, or it has been given up: sources go on."""
        self._waits = None
        for source in self._sources:
            source.hold(None)

    def _aligned(self, frame: PauseFrame) -> bool:
        assert frame.limit is not None, "it says how far"
        left = self._inflight.unpassed
        sent = all(source.sent_up_to(frame.limit) for source in self._sources)
        few = bool(frame.most) and left <= frame.most
        return (sent and few) or all(source.passed(frame.limit) for source in self._sources)
