"""The bytes in flight: what sources have read and the sinks have not passed (I6).

A source stops reading when these bytes exceed the bound. A partition that alone holds back the
flow's frontier may read up to twice the bound. Without a configured bound, a partition also stops
sending once it has sent as much as the sinks pass in half a second. More records would only enlarge
checkpoints. `room` bounds by bytes what a partition may send ahead of the others, so a sparse
history is as fast as a dense one. Cost: one entry per batch sent.
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
"""Default bytes that may be read and not passed."""
AHEAD: Final = 0.5
"""Seconds of the sinks' rate that may then be sent and not passed."""
LEAST: Final = 256 << 10
"""The least bytes of each partition for that bound, and the bytes that it may send far ahead of the
others."""
SHARE: Final = 8
"""The divisor of the bound for partitions far ahead of the others."""
ROW: Final = 32
"""Bytes that a record counts besides its own, for its time, origin and position."""
WINDOW: Final = 0.25
"""Seconds of one measurement of the sinks' rate."""
WINDOWS: Final = 8
"""The number of measurements. The best counts, as a short pause does not make a sink slow."""


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch that has been sent, with the time of its last record and the bytes that its passing
    frees."""

    time: int
    size: int
    """Bytes on the topic."""
    rows: int
    reader: SourceReader
    partition: Partition
    next_offset: int
    read_at: float
    delays: Histogram | None
    """The histogram of the delay from `read_at` to its passing. None where more batches of its
    chunk follow."""


class PartitionInFlight:
    """The batches of one partition that are sent and not passed, with their bound."""

    def __init__(self) -> None:
        self.sent = deque[SentBatch]()
        self.weight, self._most = 0, LEAST
        """Bytes with the surcharge per record, and their bound."""
        self._began, self._freed = 0.0, 0
        """The start of this window, and the bytes that have passed in it."""
        self._rates = deque[float](maxlen=WINDOWS)

    @property
    def enough(self) -> bool:
        """Return whether more records would not make the flow faster."""
        return self.weight >= self._most

    def put(self, sent: SentBatch) -> None:
        """Add a batch that has been sent."""
        self.sent.append(sent)
        self.weight += _weight(sent)

    def take(self) -> SentBatch:
        """Remove and return the oldest batch, which has passed."""
        oldest = self.sent.popleft()
        self.weight -= _weight(oldest)
        self._freed += _weight(oldest)
        return oldest

    def follow(self, now: float) -> None:
        """Adapt the bound to the passed bytes at the end of a window."""
        if now < self._began + WINDOW:
            return
        self._rates.append(self._freed / (now - self._began))
        self._began, self._freed = now, 0
        self._most = max(LEAST, int(AHEAD * max(self._rates)))


class Inflight:
    """A count that sums the bytes in flight of all sources of one worker."""

    def __init__(self, bound: int | None, passed: Callable[[float], None]) -> None:
        """Take the bound in bytes. `passed` receives the read time of records that all sinks have
        passed."""
        self._bound, self._follows, self._told = bound or MOST, bound is None, passed
        self.bytes = 0
        """Bytes that are read and not passed."""
        self.unpassed = 0
        """Bytes of these that are sent."""
        self._underway: dict[tuple[int, Partition], PartitionInFlight] = {}

    @property
    def full(self) -> bool:
        """Return whether sources must stop reading."""
        return self.bytes >= self._bound

    @property
    def overfull(self) -> bool:
        """Return whether even the partition that holds back the frontier must stop."""
        return self.bytes >= 2 * self._bound

    def enough(self, reader: SourceReader, partition: Partition) -> bool:
        """Return whether more records of a partition would not make the flow faster."""
        underway = self._underway.get((id(reader), partition))
        return self._follows and underway is not None and underway.enough

    def room(self, reader: SourceReader, partition: Partition) -> int:
        """Return the bytes that a partition may send at any distance ahead of the others, with the
        surcharge per record."""
        underway = self._underway.get((id(reader), partition))
        most = min(LEAST, self._bound // SHARE)
        return max(0, most - (0 if underway is None else underway.weight))

    def read(self, size: int) -> None:
        """Count read bytes."""
        self.bytes += size

    def unread(self, size: int) -> None:
        """Uncount bytes that will not be sent, as another worker reads them again."""
        self.bytes -= size

    def sent(self, sent: SentBatch) -> None:
        """Add a batch that frees its bytes once the sinks have passed its time."""
        self._underway.setdefault((id(sent.reader), sent.partition), PartitionInFlight()).put(sent)
        self.unpassed += sent.size

    def settle(self, passed: Antichain, now: float) -> None:
        """Free the bytes that the sinks' frontier has passed."""
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
