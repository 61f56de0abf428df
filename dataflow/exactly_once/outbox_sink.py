"""The sink operator of results that nobody could make again: they wait in an outbox (design 5).

Behind records applied as they arrive, or a function declared non-deterministic, a replay gives
other results than before. So what has come here leaves only once a checkpoint that holds it exists,
in one transaction, whose mark names the checkpoint: of what a start finds in an outbox all is out,
or nothing. Outboxes leave side by side, so results of a bin that came here at t are held back
from t on until a checkpoint has all of before (I9): they leave with a later one. Invariant: what is
leaving is in no other checkpoint, as none begins meanwhile; what an outbox held before comes ahead
of all else. Cost: each result is written once more, as in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meander.dataflow.exactly_once.interfaces import DeferredWriter
from meander.dataflow.operators.buffer.buffer import SpillBuffer
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import BaseOperator, InFlight, InputPort, Message
from meander.dataflow.operators.sink import written
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import Rounds, rounds_of
from meander.state.keys.ids import Bin
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time

SLICE = 1024
"""Records that go into an outbox between two looks whether there is room."""


class _Kept(NamedTuple):
    """Records that are not known to be out."""

    ticket: int
    time: Time
    """None of them is of an earlier one."""
    batch: Batch


class _Cut(NamedTuple):
    """What a checkpoint has of an outbox."""

    checkpoint: int
    ticket: int
    """Of the last batch; 0 where there is none."""


@dataclass(slots=True)
class _Came:
    """Bins that came here at one time, and their results from then on."""

    waiting: SpillBuffer
    """In the order in which they came: each bears the time of the move, and its own as a mark."""
    moved: npt.NDArray[np.bool_]
    """Mask of the bins that moved here at this time; shape (bins,)."""
    admitted: bool = False
    """Whether all of before is in checkpoints that were completed."""
    ready: deque[Rows] = field(default_factory=deque)
    """Those that go into the outbox first, as soon as there is room."""

    @property
    def bins(self) -> list[int]:
        """The bins that the mask marks, ascending."""
        found: list[int] = np.flatnonzero(self.moved).tolist()
        return found

    @property
    def some(self) -> bool:
        """Whether any results are held back."""
        return bool(self.ready) or self.waiting.least is not None

    def rows(self) -> Iterator[Rows]:
        """All results, as of the call; they stay."""
        return map(_with_their_times, chain([*self.ready], self.waiting.rows()))


class OutboxSink(BaseOperator):
    """One sink on one worker; it lets the frontier pass what lies in its outbox."""

    def __init__(
        self,
        context: OperatorContext,
        results: InputPort,
        before: InputPort,
        writer: DeferredWriter,
        guard: Guard,
        first: int,
    ) -> None:
        """What outboxes held at the cut with which the flow has begun comes in by `before`. The
        sink's bins have numbers from `first` on; `max_waiting` bytes of what is held back lie in
        memory.
        """
        self._space, self._first, self._control = context.space, first, context.control
        self._buffer, self._most = context.buffer, context.max_waiting
        self._came: dict[int, _Came] = {}
        """By time, of which not all of before is known to be in a checkpoint."""
        self._results, self._before, self._writer = results, before, writer
        self._guard = guard
        self._kept = deque[_Kept]()
        self._cut = _Cut(0, 0)
        self._leaving = 0
        """The ticket of the last that has been let go of."""

    def expect(self, bin: Bin, time: int) -> None:
        """A bin's results come here from a time on; those of before lie in others' outboxes."""
        if time not in self._came:
            moved = np.zeros(self._space.count, np.bool_)
            self._came[time] = _Came(self._buffer(f"moved {time}"), moved)
        self._came[time].moved[bin] = True

    def schedule(self) -> bool:
        """Take records in, let go of what is out."""
        took = self._take(self._before)
        if not self._before.frontier:
            took |= self._admit()
            # Else what is held back might grow faster than it goes into the outbox.
            if not any(came.admitted for came in self._came.values()):
                took |= self._take(self._results)
            took |= self._relieve()
        return self._release() or took

    @property
    def held(self) -> list[tuple[int, int]]:
        """The bins of which results are held back, and from which times on."""
        some = ((time, came) for time, came in self._came.items() if came.some)
        return [(self._first + bin, time) for time, came in some for bin in came.bins]

    @property
    def full(self) -> bool:
        """Whether nothing more is taken in before something has left (I6)."""
        return self._writer.full

    def finished(self) -> bool:
        """Whether all is out."""
        return not (self._kept or any(came.some for came in self._came.values()))

    def underway(self) -> Iterable[InFlight]:
        """What is not known to be out; what is held back comes again as it came."""
        kept = [InFlight(self._before.location, one.time, one.batch) for one in self._kept]
        held = chain.from_iterable([came.rows() for _, came in sorted(self._came.items())])
        at = self._results.location
        return chain(kept, (InFlight(at, rows.least_time, rows.batch) for rows in held))

    def freeze(self, checkpoint: int) -> None:
        """A checkpoint has what lies here now, with all that was to come first: what it says of the
        two it says with one word."""
        self._release()
        self._take_all(self._before)
        waiting = not self._kept or self._kept[0].ticket > self._leaving
        assert waiting, "what is leaving is in no other checkpoint"
        self._cut = _Cut(checkpoint, self._kept[-1].ticket if self._kept else 0)

    def complete(self, checkpoint: int, passed: int, held: Mapping[int, int]) -> bool:
        """One exists: what it has of this outbox leaves with the next transaction; whether that is
        anything. What outboxes lack of results of before `passed` is `held`, by bin from a time."""
        for time, came in self._came.items():
            ahead = (held.get(self._first + bin, time) for bin in came.bins)
            came.admitted |= time <= passed and all(one >= time for one in ahead)
        cut, self._cut = self._cut, _Cut(0, 0)
        if cut.checkpoint != checkpoint or not cut.ticket:
            return False
        self._leaving = cut.ticket
        self._writer.let_go(cut.ticket)
        return True

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()

    def _take(self, port: InputPort) -> bool:
        took = False
        messages = port.drain()
        while not self._writer.full and self._known(port):
            if (message := next(messages, None)) is None:
                break
            self._keep(message)
            took = True
        return took

    def _known(self, port: InputPort) -> bool:
        """Whether the next message is of times of which all moves are known here."""
        payload = None if port.first is None else port.first.payload
        if not isinstance(payload, Batch) or not len(payload):
            return True
        return not self._control().less_equal(int(payload.times.max()))

    def _admit(self) -> bool:
        """Take some of what was held back into the outbox, as there is room; whether any was."""
        for time, came in sorted(self._came.items()):
            if came.admitted and not self._writer.full:
                if not came.ready:
                    found, more = came.waiting.passed(Antichain())
                    came.ready += found
                    if not (found or more):
                        del self._came[time]
                if came.ready:
                    rows, rest = came.ready.popleft().cut(SLICE)
                    if len(rest):
                        came.ready.appendleft(rest)
                    rows = _with_their_times(rows)
                    self._put(rows.least_time, rows.batch)
                return True
        return False

    def _relieve(self) -> bool:
        """Make some room where too much is held back; whether anything was done."""
        if sum(came.waiting.size for came in self._came.values()) <= self._most:
            return False
        return any(came.waiting.shed() for came in self._came.values())

    def _take_all(self, port: InputPort) -> None:
        """Though there is no room; that is a piece at most."""
        for message in port.drain():
            self._keep(message)

    def _keep(self, message: Message) -> None:
        assert isinstance(message.payload, Batch)
        # Functions may change values in place as long as these lie here.
        batch = message.payload.isolated()
        if self._came:
            batch = self._hold_back(batch, rounds_of(message.time))
        if len(batch):
            self._put(message.time, batch)

    def _put(self, time: Time, batch: Batch) -> None:
        ticket = written(self._writer, self._guard, batch)
        self._kept.append(_Kept(ticket, time, batch))

    def _hold_back(self, batch: Batch, rounds: Rounds) -> Batch:
        """Keep the results of bins that came, from then on; the others may leave."""
        bins = self._space.bins_of(batch.places)
        for time, came in sorted(self._came.items(), reverse=True):
            held = (batch.times >= time) & came.moved[bins]
            if held.any():
                some = batch.take(np.flatnonzero(held))
                moved = replace(some, times=np.full(len(some), time, np.int64))
                came.waiting.add(Rows(moved, some.times, rounds))
                batch, bins = batch.take(np.flatnonzero(~held)), bins[~held]
        return batch

    def _release(self) -> bool:
        delivered, released = self._writer.delivered(), False
        while self._kept and self._kept[0].ticket <= delivered:
            self._kept.popleft()
            released = True
        return released


def _with_their_times(rows: Rows) -> Rows:
    """Results that were held back, with the times that they have."""
    return replace(rows, batch=replace(rows.batch, times=rows.marks))
