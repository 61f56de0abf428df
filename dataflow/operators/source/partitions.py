"""The source partition: its read records, and the times that they get.

Guarantees that its times never decrease, and follow from its log and its timestamp overrides (I1,
I3). A record's time is the running maximum of the requested times, or the partition's frontier
after an idle advance. Known overrides are followed, and a replay adds none before its mark. Cost:
vector operations per chunk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from meander.dataflow.control.timestamp_overrides import PartitionOverrides
from meander.dataflow.interfaces import Chunk, Partition
from meander.dataflow.progress.capability import Capability
from meander.dataflow.records.batch import Int64s
from meander.dataflow.records.loop_times import outer
from meander.state.times.time import MIN_TIME

State = Literal["sending", "paused", "idle", "reading"]
"""The partition has records to send; may read no more; is read to its end; or asks for records."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing that a partition has: its frontier, and the reason it waits."""

    partition: Partition
    time: int
    state: State


@dataclass(slots=True)
class PendingChunk:
    """A chunk that has been read and is not fully sent."""

    chunk: Chunk
    future: npt.NDArray[np.bool_]
    """A mask of the records whose requested time is too far ahead."""
    asked: Int64s
    """The requested times. Future records request none."""
    read_at: float
    size: int
    """Bytes of unsent records."""
    row: int = 0

    @property
    def offset(self) -> int:
        """Return the offset of the first unsent record."""
        return int(self.chunk.offsets[self.row])

    @property
    def left(self) -> int:
        """Return the number of unsent records."""
        return len(self.chunk.values) - self.row

    def take(self, rows: int) -> int:
        """Count `rows` more sent records, and return their bytes."""
        taken = self.size * rows // self.left
        self.size -= taken
        self.row += rows
        return taken


@dataclass(slots=True)
class SourcePartition:
    """A source partition that carries one ordered log from its reader to the flow."""

    partition: Partition
    capability: Capability
    active_at: float
    """The second at which it last read a record."""
    moved_at: float
    """The second at which its frontier last advanced."""
    track: PartitionOverrides
    """Its known timestamp overrides."""
    next_offset: int = 0
    """The offset behind the last sent record."""
    maximum: int = MIN_TIME
    """The running maximum of the requested times."""
    newest: int = MIN_TIME
    """The time of the last sent record: `maximum`, or later after an idle advance."""
    reached: int = MIN_TIME
    """The time of the last read record, while it is before the mark."""
    held: Capability | None = None
    queue: deque[PendingChunk] = field(default_factory=deque)
    paused: bool = False
    after: int | None = None
    """A time whose earlier records, sent by another worker or an earlier execution, must pass
    first."""

    @property
    def time(self) -> int:
        """Return the partition's frontier."""
        return outer(self.capability.time)

    @property
    def next_time(self) -> int:
        """Return the time of the next record, or the frontier where none is known."""
        if not self.queue:
            return self.time
        head = self.queue[0]
        return max(self.time, self.maximum, int(head.asked[head.row]))

    @property
    def replays(self) -> bool:
        """Return whether it gives no new overrides, as it is before the mark."""
        return self.time < self.track.mark

    @property
    def floor(self) -> int:
        """Return the least time of the next record by the known overrides."""
        ruled = self.next_offset < self.track.end
        return self.track.floor(self.next_offset) if ruled else MIN_TIME

    def standing(self, idle: bool) -> Standing:
        """Return its standing. `idle` tells that the reader has handed out its whole log."""
        state: State = "idle" if idle else "reading"
        if self.queue or self.paused:
            state = "sending" if self.queue else "paused"
        return Standing(self.partition, self.time, state)

    def queue_up(self, chunk: Chunk, limit: int, now: float) -> PendingChunk:
        """Add a read chunk. Requested times beyond `limit` do not count."""
        future = chunk.times > limit
        if self.reached < self.track.mark:
            future[: self._replayed(chunk)] = False
        if self.next_offset < self.track.end:
            future |= self.track.future(chunk.offsets)
        asked = np.where(future, MIN_TIME, chunk.times)
        pending = PendingChunk(chunk, future, asked, now, chunk.size)
        self.queue.append(pending)
        self.active_at = now
        return pending

    def next_rows(self, most: int) -> tuple[Int64s, Int64s]:
        """Return the times of the next records of one chunk, and their times without advances."""
        head = self.queue[0]
        asked = head.asked[head.row : head.row + most]
        natural = np.maximum.accumulate(np.maximum(asked, self.maximum))
        times = np.maximum(natural, self.time)
        if self.next_offset < self.track.end:
            offsets = head.chunk.offsets[head.row : head.row + most]
            times = np.maximum(times, self.track.floors(offsets))
        return times, natural

    def _replayed(self, chunk: Chunk) -> int:
        """Return how many records of a chunk are before the mark, so that an earlier execution has
        judged them."""
        floors = np.maximum(self.track.floors(chunk.offsets), self.reached)
        asked = np.where(self.track.future(chunk.offsets), MIN_TIME, chunk.times)
        times = np.maximum.accumulate(np.maximum(asked, floors))
        self.reached = int(times[-1])
        before = np.maximum(floors[1:], times[:-1])
        return int(np.searchsorted([floors[0], *before], self.track.mark))
