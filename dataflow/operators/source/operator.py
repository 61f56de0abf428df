"""The source operator: gives raw records logical times (design 2, time model).

Guarantees that a partition's times never decrease, and that no record is before the partition's
capability. A record's time is the running maximum, or the partition's frontier after an idle
advance. The operator sends first and downgrades then.

A partition that is idle, or holds one time while others wait for it, advances on request, by the
sequence only. The earliest partition sends first. While others have data, none runs `max_skew`
ahead of the flow's frontier with more than a few bytes (`InFlightBytes.bytes_ahead`). Waiting
partitions announce their next times (I7). Cost: O(partitions) per turn, vector operations per
chunk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from meander.dataflow.backpressure.inflight import ROW_BYTES, SentBatch
from meander.dataflow.control.partition_handoff import PartitionHandoff
from meander.dataflow.control.timestamp_overrides import (
    BEHIND_ALL,
    OverrideHistory,
    TimestampOverride,
)
from meander.dataflow.graph.graph import Location
from meander.dataflow.interfaces import Partition, SourceOptions, SourceReader
from meander.dataflow.metrics.histogram import Histogram
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.ports import InFlight, InputPort, OutputPort
from meander.dataflow.operators.source.partitions import (
    PartitionStatus,
    PendingChunk,
    SourcePartition,
)
from meander.dataflow.operators.source.silence import Silence
from meander.dataflow.progress.capability import Capability
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.extra_columns import EVENT_MS, ExtraColumns
from meander.dataflow.records.loop_times import outer_frontier, outer_time
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME, SEQUENCE_BITS, duration, from_millis

MAX_ROWS = 3072
"""Records sent per partition and turn, so that no turn is long."""
LATEST = np.iinfo(np.int64).max
"""The latest time."""


@dataclass(frozen=True, slots=True)
class SourceLocations:
    """The locations of a flow that a source observes, by kind."""

    sources: Sequence[Location]
    """Locations at which all sources hold their partitions' frontiers."""
    read: Sequence[Location]
    """Locations at which sources hold read records: the same, and their announcements."""
    waiting: Sequence[Location]
    """All other locations except `advance_requests`. A pointstamp here may wait for a source."""
    advance_requests: Sequence[Location]
    """Locations of advance requests."""
    sinks: Sequence[Location]
    """The outputs of the sinks: the flow's probe."""
    alarmed: bool
    """Whether results of alarms may wait at a time that no record has."""
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
        handoffs: InputPort,
        output: OutputPort,
        announcements: OutputPort,
        locations: SourceLocations,
        override_history: OverrideHistory,
        uses: Collection[str] = (),
        silence: Silence | None = None,
        restored: Iterable[PartitionHandoff] = (),
        *,
        resumes: bool = False,
    ) -> None:
        """`uses` are the extra columns that functions behind the source read. `silence` is there
        where logical time follows the wall clock. `restored` are the partitions that a checkpoint
        knows. With `resumes` the flow starts from a checkpoint, so any other partition is new."""
        self._origin, self._reader, self._options = origin, reader, options
        self._uses, self._silence = uses, silence
        self._handoffs, self._output, self._announcements = handoffs, output, announcements
        self._locations = locations
        self._progress, self._clock = context.progress, context.clock
        self._inflight, self._counters = context.inflight, context.counters
        self._fires_timers = context.fires_timers
        self._override_history = override_history
        self._unreadable = 0
        self.delays = Histogram()
        """The delay of each chunk from the reader until all sinks have passed it."""
        self._full_capability: Capability | None = None
        self.furthest = MIN_TIME
        """The latest time that this worker, or an earlier reader of its partitions, has sent."""
        self._limit: int | None = None
        """The latest time that may be sent now, or None."""
        self._ended_capabilities: list[Capability] = []
        """Capabilities for ended partitions with records that the sinks have not passed."""
        self._skew = duration(options.max_skew)
        now = self._clock.monotonic()
        known = {handoff.partition: handoff for handoff in restored}
        self._partitions = {
            p: SourcePartition(p, output.open(MIN_TIME), now, now, override_history.of(origin, p))
            for p in reader.partitions
            if p not in known
        }
        self._ended: dict[Partition, PartitionHandoff] = {}
        """The handoffs of partitions that have ended."""
        for partition in self._partitions.values() if resumes else ():
            self._start_behind_committed(partition)
        for handoff in known.values():
            partition = self._continue_partition(handoff, output.open(handoff.frontier))
            self._advance_past_sent(partition)
            self._await_earlier_records(partition)
        if self._partitions:
            self._take_part()

    def _take_part(self) -> None:
        if self._silence is not None:
            self._silence.take_part()

    def schedule(self) -> bool:
        """Read and send records, and advance idle partitions. Return whether the source worked."""
        self._inflight.free_passed(self._passed_by_sinks(), self._clock.monotonic())
        adopted = self._adopt()
        read = self._read() or adopted
        self._pause_and_resume()
        self._announce_full()
        if not self._progress.ready:
            return read
        advanced = self._apply_overrides() or self._advance_idle() or self._follow_clock()
        sent = self._send()
        closed = self._close_ended()
        return read or advanced or sent or closed

    def wait_seconds(self) -> float | None:
        """Return the seconds until the next partition counts as idle, if a pointstamp waits for
        one. From now on the reader wakes the loop."""
        self._reader.watch()
        if not self._partitions or not self._progress.ready:
            return None
        silent = None if self._silence is None else self._silence.wait_seconds(self._silent_since)
        due = [since for _, _, since in self._blocking_partitions()]
        if not due:
            return silent
        seconds = max(0.0, min(due) + self._options.idle_after - self._clock.monotonic())
        return seconds if silent is None else min(seconds, silent)

    @property
    def total(self) -> int | None:
        """Return the number of partitions on all workers, or None where the number is final."""
        return self._reader.total

    def finished(self) -> bool:
        """Return whether every partition has ended, and the sinks have passed its records."""
        return not self._partitions and not self._ended_capabilities

    def statuses(self) -> list[PartitionStatus]:
        """Return the status of every partition that has not ended."""
        return [p.status(self._reader.idle(p.number)) for p in self._partitions.values()]

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    # -- partition moves

    def reads(self, number: Partition) -> bool:
        """Return whether this worker reads a partition, or has read it to its end."""
        return number in self._partitions or number in self._ended

    def release(self, number: Partition, at: int) -> PartitionHandoff | None:
        """Release a partition and return its handoff, once its frontier has reached `at`. Return
        None before."""
        if (handoff := self._ended.pop(number, None)) is not None:
            # No record of it remains, but the next checkpoint must still list it.
            self._reader.release(number)
            return replace(handoff, frontier=max(handoff.frontier, at))
        assert number in self._partitions, "only its reader gets an order for a partition (I1)"
        partition = self._partitions[number]
        if partition.time < at:
            return None
        self._advance_past_sent(partition)
        handoff = partition.handoff(self._reader.release(number))
        self._inflight.unread(sum(pending.size for pending in partition.queue))
        del self._partitions[number]
        partition.close()
        return handoff

    def _adopt(self) -> bool:
        adopted = False
        for message in self._handoffs.drain():
            adopted = True
            handoff = message.payload
            assert isinstance(handoff, PartitionHandoff)
            capability = self._output.mint(message)
            capability.downgrade(handoff.frontier)
            self._await_earlier_records(self._continue_partition(handoff, capability))
            self._reader.adopt(handoff.partition, handoff.rest)
        return adopted

    def _start_behind_committed(self, partition: SourcePartition) -> None:
        """Advance a new partition to the end of the replay: its records have no committed results,
        and results before that time count as committed. An earlier execution may have done so."""
        if not partition.overrides.end:
            self._override(partition, partition.overrides.replay_end)

    def _advance_past_sent(self, partition: SourcePartition) -> None:
        """Advance a partition past its sent records where no operator sorts them, so later records
        get later times. A replay gives no further overrides."""
        if self._locations.unsorted and not partition.replaying:
            self._override(partition, partition.newest + 1)

    def _await_earlier_records(self, partition: SourcePartition) -> None:
        """Let a partition wait until the unsorted ports have passed the times of its earlier
        records."""
        if self._locations.unsorted and partition.time > partition.newest:
            partition.awaited_time = partition.newest

    def _continue_partition(
        self, handoff: PartitionHandoff, capability: Capability
    ) -> SourcePartition:
        """Read a partition from the position of its handoff."""
        overrides = self._override_history.of(self._origin, handoff.partition)
        now = self._clock.monotonic()
        partition = SourcePartition(
            handoff.partition, capability, now, now, overrides, handoff.rest.offset,
            handoff.maximum, handoff.newest, handoff.frontier,
        )  # fmt: skip
        self._partitions[handoff.partition] = partition
        self._take_part()
        self.furthest = max(self.furthest, handoff.newest)
        return partition

    def partition_handoffs(self) -> list[PartitionHandoff]:
        """Return the handoff of each partition that this worker reads, has read to its end, or is
        about to read."""
        reading = (p.handoff(self._reader.rest(p.number)) for p in self._partitions.values())
        incoming = (message.payload for message in self._handoffs.waiting)
        handoffs = (one for one in incoming if isinstance(one, PartitionHandoff))
        return [*reading, *self._ended.values(), *handoffs]

    def sent_up_to(self, limit: int) -> bool:
        """Return whether all known records up to a time have been sent."""
        return all(
            p.time > limit or (not p.queue and self._reader.idle(p.number))
            for p in self._partitions.values()
        )

    def passed(self, time: int) -> bool:
        """Return whether all sinks have passed the records up to a time."""
        return not self._passed_by_sinks().less_equal(time)

    def pause_after(self, limit: int | None) -> None:
        """Send no record later than `limit` until the next call. None removes the limit."""
        self._limit = limit

    def in_flight(self) -> Iterable[InFlight]:
        """Return nothing, as unsent records are read again."""
        return ()

    # -- reading

    def _read(self) -> bool:
        chunks = self._reader.poll()
        now = self._clock.monotonic()
        for chunk in chunks:
            partition = self._partitions[chunk.partition]
            limit = from_millis(self._clock.now_ms()) + duration(self._options.max_future)
            # Times have a maximum, and records near it are future records for every clock.
            limit = min(limit, BEHIND_ALL - 1)
            pending = partition.enqueue(chunk, limit, now)
            self._counters["future_ignored"] += int(np.count_nonzero(pending.future))
            self._inflight.read(chunk.size)
            self._counters["read"] += len(chunk.values)
        self._counters["unreadable"] += self._reader.unreadable - self._unreadable
        self._unreadable = self._reader.unreadable
        return bool(chunks)

    def _pause_and_resume(self) -> None:
        for partition in self._partitions.values():
            # A replay needs records that were read here before, even if less was in flight then.
            may_read = partition.replaying or not self._inflight.overfull
            empty = not partition.queue and may_read
            wanted = not self._inflight.full or (empty and self._blocks_alone(partition))
            if wanted == partition.paused:
                partition.paused = not wanted
                act = self._reader.resume if wanted else self._reader.pause
                act(partition.number)

    def _announce_full(self) -> None:
        """Hold a capability while reading has stopped, so that idle partitions advance and
        in-flight records leave."""
        if self._inflight.full and self._full_capability is None and self._partitions:
            furthest = max(partition.time for partition in self._partitions.values())
            self._full_capability = self._announcements.open(furthest)
        elif self._full_capability is not None and not (self._inflight.full and self._partitions):
            self._full_capability.drop()
            self._full_capability = None

    def _drained(self, floor: int) -> bool:
        """Return whether the sinks have passed all records before the floor."""
        return not self._passed_by_sinks().less_than(floor)

    # -- sending

    def _send(self) -> bool:
        sent = False
        for partition in sorted(self._partitions.values(), key=attrgetter("next_time")):
            if partition.queue and self._may_send(partition):
                sent |= self._send_partition(partition)
            elif partition.queue and partition.announced is None:
                partition.announced = self._announcements.open(partition.next_time)
        return sent

    def _may_send(self, partition: SourcePartition) -> bool:
        """Return whether a partition may send. The flow has room for its records, or drains none
        without it. Its records of another worker or an earlier execution have passed."""
        saturated = self._inflight.is_saturated(self._reader, partition.number)
        if saturated and not (partition.replaying or self._blocks_alone(partition)):
            return False
        if (awaited := partition.awaited_time) is not None:
            frontiers = map(self._progress.frontier, self._locations.unsorted)
            if any(outer_frontier(frontier).less_equal(awaited) for frontier in frontiers):
                return False
            partition.awaited_time = None
        return True

    def _blocks_alone(self, partition: SourcePartition) -> bool:
        """Return whether a partition alone holds back the flow: all other records have passed."""
        floor = self._least_source_time()
        return partition.time == floor and self._drained(floor)

    def _send_partition(self, partition: SourcePartition) -> bool:
        skew_limit = min(self._least_source_time() + self._skew, LATEST)
        budget, waits = MAX_ROWS, False
        while partition.queue and budget and not waits:
            times, natural = partition.next_rows(budget)
            rows = self._count_sendable(partition, times, skew_limit)
            if rows:
                self._send_rows(partition, partition.queue[0], times[:rows], natural[:rows])
                budget -= rows
            waits = rows < len(times)
        self._announce(partition, waits)
        return budget < MAX_ROWS

    def _count_sendable(self, partition: SourcePartition, times: Int64s, skew_limit: int) -> int:
        """Return how many of the next records may leave: those within the skew limit, or a few.
        All are within the limit of a checkpoint."""
        head = partition.queue[0]
        bytes_ahead = self._inflight.bytes_ahead(self._reader, partition.number)
        few = head.count * bytes_ahead // (head.size + ROW_BYTES * head.count)
        rows = max(_up_to(skew_limit, times), min(few, len(times)))
        return rows if self._limit is None else min(rows, _up_to(self._limit, times))

    def _send_rows(
        self, partition: SourcePartition, head: PendingChunk, times: Int64s, natural: Int64s
    ) -> None:
        rows, chunk = len(times), head.chunk
        until = head.row + rows
        batch = Batch(
            times,
            np.full(rows, self._origin, np.int64),
            np.full(rows, partition.number, np.int64),
            chunk.offsets[head.row : until],
            np.zeros(rows, np.int64),
            chunk.values[head.row : until],
            extra=self._extra(chunk.times[head.row : until], times),
        )
        sent = slice(head.row, until)
        self._count_late_adjusted(times, head.requested[sent], head.future[sent])
        if head.future.any():
            self._override_future(partition, head, times)
        self._output.send(partition.capability, int(times[0]), batch)
        last = int(times[-1])
        partition.maximum, partition.newest = int(natural[-1]), last
        partition.next_offset = int(chunk.offsets[until - 1]) + 1
        complete = until == len(chunk.values)
        self._inflight.sent(
            SentBatch(
                last, head.count_sent(rows), rows, self._reader, partition.number,
                partition.next_offset, head.read_at, self.delays if complete else None,
            )
        )  # fmt: skip
        if complete:
            partition.queue.popleft()
        self.furthest = max(self.furthest, last)
        self._advance(partition, last)

    def _extra(self, own: Int64s, times: Int64s) -> ExtraColumns | None:
        """Return the extra columns of records, from their own times and the times that they got."""
        if EVENT_MS not in self._uses:
            return None
        millis = own >> SEQUENCE_BITS
        # A batch without the column stands for records that got their own times.
        return {EVENT_MS: millis} if (millis != times >> SEQUENCE_BITS).any() else None

    def _count_late_adjusted(
        self, times: Int64s, requested: Int64s, future: npt.NDArray[np.bool_]
    ) -> None:
        """Count records whose time was raised to another millisecond, by how much together, and by
        how much at most. `_read` counts future records."""
        requested = np.maximum(requested, MIN_TIME)
        raised = (times >> SEQUENCE_BITS) - (requested >> SEQUENCE_BITS)
        raised[future] = 0
        self._counters["late_adjusted"] += int(np.count_nonzero(raised))
        self._counters["late_adjusted_ms"] += int(raised.sum())
        most = int(raised.max(initial=0))
        if most > self._counters["late_most_ms"]:
            self._counters["late_most_ms"] = most

    def _announce(self, partition: SourcePartition, waits: bool) -> None:
        """Advance to the time of the next record. Announce that time if the record has to wait."""
        upcoming, announced = partition.next_time, partition.announced
        self._advance(partition, upcoming)
        if announced is not None and not (waits and announced.time == upcoming):
            partition.withdraw()
        if waits and partition.announced is None:
            partition.announced = self._announcements.open(upcoming)

    # -- advancing

    def _advance(self, partition: SourcePartition, time: int) -> bool:
        """Advance a partition to a time. Return whether it was before that time."""
        if time <= partition.time:
            return False
        partition.capability.downgrade(time)
        partition.advanced_at = self._clock.monotonic()
        return True

    def _override(self, partition: SourcePartition, time: int) -> None:
        """Advance a partition without a record, and record the override for its next record."""
        if self._advance(partition, time):
            self._record_override(partition, partition.next_offset, time)

    def _record_override(
        self, partition: SourcePartition, offset: int, time: int, last: int | None = None
    ) -> None:
        override = TimestampOverride(self._origin, partition.number, offset, time, last)
        self._progress.overrides.append(override)

    def _override_future(
        self, partition: SourcePartition, head: PendingChunk, times: Int64s
    ) -> None:
        """Record overrides for future records that are about to leave."""
        rows = slice(head.row, head.row + len(times))
        offsets = head.chunk.offsets[rows]
        new = head.future[rows] & ~partition.overrides.future(offsets)
        # A run has one time, as no future record advances the partition.
        edges = np.flatnonzero(np.diff(new, prepend=False, append=False))
        for first, end in edges.reshape(-1, 2).tolist():
            run = int(offsets[first]), int(times[first]), int(offsets[end - 1])
            self._record_override(partition, *run)

    def _apply_overrides(self) -> bool:
        """Follow known overrides, once all records before them have been sent. Return whether a
        partition advanced."""
        advanced = [self._advance(p, p.floor) for p in self._partitions.values()]
        return any(advanced)

    def _close_ended(self) -> bool:
        ended = [
            partition
            for partition in self._partitions.values()
            if not partition.queue and self._reader.ended(partition.number)
        ]
        for partition in ended:
            # Its records may wait for other partitions until the sinks have passed them. Without
            # later timers, operators learn of the end once the sinks have passed the last record.
            port = self._announcements if self._fires_timers() else self._output
            self._ended_capabilities.append(port.open(partition.time + 1))
            # Later records, in another run, must not have times that pass from now on.
            self._record_override(partition, partition.next_offset, BEHIND_ALL)
            rest = self._reader.rest(partition.number)
            self._ended[partition.number] = partition.handoff(rest)
            partition.close()
            del self._partitions[partition.number]
        if self._ended_capabilities:
            passed = self._passed_by_sinks()
            for one in [*self._ended_capabilities]:
                if not passed.less_equal(outer_time(one.time) - 1):
                    one.drop()
                    self._ended_capabilities.remove(one)
        return bool(ended)

    def _advance_idle(self) -> bool:
        now = self._clock.monotonic()
        advanced = False
        for partition, target, since in self._blocking_partitions():
            if now - since >= self._options.idle_after:
                self._override(partition, target)
                self._counters["idle_advances"] += 1
                advanced = True
        return advanced

    def _follow_clock(self) -> bool:
        """Advance silent partitions to the time that all sources agree to. Return whether one
        advanced."""
        if self._silence is None:
            return False
        if not self._partitions:
            self._silence.withdraw()
            return False
        self._silence.propose(self._silent_since)
        if not self._silence.follows:
            return False
        agreed, advanced = self._silence.agreed, False
        for partition in self._partitions.values():
            if agreed > partition.time and self._is_silent(partition):
                self._override(partition, agreed)
                self._counters["clock_advances"] += 1
                advanced = True
        return advanced

    @property
    def _silent_since(self) -> float | None:
        """Return the second of the last record; None while a partition has records."""
        if not all(map(self._is_silent, self._partitions.values())):
            return None
        return max(partition.active_at for partition in self._partitions.values())

    def _is_silent(self, partition: SourcePartition) -> bool:
        read = not partition.queue and self._reader.idle(partition.number)
        return read and not partition.replaying

    def _blocking_partitions(self) -> list[tuple[SourcePartition, int, float]]:
        """Return the partitions that hold back waiting pointstamps, each with its target time and
        the second from which on it counts as idle."""
        furthest = self._progress.furthest(self._locations.read)
        requested = self._progress.furthest(self._locations.advance_requests)
        if furthest is None:
            return []
        if requested is None:
            least = self._progress.least(self._locations.waiting)
            if least is None or outer_time(least) > furthest:
                return []
        alarmed = self._locations.alarmed and self._waits_at(furthest)
        blocking = []
        for partition in self._partitions.values():
            target = self._target(partition, furthest, requested, alarmed)
            if target > partition.time:
                since = partition.advanced_at if partition.queue else partition.active_at
                blocking.append((partition, target, since))
        return blocking

    def _waits_at(self, furthest: int) -> bool:
        """Return whether all that waits for a source is at the furthest time."""
        least = self._progress.least(self._locations.waiting)
        return least is not None and outer_time(least) == furthest

    def _target(
        self, partition: SourcePartition, furthest: int, requested: int | None, alarmed: bool
    ) -> int:
        time, newest = partition.time, partition.newest
        if partition.replaying:
            return time
        if partition.queue:
            # All its records have one time. Others may pass that time, and its own follow there.
            blocks = time == partition.next_time == newest == self._least_source_time()
            return time + 1 if blocks else time
        stuck = partition.paused and self._inflight.overfull
        if not (stuck or self._reader.idle(partition.number)):
            return time
        if requested is not None and requested >= furthest:
            return requested + 1
        # Only a partition with a record of the furthest time may pass it, so advances end there.
        # A result of an alarm is another such record.
        return furthest + 1 if time == furthest and (alarmed or newest == furthest) else furthest

    def _least_source_time(self) -> int:
        least = self._progress.least(self._locations.sources)
        return MIN_TIME if least is None else outer_time(least)

    def _passed_by_sinks(self) -> Antichain:
        return Antichain.of(
            *(
                time
                for at in self._locations.sinks
                for time in outer_frontier(self._progress.frontier(at))
            )
        )


def _up_to(limit: int, times: Int64s) -> int:
    """Return how many of some ascending times are not later than `limit`."""
    return int(np.searchsorted(times, limit, side="right"))
