"""The bytes in flight: sources have read them, and the sinks have not passed them (I6).

A source stops reading when these bytes exceed the bound. A partition that alone holds back the
flow's frontier may read up to twice the bound. Without a configured bound, a partition also stops
sending once it has sent as much as the sinks pass in half a second. More records would only enlarge
checkpoints. `bytes_ahead` bounds by bytes how far a partition may be ahead of the others, so a
sparse history is as fast as a dense one. Cost: one entry per batch sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from meander.dataflow.interfaces import Partition, SourceReader
from meander.dataflow.metrics.histogram import Histogram
from meander.state.times.antichain import Antichain

DEFAULT_BYTES: Final = 64 << 20
"""The default bound."""
AHEAD_SECONDS: Final = 0.5
"""Seconds of the sinks' rate that a partition may have sent without a configured bound."""
LEAST_BYTES: Final = 256 << 10
"""The least bytes of a partition for that limit, and the bytes that it may send far ahead of the
others."""
SHARE: Final = 8
"""The divisor of the bound for partitions far ahead of the others."""
ROW_BYTES: Final = 32
"""The surcharge of a record in bytes, for its time, origin and position."""
WINDOW: Final = 0.25
"""Seconds of one measurement of the sinks' rate."""
WINDOWS: Final = 8
"""The number of measurements. The best one counts, as a short pause does not make a sink slow."""


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A sent batch, with the time of its last record and the bytes that its passing frees."""

    time: int
    size: int
    """Bytes on the topic."""
    rows: int
    reader: SourceReader
    partition: Partition
    next_offset: int
    read_at: float
    delays: Histogram | None
    """The histogram of delays from `read_at` to the passing. None where more batches of the chunk
    follow."""


class PartitionInFlight:
    """A queue of the batches that one partition has sent and the sinks have not passed."""

    def __init__(self) -> None:
        self.sent = deque[SentBatch]()
        self.weight, self._bound = 0, LEAST_BYTES
        """The bytes with surcharges, and their bound."""
        self._began, self._freed = 0.0, 0
        """The start of this window, and the bytes that the sinks have passed in it."""
        self._rates = deque[float](maxlen=WINDOWS)

    @property
    def is_saturated(self) -> bool:
        """Return whether further records would not make the flow faster."""
        return self.weight >= self._bound

    def add(self, sent: SentBatch) -> None:
        """Add a sent batch."""
        self.sent.append(sent)
        self.weight += _weight(sent)

    def pop_passed(self) -> SentBatch:
        """Remove and return the oldest batch, which the sinks have passed."""
        oldest = self.sent.popleft()
        self.weight -= _weight(oldest)
        self._freed += _weight(oldest)
        return oldest

    def update_bound(self, now: float) -> None:
        """Adapt the bound to the passed bytes, at the end of a window."""
        if now < self._began + WINDOW:
            return
        self._rates.append(self._freed / (now - self._began))
        self._began, self._freed = now, 0
        self._bound = max(LEAST_BYTES, int(AHEAD_SECONDS * max(self._rates)))


class InFlightBytes:
    """A count of the bytes in flight of all sources of one worker."""

    def __init__(
        self, bound: int, report_passed: Callable[[float], None], adapts: bool = False
    ) -> None:
        """`report_passed` receives the read time of records that all sinks have passed. With
        `adapts` a partition sends at most what the sinks pass in half a second."""
        self._bound, self._adapts = bound, adapts
        self._report_passed = report_passed
        self.bytes = 0
        """The bytes that sources have read and the sinks have not passed."""
        self.unpassed = 0
        """The part of these bytes that sources have sent."""
        self._partitions: dict[tuple[int, Partition], PartitionInFlight] = {}

    @property
    def full(self) -> bool:
        """Return whether sources must stop reading."""
        return self.bytes >= self._bound

    @property
    def overfull(self) -> bool:
        """Return whether even the partition that holds back the frontier must stop reading."""
        return self.bytes >= 2 * self._bound

    def is_saturated(self, reader: SourceReader, partition: Partition) -> bool:
        """Return whether further records of a partition would not make the flow faster."""
        sent = self._partitions.get((id(reader), partition))
        return self._adapts and sent is not None and sent.is_saturated

    def bytes_ahead(self, reader: SourceReader, partition: Partition) -> int:
        """Return the bytes, with surcharges, that a partition may send at any distance ahead of the
        others."""
        sent = self._partitions.get((id(reader), partition))
        most = min(LEAST_BYTES, self._bound // SHARE)
        return max(0, most - (0 if sent is None else sent.weight))

    def read(self, size: int) -> None:
        """Count read bytes."""
        self.bytes += size

    def unread(self, size: int) -> None:
        """Uncount bytes that another worker will read again."""
        self.bytes -= size

    def sent(self, sent: SentBatch) -> None:
        """Add a sent batch. It frees its bytes once the sinks have passed its time."""
        key = id(sent.reader), sent.partition
        self._partitions.setdefault(key, PartitionInFlight()).add(sent)
        self.unpassed += sent.size

    def free_passed(self, passed: Antichain, now: float) -> None:
        """Free the bytes that the sinks' frontier has passed."""
        for partition in self._partitions.values():
            last: SentBatch | None = None
            while partition.sent and not passed.less_equal(partition.sent[0].time):
                last = partition.pop_passed()
                self.bytes -= last.size
                self.unpassed -= last.size
                if last.delays is not None:
                    last.delays.observe(now - last.read_at)
                    self._report_passed(last.read_at)
            if last is not None:
                last.reader.passed(last.partition, last.next_offset)
            partition.update_bound(now)


def _weight(sent: SentBatch) -> int:
    return sent.size + ROW_BYTES * sent.rows
