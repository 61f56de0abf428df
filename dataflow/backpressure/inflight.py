"""What sources have read and not yet seen passed (I6): it bounds what they read and send.

A source stops reading when the bytes read but not yet passed by the sinks' probe exceed the bound.
A partition that alone holds back the flow's frontier may go on up to twice the bound, as nothing
drains without it. Where no bound is asked for, a partition also stops sending when as much of it is
in the flow as the sinks pass in half a second: more makes nothing faster, and each checkpoint would
have to write it. What a partition may send whatever its times (`room`) is bounded by bytes as well,
so that a sparse history is as quick as a dense one. Cost: one entry per batch sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from meander.dataflow.interfaces import Partition, SourceReader
from meander.dataflow.metrics.histogram import Histogram
from meander.state.times.antichain import Antichain

MOST: Final = 64 << 20
"""Bytes that may have been read and not passed, where no bound is asked for."""
AHEAD: Final = 0.5
"""Seconds of what the sinks pass that may have been sent then, and not passed."""
LEAST: Final = 256 << 10
"""Bytes of each partition that this is at least, and that may be far ahead of the others."""
SHARE: Final = 8
"""By how much less those far ahead are than the bytes of the bound."""
ROW: Final = 32
"""Bytes that a record counts besides its own, for its time, origin and place."""
WINDOW: Final = 0.25
"""Seconds over which it is measured how much the sinks pass."""
WINDOWS: Final = 8
"""Of which the best counts: what stands still for a moment is not slow."""


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch that has been sent: the time of its last record, and what its passing frees."""

    time: int
    size: int
    """Bytes on the topic."""
    rows: int
    reader: SourceReader
    partition: Partition
    next_offset: int
    read_at: float
    delays: Histogram | None
    """Takes how long it was from `read_at` to its passing; None where more of its chunk comes."""


class PartitionInFlight:
    """What has been sent of one partition and not passed, and how much of it may be."""

    def __init__(self) -> None:
        self.sent = deque[SentBatch]()
        self.weight, self._most = 0, LEAST
        """Bytes, with what records count besides, and what they may be."""
        self._began, self._freed = 0.0, 0
        """Of this window: when it began, and the weight that has passed in it."""
        self._rates = deque[float](maxlen=WINDOWS)

    @property
    def enough(self) -> bool:
        """Whether more would make nothing faster."""
        return self.weight >= self._most

    def put(self, sent: SentBatch) -> None:
        """Note what has been sent."""
        self.sent.append(sent)
        self.weight += _weight(sent)

    def take(self) -> SentBatch:
        """Let go of the oldest, which has passed."""
        oldest = self.sent.popleft()
        self.weight -= _weight(oldest)
        self._freed += _weight(oldest)
        return oldest

    def follow(self, now: float) -> None:
        """At the end of a window, have the bound follow what has passed."""
        if now < self._began + WINDOW:
            return
        self._rates.append(self._freed / (now - self._began))
        self._began, self._freed = now, 0
        self._most = max(LEAST, int(AHEAD * max(self._rates)))


class Inflight:
    """The bytes in flight of all sources of one worker."""

    def __init__(self, bound: int | None, passed: Callable[[float], None]) -> None:
        """`passed` is told when records were read that all sinks have passed."""
        self._bound, self._follows, self._told = bound or MOST, bound is None, passed
        self.bytes = 0
        """Of what has been read and not passed."""
        self.unpassed = 0
        """Of what of this has been sent."""
        self._underway: dict[tuple[int, Partition], PartitionInFlight] = {}

    @property
    def full(self) -> bool:
        """Whether reading has to stop."""
        return self.bytes >= self._bound

    @property
    def overfull(self) -> bool:
        """Whether even the partition that holds back all others has to stop."""
        return self.bytes >= 2 * self._bound

    def enough(self, reader: SourceReader, partition: Partition) -> bool:
        """Whether sending more of a partition would make nothing faster."""
        underway = self._underway.get((id(reader), partition))
        return self._follows and underway is not None and underway.enough

    def room(self, reader: SourceReader, partition: Partition) -> int:
        """Bytes that may be sent of a partition, with what records count besides, however far ahead
        of the others these are."""
        underway = self._underway.get((id(reader), partition))
        most = min(LEAST, self._bound // SHARE)
        return max(0, most - (0 if underway is None else underway.weight))

    def read(self, size: int) -> None:
        """Count what has been read."""
        self.bytes += size

    def unread(self, size: int) -> None:
        """What has been read will not be sent: somebody else reads it again."""
        self.bytes -= size

    def sent(self, sent: SentBatch) -> None:
        """Note what will be free once the sinks have passed its time."""
        self._underway.setdefault((id(sent.reader), sent.partition), PartitionInFlight()).put(sent)
        self.unpassed += sent.size

    def settle(self, passed: Antichain, now: float) -> None:
        """Free what the sinks' frontier has passed."""
        for underway in self._underway.values():
            last: SentBatch | None = None
            while underway.sent and not passed.less_equal(underway.sent[0].time):
                last = underway.take()
                self.bytes -= last.size
                self.unpassed -= last.size
                if last.delays is not None:
                    last.delays.observe(now - last.read_at)
                    self._told(last.read_at)
            if last is not None:
                last.reader.passed(last.partition, last.next_offset)
            underway.follow(now)


def _weight(sent: SentBatch) -> int:
    return sent.size + ROW * sent.rows
