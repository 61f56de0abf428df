"""The outbox sink keeps results that no replay could repeat in an outbox (design 5).

A replay gives other results behind records applied as they arrive, or behind a function declared
nondeterministic. So results leave only once a checkpoint holds them, in one transaction whose
marker names the checkpoint: a restart finds all of them committed, or none. Outboxes leave
concurrently. So results of a bin that moved here at t wait from t on until a checkpoint holds all
earlier ones (I9). Invariant: leaving results are in no other checkpoint, as none starts meanwhile;
restored outbox contents come first. Cost: each result is written once more, as an in-flight record.
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
from meander.dataflow.operators.sink import write_valid
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import Iterations, iterations_of
from meander.state.keys.ids import Bin
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time

SLICE = 1024
"""The records that enter an outbox between two checks for room."""


class _Uncommitted(NamedTuple):
    """Results that may not be committed."""

    ticket: int
    time: Time
    """No result has an earlier time."""
    batch: Batch


class _Cut(NamedTuple):
    """An outbox's contents in a checkpoint."""

    checkpoint: int
    ticket: int
    """The ticket of the last batch; 0 without one."""


@dataclass(slots=True)
class _MovedBins:
    """Bins that moved here at one time, and their results from then on."""

    waiting: SpillBuffer
    """The results in the order of arrival: each has the time of the move, and its own time as a
    tag."""
    moved: npt.NDArray[np.bool_]
    """A mask of the bins that moved here at this time; shape (bins,)."""
    admitted: bool = False
    """Whether all earlier results are in completed checkpoints."""
    ready: deque[Rows] = field(default_factory=deque)
    """The results that enter the outbox next, as soon as there is room."""

    @property
    def bins(self) -> list[int]:
        """The bins of the mask, ascending."""
        found: list[int] = np.flatnonzero(self.moved).tolist()
        return found

    @property
    def has_results(self) -> bool:
        """Whether any results are held back."""
        return bool(self.ready) or self.waiting.least is not None

    def rows(self) -> Iterator[Rows]:
        """Return all results without removing them."""
        return map(_with_their_times, chain([*self.ready], self.waiting.rows()))


class OutboxSink(BaseOperator):
    """An operator that keeps the results of one sink on one worker; frontiers pass them."""

    def __init__(
        self,
        context: OperatorContext,
        results: InputPort,
        before: InputPort,
        writer: DeferredWriter,
        guard: Guard,
        first: int,
    ) -> None:
        """Restored outbox contents arrive at `before`. The sink's bins have numbers from `first`
        on.

        At most `most` bytes of held-back results stay in memory.
        """
        self._space, self._first, self._control = context.space, first, context.control
        self._buffer, self._most = context.buffer, context.max_waiting
        self._moved: dict[int, _MovedBins] = {}
        """The moved bins by time, while a checkpoint may lack earlier results."""
        self._results, self._before, self._writer = results, before, writer
        self._guard = guard
        self._uncommitted = deque[_Uncommitted]()
        self._cut = _Cut(0, 0)
        self._released = 0
        """The ticket of the last released batch."""

    def expect(self, bin: Bin, time: int) -> None:
        """Expect a bin's results from a time on; earlier results are in other outboxes."""
        if time not in self._moved:
            moved = np.zeros(self._space.count, np.bool_)
            self._moved[time] = _MovedBins(self._buffer(f"moved {time}"), moved)
        self._moved[time].moved[bin] = True

    def schedule(self) -> bool:
        """Receive results, and drop committed ones."""
        received = self._receive(self._before)
        if not self._before.frontier:
            received |= self._admit()
            # Otherwise held-back results might grow faster than they enter the outbox.
            if not any(moved.admitted for moved in self._moved.values()):
                received |= self._receive(self._results)
            received |= self._spill()
        return self._drop_committed() or received

    @property
    def held_back(self) -> list[tuple[int, int]]:
        """The bins whose results are held back, and from which times on."""
        some = ((time, moved) for time, moved in self._moved.items() if moved.has_results)
        return [(self._first + bin, time) for time, moved in some for bin in moved.bins]

    @property
    def full(self) -> bool:
        """Whether no result can enter before others have left (I6)."""
        return self._writer.full

    def finished(self) -> bool:
        """Return whether all results are committed."""
        return not (self._uncommitted or any(moved.has_results for moved in self._moved.values()))

    def in_flight(self) -> Iterable[InFlight]:
        """Return the uncommitted results, then the held-back ones."""
        uncommitted = [
            InFlight(self._before.location, one.time, one.batch) for one in self._uncommitted
        ]
        held_back = chain.from_iterable([moved.rows() for _, moved in sorted(self._moved.items())])
        at = self._results.location
        return chain(uncommitted, (InFlight(at, rows.least_time, rows.batch) for rows in held_back))

    def freeze(self, checkpoint: int) -> None:
        """Freeze the contents for a checkpoint, restored ones included."""
        self._drop_committed()
        self._receive_all(self._before)
        waiting = not self._uncommitted or self._uncommitted[0].ticket > self._released
        assert waiting, "what is leaving is in no other checkpoint"
        self._cut = _Cut(checkpoint, self._uncommitted[-1].ticket if self._uncommitted else 0)

    def complete(self, checkpoint: int, passed: int, held: Mapping[int, int]) -> bool:
        """Release the results in a completed checkpoint; return whether there are any.

        `held` maps bins to the times from which on outboxes lack results before `passed`.
        """
        for time, moved in self._moved.items():
            ahead = (held.get(self._first + bin, time) for bin in moved.bins)
            moved.admitted |= time <= passed and all(one >= time for one in ahead)
        cut, self._cut = self._cut, _Cut(0, 0)
        if cut.checkpoint != checkpoint or not cut.ticket:
            return False
        self._released = cut.ticket
        self._writer.release(cut.ticket)
        return True

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()

    def _receive(self, port: InputPort) -> bool:
        received = False
        messages = port.drain()
        while not self._writer.full and self._known(port):
            if (message := next(messages, None)) is None:
                break
            self._add(message)
            received = True
        return received

    def _known(self, port: InputPort) -> bool:
        """Return whether all moves up to the times of the next message are known here."""
        payload = None if port.first is None else port.first.payload
        if not isinstance(payload, Batch) or not len(payload):
            return True
        return not self._control().less_equal(int(payload.times.max()))

    def _admit(self) -> bool:
        """Put some held-back results into the outbox; return whether there were any."""
        for time, moved in sorted(self._moved.items()):
            if moved.admitted and not self._writer.full:
                if not moved.ready:
                    found, more = moved.waiting.pop_passed(Antichain())
                    moved.ready += found
                    if not (found or more):
                        del self._moved[time]
                if moved.ready:
                    rows, rest = moved.ready.popleft().split_at(SLICE)
                    if len(rest):
                        moved.ready.appendleft(rest)
                    rows = _with_their_times(rows)
                    self._put(rows.least_time, rows.batch)
                return True
        return False

    def _spill(self) -> bool:
        """Move held-back results to disk where they exceed the limit; return whether anything was
        done."""
        if sum(moved.waiting.size for moved in self._moved.values()) <= self._most:
            return False
        return any(moved.waiting.spill_some() for moved in self._moved.values())

    def _receive_all(self, port: InputPort) -> None:
        """Receive all messages even without room; restored contents are one piece at most."""
        for message in port.drain():
            self._add(message)

    def _add(self, message: Message) -> None:
        assert isinstance(message.payload, Batch)
        # User functions may change values in place while they wait here.
        batch = message.payload.isolated()
        if self._moved:
            batch = self._hold_back(batch, iterations_of(message.time))
        if len(batch):
            self._put(message.time, batch)

    def _put(self, time: Time, batch: Batch) -> None:
        ticket, _ = write_valid(self._writer, self._guard, batch)
        self._uncommitted.append(_Uncommitted(ticket, time, batch))

    def _hold_back(self, batch: Batch, iterations: Iterations) -> Batch:
        """Hold back the results of moved bins; return the others."""
        bins = self._space.bins_of(batch.bin_hashes)
        for time, moved in sorted(self._moved.items(), reverse=True):
            held = (batch.times >= time) & moved.moved[bins]
            if held.any():
                some = batch.take(np.flatnonzero(held))
                waiting = replace(some, times=np.full(len(some), time, np.int64))
                moved.waiting.add(Rows(waiting, some.times, iterations))
                batch, bins = batch.take(np.flatnonzero(~held)), bins[~held]
        return batch

    def _drop_committed(self) -> bool:
        delivered, released = self._writer.delivered(), False
        while self._uncommitted and self._uncommitted[0].ticket <= delivered:
            self._uncommitted.popleft()
            released = True
        return released


def _with_their_times(rows: Rows) -> Rows:
    """Return held-back results with their own times."""
    return replace(rows, batch=replace(rows.batch, times=rows.tags))
