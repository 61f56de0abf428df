"""The ordered sink delivers results exactly once, in the order of time, in transactions.

Guarantees that the results written at the end of a step are all those before `written_before`,
without results that earlier executions committed (`committed`). Replayed results are compared with
the committed ones (`replay`). In the middle of a time the sink is not `complete`. Records wait for
their time and then for their commit; beyond a limit they wait on disk (I6). So the frontier behind
the sink is durable. A dead letter is durable before the transaction after it. When a bin moves here
at t, results from t on wait until all results before t are durable on all workers (I9). Cost: a
sort per step in which the frontier moves, and a transaction of the other workers for each time of
moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from meander.dataflow.exactly_once.checksum import Checksum, CommittedChecksum
from meander.dataflow.exactly_once.commit_history import NOT_COMMITTED, CommittedResults
from meander.dataflow.exactly_once.interfaces import ChecksummedWriter
from meander.dataflow.exactly_once.replay_check import Replay
from meander.dataflow.operators.buffer.rows import Rows, in_order
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard, SinkDeadLetters
from meander.dataflow.operators.ports import BaseOperator, InFlight, InputPort, OutputPort, least_of
from meander.dataflow.operators.sink import write_valid
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import (
    iterations_of,
    nested_time,
    outer_frontier,
    outer_time,
)
from meander.state.keys.ids import Bin
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME

SLICE = 1024
"""The most records written between two checks for room."""
TURNS = 64
"""A turn writes at most one such share of the limit, so that a time of many results does not block
the loop."""


class _Written(NamedTuple):
    """Records of a transaction that may not be committed."""

    ticket: int
    rows: Rows
    size: int
    """About the bytes of the records."""


class OrderedSink(BaseOperator):
    """An operator that writes the results of one sink on one worker in the order of time."""

    def __init__(
        self,
        context: OperatorContext,
        source: InputPort,
        output: OutputPort,
        writer: ChecksummedWriter,
        guard: Guard,
        dead: SinkDeadLetters,
        committed: CommittedResults,
        loops: int,
    ) -> None:
        """The sink lies within `loops` loops; memory limits apply to each kind of waiting record.
        All ordered sinks of the worker share `dead`.

        `most` bytes may wait for their time, as many may be ready, and half as many may wait for a
        commit.
        """
        self.name = context.name
        self._input, self._output, self._writer = source, output, writer
        self._guard, self._dead, self._counters = guard, dead, context.counters
        self._waiting = context.buffer("records")
        self._most, self._space, self._committed = context.max_waiting, context.space, committed
        self._loops = loops
        self._control, self._move_times = context.control, set[int]()
        """The times at which bins moved here, while earlier results may not be durable."""
        self._over = False
        self._capabilities = CapabilitySet()
        self._ready: deque[Rows] = deque()
        """Records whose time has passed, in order."""
        self._stored, self._stored_as = context.buffer("written"), 0
        """The first uncommitted records, on disk; all have this ticket."""
        self._under_way: deque[_Written] = deque()
        """The uncommitted records behind those."""
        self._size = 0
        """About the bytes of these records."""
        self._newest = MIN_TIME - 1
        """The time of the last record that was written."""
        self.written_before = MIN_TIME
        """All results before this time have been written."""
        self.replay_from = MIN_TIME
        """No result from this time on has been dropped."""
        self.replay = Replay(self.name, committed, writer)
        self._drained = Checksum()
        self._since: int | None = None
        """The checksum of the results in commit markers, and the first time of other written
        results."""

    @property
    def complete(self) -> bool:
        """Whether all written results lie before `written_before`: not in the middle of a time."""
        return self._newest < self.written_before

    def drain_written(self) -> CommittedChecksum:
        """Return the checksum of the results written since the last call."""
        checksum = self._writer.written_checksum
        out = CommittedChecksum(
            self.written_before if self._since is None else self._since, checksum - self._drained
        )
        self._drained, self._since = checksum, None
        return out

    def expect(self, bin: Bin, time: int) -> None:
        """Expect the results of a bin from a time on."""
        self._move_times.add(time)

    def schedule(self) -> bool:
        """Receive records, write those whose time has passed, and drop committed ones."""
        received = not self._over and self._receive()
        written = self._write()
        released = self._release()
        worked = received or written or released
        if worked or self._over:
            worked |= self._spill()
            rows = chain(self._ready, (one.rows for one in self._under_way))
            times = (some.least_time for some in rows)
            self._capabilities.downgrade(
                *least_of(*self._waiting.pending_times, *self._stored.pending_times, *times)
            )
        return worked

    def finished(self) -> bool:
        """Return whether all results are committed."""
        return not (self._under_way or self._stored.spilled)

    def wait_seconds(self) -> float | None:
        """Return a short time while a dead letter is not durable."""
        return None if self._dead.durable else 0.001

    def in_flight(self) -> Iterable[InFlight]:
        """Return the uncommitted records and those that wait for their time."""
        at = self._input.location
        here = chain((one.rows for one in self._under_way), self._ready)
        uncommitted = [InFlight.isolated(at, rows.least_time, rows.batch) for rows in here]
        stored, waiting = (
            (InFlight(at, rows.least_time, rows.batch) for rows in pool.rows())
            for pool in (self._stored, self._waiting)
        )
        return chain(stored, uncommitted, waiting)

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()

    def _receive(self) -> bool:
        received = False
        for message in self._input.consume():
            received = True
            self._capabilities.retain(self._output.mint(message))
            batch, iterations = message.payload, iterations_of(message.time)
            assert isinstance(batch, Batch)
            self._waiting.add(Rows.of(batch, 0, iterations, message.arrived_at))
        return received

    def _write(self) -> bool:
        # Results of a moved bin may arrive before the move itself.
        passed = self._least(self._input.frontier, self._control())
        moved = not self._ready and self._make_ready(passed)
        written = self._write_some()
        least = self._ready[0].least if self._ready else self._waiting.least
        waiting = [] if least is None else [least]
        # Once the input has ended, results of a later run come after all these.
        self.written_before = min(
            (*passed, *waiting), default=max(self.written_before, self._newest + 1)
        )
        if self.written_before >= self._committed.latest_marker or not (passed or waiting):
            self.replay.end()
        return moved or written

    def _make_ready(self, passed: list[int]) -> bool:
        """Take records whose time has passed; return whether there were any, or more are left."""
        # In the middle of a time it must continue, since no transaction can commit before its end.
        if self._writer.full and self.complete:
            return False
        until = [*passed, *self._blocked_times()]
        bound = Antichain.of(*(nested_time(time, (0,) * self._loops) for time in until))
        ready, more = self._waiting.pop_passed(bound)
        for rows in in_order(ready) if ready else ():
            self._ready += self._slices(rows)
        return bool(ready) or more

    @staticmethod
    def _least(*frontiers: Antichain) -> list[int]:
        """Return the least outer time of some frontiers, if there is one."""
        return sorted(outer_time(time) for frontier in frontiers for time in frontier)[:1]

    def _blocked_times(self) -> list[int]:
        """Return the time from which on no result may be written yet, if there is one."""
        if self._move_times:
            durable = outer_frontier(self._output.frontier)
            self._move_times = {time for time in self._move_times if durable.less_than(time)}
        return sorted(self._move_times)[:1]

    def _slices(self, rows: Rows) -> Iterator[Rows]:
        """Cut ordered records into slices, between two times where possible."""
        share, start = max(1, self._most // TURNS), 0
        times, count = rows.batch.times, len(rows)
        most = min(SLICE, 1 + share * count // rows.batch.estimated_weight)
        while start < count:
            end = min(start + most, count)
            if end < count:
                same = int(np.searchsorted(times, times[end], side="left"))
                end = same if same > start else end
            yield rows.take(np.arange(start, end))
            start = end

    def _write_some(self) -> bool:
        """Write ready records, at most a turn's share of bytes; return whether any were written."""
        room, written = max(1, self._most // TURNS), False
        while self._ready and room > 0 and self._may_write(self._ready[0].least):
            rows = self._ready.popleft()
            room -= rows.batch.estimated_weight
            self._newest = int(rows.batch.times[-1])
            self._write_rows(self._without_committed(rows))
            written = True
        return written

    def _may_write(self, time: int) -> bool:
        """Return whether there is room for records of a time; in the middle of a time the disk has
        room. Without a pause, a flow of many dead letters would never be complete."""
        if time > self._newest:
            full = self._is_full or self._stored.spilled or self._writer.full
            return self._dead.durable and not full
        while self._is_full and self._store():
            pass
        return not self._is_full

    @property
    def _is_full(self) -> bool:
        """Whether memory has no room for more uncommitted records."""
        return 2 * self._size > self._most

    def _store(self) -> bool:
        """Move the first uncommitted records to disk.

        Return False while the disk holds records of an earlier transaction whose commit has
        started.
        """
        if self._stored.spilled and self._stored_as != self._under_way[0].ticket:
            return False
        one = self._under_way.popleft()
        self._size -= one.size
        self._stored_as = one.ticket
        self._stored.add(one.rows)
        while self._stored.spill_some():
            pass
        return True

    def _without_committed(self, rows: Rows) -> Rows:
        """Return the records that no earlier execution has committed."""
        bins = self._space.bins_of(rows.batch.bin_hashes)
        committed_by = self._committed.committed_by(bins, rows.batch.times)
        out = committed_by != NOT_COMMITTED
        if not out.any():
            return rows
        self._counters["suppressed"] += int(np.count_nonzero(out))
        committed, rows = rows.split(out)
        self.replay.add(committed_by[out], committed.batch)
        self._drop_rows(committed)
        return rows

    def _write_rows(self, rows: Rows) -> None:
        if len(rows):
            if self._since is None:
                self._since = rows.least
            ticket, _ = write_valid(self._writer, self._guard, rows.batch)
            one = _Written(ticket, rows, rows.batch.estimated_weight)
            self._under_way.append(one)
            self._size += one.size

    def _release(self) -> bool:
        delivered = self._writer.delivered()
        released = False
        if self._stored.spilled and self._stored_as <= delivered:
            released = self._release_stored()
        while not self._stored.spilled and self._under_way:
            if self._under_way[0].ticket > delivered:
                break
            one = self._under_way.popleft()
            self._size -= one.size
            self._drop_rows(one.rows)
            released = True
        if released:
            self._committed.compact(self.written_before)
        return released

    def _release_stored(self) -> bool:
        """Drop some committed records from disk."""
        some, _ = self._stored.pop_passed(Antichain())
        for rows in some:
            self._drop_rows(rows)
        return True

    def _drop_rows(self, rows: Rows) -> None:
        """Drop committed records, in the order of time: no later checkpoint holds them."""
        self.replay_from = max(self.replay_from, int(rows.batch.times[-1]) + 1)
        self._input.latency.complete_each(rows.arrivals)

    def _spill(self) -> bool:
        """Move waiting records to disk where they exceed the limit; return whether anything was
        done."""
        self._over = self._waiting.size > self._most
        return self._over and bool(self._waiting.spill_some())
