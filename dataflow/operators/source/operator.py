"""The source operator: gives raw records logical times (design 2, time model).

Guarantees that a partition's times never decrease, and that no record is sent before the
partition's capability. A record's time is the running maximum, or the partition's frontier after an
idle advance. The operator sends first and downgrades then.

A partition that is idle, or holds one time while others wait for it, advances on demand, by the
sequence only. The earliest partition sends first. While others have data, none runs `max_skew`
ahead of the flow's frontier with more than a little (`Inflight.room`). I7: `held` announces waiting
partitions. Cost: O(partitions) per turn, vector operations per chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from meander.dataflow.backpressure.inflight import ROW, SentBatch
from meander.dataflow.control.partition_handoff import PartitionHandoff
from meander.dataflow.control.timestamp_overrides import (
    BEHIND_ALL,
    OverrideHistory,
    TimestampOverride,
)
from meander.dataflow.graph.graph import Location
from meander.dataflow.interfaces import Partition, Rest, SourceOptions, SourceReader
from meander.dataflow.metrics.histogram import Histogram
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.ports import InFlight, InputPort, OutputPort
from meander.dataflow.operators.source.partitions import PendingChunk, SourcePartition, Standing
from meander.dataflow.progress.capability import Capability
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.loop_times import outer, outward
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME, SEQUENCE_BITS, duration, from_millis

ROWS = 3072
"""Records sent per partition and turn, so that no turn is long."""
LATEST = np.iinfo(np.int64).max
"""The latest time."""


@dataclass(frozen=True, slots=True)
class Around:
    """The locations that a source must know of its flow, by kind."""

    sources: Sequence[Location]
    """Locations at which all sources hold their partitions' frontiers."""
    read: Sequence[Location]
    """Locations at which they hold read records: the same, and those of waiting or ended
    partitions."""
    waiting: Sequence[Location]
    """All other locations except `demands`. A pointstamp here may wait for a source."""
    demands: Sequence[Location]
    """Locations of advance requests."""
    ends: Sequence[Location]
    """The outputs of the sinks: the flow's probe."""
    unsorted: Sequence[Location]
    """Locations at which its own records are in the order of arrival, or leave the flow."""


class SourceOperator:
    """A source that reads partitions on one worker."""

    def __init__(
        self,
        context: OperatorContext,
        origin: int,
        reader: SourceReader,
        options: SourceOptions,
        parcels: InputPort,
        output: OutputPort,
        held: OutputPort,
        around: Around,
        past: OverrideHistory,
        resumed: Iterable[PartitionHandoff] = (),
    ) -> None:
        self._origin, self._reader, self._options = origin, reader, options
        self._parcels, self._output, self._held, self._around = parcels, output, held, around
        self._progress, self._clock = context.progress, context.clock
        self._inflight, self._counters = context.inflight, context.counters
        self._past = past
        self._unreadable = 0
        self.delays = Histogram()
        """The delay of each chunk from the reader until all sinks have passed it."""
        self._full: Capability | None = None
        self.furthest = MIN_TIME
        """The latest time that this worker has sent, or a previous reader of its partitions."""
        self._limit: int | None = None
        """The latest time that may be sent now, or None."""
        self._last: list[Capability] = []
        self._skew = duration(options.max_skew)
        now = self._clock.monotonic()
        known = {parcel.partition: parcel for parcel in resumed}
        self._lanes = {
            p: SourcePartition(p, output.open(MIN_TIME), now, now, past.of(origin, p))
            for p in reader.partitions
            if p not in known
        }
        self._ended: dict[Partition, PartitionHandoff] = {}
        """Partitions that have ended."""
        for parcel in known.values():
            lane = self._go_on(parcel, output.open(parcel.frontier))
            self._move_beyond(lane)
            self._await_before(lane)

    def schedule(self) -> bool:
        """Read and send records, and advance partitions that stand still. Return whether the source
        worked."""
        self._inflight.settle(self._passed(), self._clock.monotonic())
        adopted = self._adopt()
        read = self._read() or adopted
        self._choose_what_to_read()
        self._announce_full()
        if not self._progress.ready:
            return read
        moved = self._follow_rulings() or self._move_stale()
        sent = self._send()
        closed = self._close_ended()
        return read or moved or sent or closed

    def wait_seconds(self) -> float | None:
        """Return the seconds until the next partition counts as idle, if a pointstamp waits for
        one. The reader wakes the loop from now on."""
        self._reader.watch()
        if not self._lanes or not self._progress.ready:
            return None
        due = [since for _, _, since in self._stale()]
        if not due:
            return None
        return max(0.0, min(due) + self._options.idle_after - self._clock.monotonic())

    @property
    def total(self) -> int | None:
        """Return the number of partitions on all workers, or None where the number is final."""
        return self._reader.total

    def finished(self) -> bool:
        """Return whether every partition has ended, and the sinks have passed its records."""
        return not self._lanes and not self._last

    def standing(self) -> list[Standing]:
        """Return the standing of every partition that has not ended."""
        return [lane.standing(self._reader.idle(p)) for p, lane in self._lanes.items()]

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    # -- handovers

    def reads(self, partition: Partition) -> bool:
        """Return whether this worker reads a partition, or has read it to its end."""
        return partition in self._lanes or partition in self._ended

    def release(self, partition: Partition, at: int) -> PartitionHandoff | None:
        """Release a partition and return its handoff, once its frontier has reached `at`. Return
        None before."""
        if (parcel := self._ended.pop(partition, None)) is not None:
            # No record of it remains, but the next checkpoint must still list it.
            self._reader.release(partition)
            return replace(parcel, frontier=max(parcel.frontier, at))
        assert partition in self._lanes, "one order after the other, to whoever reads it (I1)"
        lane = self._lanes[partition]
        if lane.time < at:
            return None
        self._move_beyond(lane)
        parcel = self._parcel(lane, self._reader.release(partition))
        self._give_back(lane)
        del self._lanes[partition]
        if lane.held is not None:
            lane.held.drop()
        lane.capability.drop()
        return parcel

    def _give_back(self, lane: SourcePartition) -> None:
        for pending in lane.queue:
            self._inflight.unread(pending.size)

    def _adopt(self) -> bool:
        adopted = False
        for message in self._parcels.drain():
            adopted = True
            parcel = message.payload
            assert isinstance(parcel, PartitionHandoff)
            capability = self._output.mint(message)
            capability.downgrade(parcel.frontier)
            self._await_before(self._go_on(parcel, capability))
            self._reader.adopt(parcel.partition, parcel.rest)
        return adopted

    def _move_beyond(self, lane: SourcePartition) -> None:
        """Advance a partition beyond its sent records where no operator sorts them, so that later
        records get later times. A replay gives no further overrides."""
        if self._around.unsorted and not lane.replays:
            self._rule(lane, lane.newest + 1)

    def _await_before(self, lane: SourcePartition) -> None:
        """Let a partition wait until its earlier records, by their times, have passed the unsorted
        ports."""
        if self._around.unsorted and lane.time > lane.newest:
            lane.after = lane.newest

    def _go_on(self, parcel: PartitionHandoff, capability: Capability) -> SourcePartition:
        """Read a partition from the position of its handoff."""
        now, track = self._clock.monotonic(), self._past.of(self._origin, parcel.partition)
        lane = SourcePartition(
            parcel.partition, capability, now, now, track, parcel.rest.offset,
            parcel.maximum, parcel.newest, parcel.frontier,
        )  # fmt: skip
        self._lanes[parcel.partition] = lane
        self.furthest = max(self.furthest, parcel.newest)
        return lane

    def parcels(self) -> list[PartitionHandoff]:
        """Return the handoff of each partition that this worker reads, has read to its end, or is
        about to read."""
        here = [self._parcel(lane, self._reader.rest(p)) for p, lane in self._lanes.items()]
        to_come = [message.payload for message in self._parcels.waiting]
        return [
            *here,
            *self._ended.values(),
            *(one for one in to_come if isinstance(one, PartitionHandoff)),
        ]

    @staticmethod
    def _parcel(lane: SourcePartition, rest: Rest) -> PartitionHandoff:
        """Return the handoff of a partition whose reader has handed out all but `rest`."""
        if lane.queue:
            rest = Rest(lane.queue[0].offset, rest.end)
        return PartitionHandoff(lane.partition, rest, lane.maximum, lane.newest, lane.time)

    def sent_up_to(self, limit: int) -> bool:
        """Return whether all known records up to a time have been sent."""
        return all(
            lane.time > limit or (not lane.queue and self._reader.idle(p))
            for p, lane in self._lanes.items()
        )

    def passed(self, time: int) -> bool:
        """Return whether all sinks have passed the records up to a time."""
        return not self._passed().less_equal(time)

    def hold(self, limit: int | None) -> None:
        """Send no record later than `limit` until the next call. None removes the limit."""
        self._limit = limit

    def underway(self) -> Iterable[InFlight]:
        """Return nothing, as unsent records are read again."""
        return ()

    # -- reading

    def _read(self) -> bool:
        chunks = self._reader.poll()
        now = self._clock.monotonic()
        for chunk in chunks:
            lane = self._lanes[chunk.partition]
            limit = from_millis(self._clock.now_ms()) + duration(self._options.max_future)
            # Times have a maximum, and records near it are future records for every clock.
            limit = min(limit, BEHIND_ALL - 1)
            pending = lane.queue_up(chunk, limit, now)
            self._counters["future_ignored"] += int(np.count_nonzero(pending.future))
            self._inflight.read(chunk.size)
            self._counters["read"] += len(chunk.values)
        self._counters["unreadable"] += self._reader.unreadable - self._unreadable
        self._unreadable = self._reader.unreadable
        return bool(chunks)

    def _choose_what_to_read(self) -> None:
        for lane in self._lanes.values():
            # A replay needs records that were read here before, even if less was in flight then.
            room = lane.replays or not self._inflight.overfull
            empty = not lane.queue and room
            wanted = not self._inflight.full or (empty and self._alone(lane))
            if wanted == lane.paused:
                lane.paused = not wanted
                act = self._reader.resume if wanted else self._reader.pause
                act(lane.partition)

    def _announce_full(self) -> None:
        """While reading has stopped, hold a capability, as in-flight records wait for idle
        partitions."""
        if self._inflight.full and self._full is None and self._lanes:
            self._full = self._held.open(max(lane.time for lane in self._lanes.values()))
        elif self._full is not None and not (self._inflight.full and self._lanes):
            self._full.drop()
            self._full = None

    def _drained(self, floor: int) -> bool:
        """Return whether the sinks have passed all records that can pass before the floor
        advances."""
        return not self._passed().less_than(floor)

    # -- sending

    def _send(self) -> bool:
        sent = False
        for lane in sorted(self._lanes.values(), key=attrgetter("next_time")):
            if lane.queue and self._may_go_on(lane):
                sent |= self._send_lane(lane)
            elif lane.queue and lane.held is None:
                lane.held = self._held.open(lane.next_time)
        return sent

    def _may_go_on(self, lane: SourcePartition) -> bool:
        """Return whether a partition may send. The flow has room for its records, or drains none
        without it. All records of it from another worker or earlier execution have passed."""
        enough = self._inflight.enough(self._reader, lane.partition)
        if enough and not (lane.replays or self._alone(lane)):
            return False
        if lane.after is not None:
            frontiers = map(self._progress.frontier, self._around.unsorted)
            if any(outward(frontier).less_equal(lane.after) for frontier in frontiers):
                return False
            lane.after = None
        return True

    def _alone(self, lane: SourcePartition) -> bool:
        """Return whether a partition alone holds back the flow, and all other records have
        passed."""
        floor = self._floor()
        return lane.time == floor and self._drained(floor)

    def _send_lane(self, lane: SourcePartition) -> bool:
        near = min(self._floor() + self._skew, LATEST)
        budget, waits = ROWS, False
        while lane.queue and budget and not waits:
            times, natural = lane.next_rows(budget)
            rows = self._count(lane, times, near)
            if rows:
                self._send_rows(lane, lane.queue[0], times[:rows], natural[:rows])
                budget -= rows
            waits = rows < len(times)
        self._announce(lane, waits)
        return budget < ROWS

    def _count(self, lane: SourcePartition, times: Int64s, near: int) -> int:
        """Return how many of the next records may leave. They are near or few, and within the limit
        of a checkpoint."""
        head = lane.queue[0]
        room = self._inflight.room(self._reader, lane.partition)
        little = head.left * room // (head.size + ROW * head.left)
        rows = max(_up_to(near, times), min(little, len(times)))
        return rows if self._limit is None else min(rows, _up_to(self._limit, times))

    def _send_rows(
        self, lane: SourcePartition, head: PendingChunk, times: Int64s, natural: Int64s
    ) -> None:
        rows, chunk = len(times), head.chunk
        until = head.row + rows
        batch = Batch(
            times,
            np.full(rows, self._origin, np.int64),
            np.full(rows, lane.partition, np.int64),
            chunk.offsets[head.row : until],
            np.zeros(rows, np.int64),
            chunk.values[head.row : until],
        )
        self._count_late_adjusted(
            times, head.asked[head.row : until], head.future[head.row : until]
        )
        if head.future.any():
            self._rule_future(lane, head, times)
        self._output.send(lane.capability, int(times[0]), batch)
        last = int(times[-1])
        lane.maximum, lane.newest = int(natural[-1]), last
        lane.next_offset = int(chunk.offsets[until - 1]) + 1
        whole = until == len(chunk.values)
        self._inflight.sent(
            SentBatch(
                last, head.take(rows), rows, self._reader, lane.partition, lane.next_offset,
                head.read_at, self.delays if whole else None,
            )
        )  # fmt: skip
        if whole:
            lane.queue.popleft()
        self.furthest = max(self.furthest, last)
        self._move(lane, last)

    def _count_late_adjusted(
        self, times: Int64s, asked: Int64s, future: npt.NDArray[np.bool_]
    ) -> None:
        """Count records whose time was raised to another millisecond, and by how much. Future
        records are counted elsewhere."""
        asked = np.maximum(asked, MIN_TIME)
        raised = (times >> SEQUENCE_BITS) - (asked >> SEQUENCE_BITS)
        raised[future] = 0
        self._counters["late_adjusted"] += int(np.count_nonzero(raised))
        self._counters["bumped_ms"] += int(raised.sum())

    def _announce(self, lane: SourcePartition, waits: bool) -> None:
        """Advance to the time of the next record. Announce it if the record has to wait."""
        upcoming = lane.next_time
        self._move(lane, upcoming)
        if lane.held is not None and not (waits and lane.held.time == upcoming):
            lane.held.drop()
            lane.held = None
        if waits and lane.held is None:
            lane.held = self._held.open(upcoming)

    # -- advancing

    def _move(self, lane: SourcePartition, time: int) -> bool:
        """Advance a partition to a time, and return whether it was before that time."""
        if time <= lane.time:
            return False
        lane.capability.downgrade(time)
        lane.moved_at = self._clock.monotonic()
        return True

    def _rule(self, lane: SourcePartition, time: int) -> None:
        """Advance a partition without a record, and record the override for its next record."""
        if self._move(lane, time):
            ruling = TimestampOverride(self._origin, lane.partition, lane.next_offset, time)
            self._progress.overrides.append(ruling)

    def _rule_future(self, lane: SourcePartition, head: PendingChunk, times: Int64s) -> None:
        """Record overrides for future records that are about to leave."""
        rows = slice(head.row, head.row + len(times))
        offsets = head.chunk.offsets[rows]
        anew = head.future[rows] & ~lane.track.future(offsets)
        # A run has one time, as no future record advances the partition.
        edges = np.flatnonzero(np.diff(anew, prepend=False, append=False))
        for first, behind in edges.reshape(-1, 2).tolist():
            places = int(offsets[first]), int(times[first]), int(offsets[behind - 1])
            self._progress.overrides.append(
                TimestampOverride(self._origin, lane.partition, *places)
            )

    def _follow_rulings(self) -> bool:
        """Follow known overrides, once all records before them have been sent. Return whether a
        partition advanced."""
        moved = [self._move(lane, lane.floor) for lane in self._lanes.values()]
        return any(moved)

    def _close_ended(self) -> bool:
        ended = [
            lane
            for lane in self._lanes.values()
            if not lane.queue and self._reader.ended(lane.partition)
        ]
        for lane in ended:
            # Its records may wait for other partitions until the sinks have passed them.
            self._last.append(self._held.open(lane.time + 1))
            # Later records, in another run, must not have times that pass from now on.
            ruling = TimestampOverride(self._origin, lane.partition, lane.next_offset, BEHIND_ALL)
            self._progress.overrides.append(ruling)
            self._ended[lane.partition] = self._parcel(lane, self._reader.rest(lane.partition))
            lane.capability.drop()
            if lane.held is not None:
                lane.held.drop()
            del self._lanes[lane.partition]
        if not self._last:
            return bool(ended)
        passed = self._passed()
        for held in [held for held in self._last if not passed.less_equal(outer(held.time) - 1)]:
            held.drop()
            self._last.remove(held)
        return bool(ended)

    def _move_stale(self) -> bool:
        now = self._clock.monotonic()
        moved = False
        for lane, target, since in self._stale():
            if now - since >= self._options.idle_after:
                self._rule(lane, target)
                self._counters["idle_advances"] += 1
                moved = True
        return moved

    def _stale(self) -> list[tuple[SourcePartition, int, float]]:
        """Return the partitions that hold back waiting pointstamps, each with its target time and
        the time since when it stands."""
        furthest = self._progress.furthest(self._around.read)
        demand = self._progress.furthest(self._around.demands)
        if furthest is None:
            return []
        if demand is None:
            least = self._progress.least(self._around.waiting)
            if least is None or outer(least) > furthest:
                return []
        stale = []
        for lane in self._lanes.values():
            target = self._target(lane, furthest, demand)
            if target > lane.time:
                stale.append((lane, target, lane.moved_at if lane.queue else lane.active_at))
        return stale

    def _target(self, lane: SourcePartition, furthest: int, demand: int | None) -> int:
        if lane.replays:
            return lane.time
        if lane.queue:
            # All its records have one time. Others may pass that time, and its own follow there.
            holds = lane.time == lane.next_time == lane.newest == self._floor()
            return lane.time + 1 if holds else lane.time
        stuck = lane.paused and self._inflight.overfull
        if not (stuck or self._reader.idle(lane.partition)):
            return lane.time
        if demand is not None and demand >= furthest:
            return demand + 1
        # Only a partition with a record of the furthest time may pass it, so advances end there.
        beyond = lane.time == lane.newest == furthest
        return furthest + 1 if beyond else furthest

    def _floor(self) -> int:
        least = self._progress.least(self._around.sources)
        return MIN_TIME if least is None else outer(least)

    def _passed(self) -> Antichain:
        return Antichain.of(
            *(time for at in self._around.ends for time in outward(self._progress.frontier(at)))
        )


def _up_to(limit: int, times: Int64s) -> int:
    """Return how many of these ascending times are not later than `limit`."""
    return int(np.searchsorted(times, limit, side="right"))
