"""The sink operator of exactly once: results leave in time order, each in one transaction.

Guarantees that what it has written by the end of a step is all of its input before `mark`, and
nothing from it on, without what earlier lives have committed (`history`), which is compared with
what they have said of it (`replay`); in the midst of a time it is not `complete`. Records wait for
their time and then for their commit, each on disk past a bound (I6): so the frontier behind is
durable, and a checkpoint has what is not. Once a bin came here at t, results from t on wait until
all results of before t are durable, of all workers (I9): of all bins, as a mark knows none. Cost: a
sort per step in which the frontier moves, and a transaction of the others for each time at which
bins come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from meander.dataflow.exactly_once.checksum import Checksum, Out
from meander.dataflow.exactly_once.commit_history import NOBODY, CommittedResults
from meander.dataflow.exactly_once.interfaces import ChecksummedWriter
from meander.dataflow.exactly_once.replay_check import Replay
from meander.dataflow.operators.buffer.rows import Rows, in_order
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import BaseOperator, InFlight, InputPort, OutputPort, least_of
from meander.dataflow.operators.sink import written
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import at, outer, outward, rounds_of
from meander.state.keys.ids import Bin
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME

SLICE = 1024
"""The most records that are written between two looks whether there is room."""
TURNS = 64
"""A turn writes this part of the bound, so that a time of many results leaves the loop alive."""


class _Written(NamedTuple):
    """Records whose transaction is not known to be committed."""

    ticket: int
    rows: Rows
    size: int
    """About how many bytes they take."""


class OrderedSink(BaseOperator):
    """One sink on one worker."""

    def __init__(
        self,
        context: OperatorContext,
        source: InputPort,
        output: OutputPort,
        writer: ChecksummedWriter,
        guard: Guard,
        earlier: CommittedResults,
        loops: int,
    ) -> None:
        """The sink lies within `loops` loops. Memory has room for `max_waiting` bytes of records
        that wait for their time, for as many that are ready, and for half as many that wait for
        a commit.
        """
        self.name = context.name
        self._input, self._output, self._writer = source, output, writer
        self._guard, self._counters = guard, context.counters
        self._waiting = context.buffer("records")
        self._most, self._space, self._earlier = context.max_waiting, context.space, earlier
        self._loops = loops
        self._control, self._came = context.control, set[int]()
        """Times at which bins came here, and of before which not all is known to be durable."""
        self._over = False
        self._held = CapabilitySet()
        self._ready: deque[Rows] = deque()
        """Records whose time has passed, in order."""
        self._stored, self._stored_as = context.buffer("written"), 0
        """The first records that are not known to be committed, where memory has no room for them;
        all have this ticket."""
        self._under_way: deque[_Written] = deque()
        """The records behind those."""
        self._size = 0
        """About how many bytes the records under way take."""
        self._newest = MIN_TIME - 1
        """The time of the last that has been written."""
        self.mark = MIN_TIME
        """All before it has been written."""
        self.anew = MIN_TIME
        """Nothing from it on has been let go of."""
        self.replay = Replay(self.name, earlier, writer)
        self._marked = Checksum()
        self._since: int | None = None
        """Of what has been marked as out, and the first time of what has not."""

    @property
    def complete(self) -> bool:
        """Whether what has been written is all before `mark`: in the midst of a time it is not."""
        return self._newest < self.mark

    def left(self) -> Out:
        """What has been written since the last call."""
        taken = self._writer.taken
        out = Out(self.mark if self._since is None else self._since, taken - self._marked)
        self._marked, self._since = taken, None
        return out

    def expect(self, bin: Bin, time: int) -> None:
        """A bin's results come here from a time on."""
        self._came.add(time)

    def schedule(self) -> bool:
        """Take records, write those whose time has passed, let go of what is out."""
        received = not self._over and self._receive()
        written = self._write()
        released = self._release()
        worked = received or written or released
        if worked or self._over:
            worked |= self._relieve()
            rows = chain(self._ready, (one.rows for one in self._under_way))
            times = (some.least_time for some in rows)
            self._held.downgrade(*least_of(*self._waiting.owed, *self._stored.owed, *times))
        return worked

    def finished(self) -> bool:
        """Whether all is out."""
        return not (self._under_way or self._stored.spilled)

    def underway(self) -> Iterable[InFlight]:
        """What is not known to be out, and what waits for its time."""
        at = self._input.location
        here = chain((one.rows for one in self._under_way), self._ready)
        held = [InFlight.held(at, rows.least_time, rows.batch) for rows in here]
        stored, waiting = (
            (InFlight(at, rows.least_time, rows.batch) for rows in pool.rows())
            for pool in (self._stored, self._waiting)
        )
        return chain(stored, held, waiting)

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()

    def _receive(self) -> bool:
        received = False
        for message in self._input.hold():
            received = True
            self._held.retain(self._output.mint(message))
            batch, rounds = message.payload, rounds_of(message.time)
            assert isinstance(batch, Batch)
            self._waiting.add(Rows.of(batch, 0, rounds, message.arrived))
        return received

    def _write(self) -> bool:
        # What it gets may be here before the word of the move that brings it.
        passed = self._least(self._input.frontier, self._control())
        moved = not self._ready and self._make_ready(passed)
        written = self._write_some()
        least = self._ready[0].least if self._ready else self._waiting.least
        waiting = [] if least is None else [least]
        # Once nothing comes any more, what may be read in a later run comes behind all there was.
        self.mark = min((*passed, *waiting), default=max(self.mark, self._newest + 1))
        if self.mark >= self._earlier.mark or not (passed or waiting):
            self.replay.end()
        return moved or written

    def _make_ready(self, passed: list[int]) -> bool:
        """Take records whose time has passed; whether any were, or more may be next time."""
        # In the midst of a time it has to go on: only then can a transaction be committed.
        if self._writer.full and self.complete:
            return False
        until = [*passed, *self._held_back()]
        bound = Antichain.of(*(at(time, (0,) * self._loops) for time in until))
        ready, more = self._waiting.passed(bound)
        for rows in in_order(ready) if ready else ():
            self._ready += self._slices(rows)
        return bool(ready) or more

    @staticmethod
    def _least(*frontiers: Antichain) -> list[int]:
        """The least outer time of some frontiers, if there is any."""
        return sorted(outer(time) for frontier in frontiers for time in frontier)[:1]

    def _held_back(self) -> list[int]:
        """The time from which on nothing may be written yet, if there is any."""
        if self._came:
            durable = outward(self._output.frontier)
            self._came = {time for time in self._came if durable.less_than(time)}
        return sorted(self._came)[:1]

    def _slices(self, rows: Rows) -> Iterator[Rows]:
        """Cut records that are in order, between two times where that can be."""
        share, start = max(1, self._most // TURNS), 0
        times, count = rows.batch.times, len(rows)
        most = min(SLICE, 1 + share * count // rows.batch.guessed_weight)
        while start < count:
            end = min(start + most, count)
            if end < count:
                same = int(np.searchsorted(times, times[end], side="left"))
                end = same if same > start else end
            yield rows.take(np.arange(start, end))
            start = end

    def _write_some(self) -> bool:
        """Write records that are ready, at most a turn's share of bytes; whether any were."""
        room, written = max(1, self._most // TURNS), False
        while self._ready and room > 0 and self._may_write(self._ready[0].least):
            rows = self._ready.popleft()
            room -= rows.batch.guessed_weight
            self._newest = int(rows.batch.times[-1])
            self._write_rows(self._fresh(rows))
            written = True
        return written

    def _may_write(self, time: int) -> bool:
        """Whether there is room for records of a time; in the midst of one the disk has some."""
        if time > self._newest:
            return not (self._crammed or self._stored.spilled or self._writer.full)
        while self._crammed and self._store():
            pass
        return not self._crammed

    @property
    def _crammed(self) -> bool:
        """Whether memory has no room for more that is not known to be committed."""
        return 2 * self._size > self._most

    def _store(self) -> bool:
        """Move the first records under way to disk; False where others than of their transaction
        lie there, whose commit has begun."""
        if self._stored.spilled and self._stored_as != self._under_way[0].ticket:
            return False
        one = self._under_way.popleft()
        self._size -= one.size
        self._stored_as = one.ticket
        self._stored.add(one.rows)
        while self._stored.shed():
            pass
        return True

    def _fresh(self, rows: Rows) -> Rows:
        """Those that no earlier life has committed."""
        bins = self._space.bins_of(rows.batch.places)
        whose = self._earlier.whose(bins, rows.batch.times)
        out = whose != NOBODY
        if not out.any():
            return rows
        self._counters["suppressed"] += int(np.count_nonzero(out))
        gone, rows = rows.split(out)
        self.replay.add(whose[out], gone.batch)
        self._let_go(gone)
        return rows

    def _write_rows(self, rows: Rows) -> None:
        if len(rows):
            if self._since is None:
                self._since = rows.least
            ticket = written(self._writer, self._guard, rows.batch)
            one = _Written(ticket, rows, rows.batch.guessed_weight)
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
            self._let_go(one.rows)
            released = True
        if released:
            self._earlier.settle(self.mark)
        return released

    def _release_stored(self) -> bool:
        """Drop some committed records from the disk."""
        some, _ = self._stored.passed(Antichain())
        for rows in some:
            self._let_go(rows)
        return True

    def _let_go(self, rows: Rows) -> None:
        """Records are out, in order of time: no checkpoint has them any more."""
        self.anew = max(self.anew, int(rows.batch.times[-1]) + 1)
        self._input.stay.over_each(rows.arrived)

    def _relieve(self) -> bool:
        """Make some room where too much waits; whether anything was done."""
        self._over = self._waiting.size > self._most
        return self._over and bool(self._waiting.shed())
