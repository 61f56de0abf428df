"""The source partition: its read records, and the times that they get.

Guarantees that its times never decrease, and follow from its log and its timestamp overrides (I1,
I3). A record's time is the running maximum of the requested times, or the partition's frontier
after an idle advance. The partition follows known overrides, and a replay adds none before its end.
Cost: vector operations per chunk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from meander.dataflow.control.partition_handoff import PartitionHandoff
from meander.dataflow.control.timestamp_overrides import PartitionOverrides
from meander.dataflow.interfaces import Chunk, Partition, Rest
from meander.dataflow.progress.capability import Capability
from meander.dataflow.records.batch import Int64s
from meander.dataflow.records.loop_times import outer_time
from meander.state.times.time import MIN_TIME

PartitionState = Literal["sending", "paused", "idle", "reading"]
"""The partition has records to send; may read no more; is read to its end; or waits for records."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A status that a partition has: its frontier, and the reason for its wait."""

    partition: Partition
    time: int
    state: PartitionState


@dataclass(slots=True)
class PendingChunk:
    """A chunk that still has unsent records."""

    chunk: Chunk
    future: npt.NDArray[np.bool_]
    """A mask of the records whose requested time is too far ahead."""
    requested: Int64s
    """The requested times; `MIN_TIME` for future records."""
    read_at: float
    size: int
    """Bytes of unsent records."""
    row: int = 0

    @property
    def offset(self) -> int:
        """Return the offset of the first unsent record."""
        return int(self.chunk.offsets[self.row])

    @property
    def count(self) -> int:
        """Return the number of unsent records."""
        return len(self.chunk.values) - self.row

    def count_sent(self, rows: int) -> int:
        """Count `rows` further records as sent, and return their bytes."""
        sent_bytes = self.size * rows // self.count
        self.size -= sent_bytes
        self.row += rows
        return sent_bytes


@dataclass(slots=True)
class SourcePartition:
    """A source partition that takes the records of one ordered log from its reader to the flow."""

    number: Partition
    capability: Capability
    active_at: float
    """The second at which it last read a record."""
    advanced_at: float
    """The second at which its frontier last advanced."""
    overrides: PartitionOverrides
    """Its known timestamp overrides."""
    next_offset: int = 0
    """The offset behind the last sent record."""
    maximum: int = MIN_TIME
    """The running maximum of the requested times."""
    newest: int = MIN_TIME
    """The time of the last sent record: `maximum`, or later after an idle advance."""
    replayed_until: int = MIN_TIME
    """The time of the last read record, while the replay has not ended."""
    announced: Capability | None = None
    """The announcement of the next time, while the next record waits."""
    queue: deque[PendingChunk] = field(default_factory=deque)
    paused: bool = False
    awaited_time: int | None = None
    """A time that unsorted ports must pass before the next record: another worker or an earlier
    execution has sent records up to it."""

    @property
    def time(self) -> int:
        """Return the partition's frontier."""
        return outer_time(self.capability.time)

    @property
    def next_time(self) -> int:
        """Return the time of the next record, or the frontier where none is known."""
        if not self.queue:
            return self.time
        head = self.queue[0]
        return max(self.time, self.maximum, int(head.requested[head.row]))

    @property
    def replaying(self) -> bool:
        """Return whether it is before the end of the replay, and so gives no new overrides."""
        return self.time < self.overrides.replay_end

    @property
    def floor(self) -> int:
        """Return the least time of the next record by the known overrides. A partition that goes on
        behind offsets without records has not followed those at these offsets."""
        known = self.next_offset < self.overrides.end or self.time < self.overrides.latest
        return self.overrides.floor(self.next_offset) if known else MIN_TIME

    def withdraw(self) -> None:
        """Drop the announcement."""
        if self.announced is not None:
            self.announced.drop()
            self.announced = None

    def close(self) -> None:
        """Drop the announcement and the capability."""
        self.withdraw()
        self.capability.drop()

    def handoff(self, rest: Rest) -> PartitionHandoff:
        """Return the handoff of the partition, whose reader has handed out all but `rest`."""
        if self.queue:
            rest = Rest(self.queue[0].offset, rest.end)
        return PartitionHandoff(self.number, rest, self.maximum, self.newest, self.time)

    def status(self, idle: bool) -> PartitionStatus:
        """Return its status. With `idle` the reader has handed out the whole log."""
        state: PartitionState = "idle" if idle else "reading"
        if self.queue or self.paused:
            state = "sending" if self.queue else "paused"
        return PartitionStatus(self.number, self.time, state)

    def enqueue(self, chunk: Chunk, limit: int, now: float) -> PendingChunk:
        """Append a read chunk. Requested times beyond `limit` have no effect."""
        future = chunk.times > limit
        if self.replayed_until < self.overrides.replay_end:
            future[: self._count_replayed(chunk)] = False
        if self.next_offset < self.overrides.end:
            future |= self.overrides.future(chunk.offsets)
        requested = np.where(future, MIN_TIME, chunk.times)
        pending = PendingChunk(chunk, future, requested, now, chunk.size)
        self.queue.append(pending)
        self.active_at = now
        return pending

    def next_rows(self, max_rows: int) -> tuple[Int64s, Int64s]:
        """Return the times of the next records of one chunk, and their times without advances."""
        head = self.queue[0]
        requested = head.requested[head.row : head.row + max_rows]
        natural = np.maximum.accumulate(np.maximum(requested, self.maximum))
        times = np.maximum(natural, self.time)
        if self.next_offset < self.overrides.end:
            offsets = head.chunk.offsets[head.row : head.row + max_rows]
            times = np.maximum(times, self.overrides.floors(offsets))
        return times, natural

    def _count_replayed(self, chunk: Chunk) -> int:
        """Return how many records of a chunk are before the end of the replay, so that known
        overrides decide about them."""
        floors = np.maximum(self.overrides.floors(chunk.offsets), self.replayed_until)
        requested = np.where(self.overrides.future(chunk.offsets), MIN_TIME, chunk.times)
        times = np.maximum.accumulate(np.maximum(requested, floors))
        self.replayed_until = int(times[-1])
        before = np.maximum(floors[1:], times[:-1])
        return int(np.searchsorted([floors[0], *before], self.overrides.replay_end))
