"""One partition on its way into the flow: what it has read, and which times that gets.

Guarantees that its times never decrease, and that they follow from its log and from what has been
ruled about it (I1, I3): a record's time is the running maximum of what is asked for, or the
partition's frontier where that has moved on (a bump). What is known to have been ruled is followed;
up to the mark of a replay nothing else is ruled. Cost: vector operations per chunk.
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
"""It has records to send; may read no more; is read to its end; or is asking for records."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How one partition stands: its frontier, and what it waits for."""

    partition: Partition
    time: int
    state: State


@dataclass(slots=True)
class PendingChunk:
    """A chunk that has been read and not yet wholly sent."""

    chunk: Chunk
    future: npt.NDArray[np.bool_]
    """Which of its records ask for a time too far ahead."""
    asked: Int64s
    """What its records ask for; of the future's, nothing."""
    read_at: float
    size: int
    """Bytes of what has not been sent."""
    row: int = 0

    @property
    def offset(self) -> int:
        """Of the first record that has not been sent."""
        return int(self.chunk.offsets[self.row])

    @property
    def left(self) -> int:
        """How many records have not been sent."""
        return len(self.chunk.values) - self.row

    def take(self, rows: int) -> int:
        """So many more have been sent; their bytes."""
        taken = self.size * rows // self.left
        self.size -= taken
        self.row += rows
        return taken


@dataclass(slots=True)
class SourcePartition:
    """One partition, from its reader to the flow."""

    partition: Partition
    capability: Capability
    active_at: float
    """When it last read a record, seconds."""
    moved_at: float
    """When its frontier last moved, seconds."""
    track: PartitionOverrides
    """What is known to have been ruled about it."""
    next_offset: int = 0
    """Behind the last record sent."""
    maximum: int = MIN_TIME
    """The running maximum of what its records ask for."""
    newest: int = MIN_TIME
    """The time of the last record sent: `maximum`, or later after a bump."""
    reached: int = MIN_TIME
    """The time of the last record read, as far as it is before the mark."""
    held: Capability | None = None
    queue: deque[PendingChunk] = field(default_factory=deque)
    paused: bool = False
    after: int | None = None
    """What another worker, or an earlier life, sent of it, up to this time, has to be through
    before more is sent."""

    @property
    def time(self) -> int:
        """The partition's frontier."""
        return outer(self.capability.time)

    @property
    def next_time(self) -> int:
        """The time of the next record, or the frontier where none is known."""
        if not self.queue:
            return self.time
        head = self.queue[0]
        return max(self.time, self.maximum, int(head.asked[head.row]))

    @property
    def replays(self) -> bool:
        """Whether nothing is to be ruled about it that has not been."""
        return self.time < self.track.mark

    @property
    def floor(self) -> int:
        """What the next record has at least, as has been ruled."""
        ruled = self.next_offset < self.track.end
        return self.track.floor(self.next_offset) if ruled else MIN_TIME

    def standing(self, idle: bool) -> Standing:
        """How it stands; `idle` where all that was on its log has been handed out."""
        state: State = "idle" if idle else "reading"
        if self.queue or self.paused:
            state = "sending" if self.queue else "paused"
        return Standing(self.partition, self.time, state)

    def queue_up(self, chunk: Chunk, limit: int, now: float) -> PendingChunk:
        """Take in what has been read; what asks for more than `limit` asks for nothing."""
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
        """The times of the next records of one chunk, and what they would be without its moves."""
        head = self.queue[0]
        asked = head.asked[head.row : head.row + most]
        natural = np.maximum.accumulate(np.maximum(asked, self.maximum))
        times = np.maximum(natural, self.time)
        if self.next_offset < self.track.end:
            offsets = head.chunk.offsets[head.row : head.row + most]
            times = np.maximum(times, self.track.floors(offsets))
        return times, natural

    def _replayed(self, chunk: Chunk) -> int:
        """How many of its records come while it is before the mark: they have been judged."""
        floors = np.maximum(self.track.floors(chunk.offsets), self.reached)
        asked = np.where(self.track.future(chunk.offsets), MIN_TIME, chunk.times)
        times = np.maximum.accumulate(np.maximum(asked, floors))
        self.reached = int(times[-1])
        before = np.maximum(floors[1:], times[:-1])
        return int(np.searchsorted([floors[0], *before], self.track.mark))
