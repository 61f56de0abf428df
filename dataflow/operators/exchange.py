"""The exchange: sends keyed records to the owners of their bins (Megaphone's F, 2.2).

Guarantees I2: a record of time s leaves once the control frontier has passed s, to the owner of its
bin at s. Before that it is stashed under a capability for its time. Records of one partition keep
their order. Where bins move, records also keep it on their way to sinks that write on arrival (I9).

A message has a bound of bytes, and values are encoded when it leaves (I6). The stash spills past a
bound. Records without credit stay unsent, and past a bound of them the exchange receives no more.
Cost: one look-up per record, one message per destination and batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np

from meander.dataflow.control.routing import Routing
from meander.dataflow.graph.graph import Location
from meander.dataflow.operators.buffer.rows import NO_ROWS, Rows
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import BaseOperator, InFlight, InputPort, OutputPort, least_of
from meander.dataflow.operators.waiting_records import receive_records
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch, Int64s, UInt64s
from meander.dataflow.records.loop_times import nested_time, outer_frontier
from meander.dataflow.records.packing import PackedValues, join_packed, pack
from meander.dataflow.wire import COLUMN_BYTES, MESSAGE_BYTES, RECORD_BYTES
from meander.state.encoding.value_columns import ValueColumns
from meander.state.keys.ids import WorkerId
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time


@dataclass(slots=True)
class _Unsent:
    """A queue entry that holds routed records of one owner, of which the first may be sent."""

    rows: Rows
    first: int = 0
    least_time: Time = field(init=False)
    """A lower bound of their times."""

    def __post_init__(self) -> None:
        self.least_time = self.rows.least_time

    @property
    def count(self) -> int:
        """Return the number of unsent records."""
        return len(self.rows) - self.first

    @property
    def weight(self) -> int:
        """Return about the bytes of unsent records in memory."""
        return self.rows.batch.weight * self.count // max(1, len(self.rows))

    @property
    def rest(self) -> Rows:
        """Return the unsent records."""
        return self.rows.split_at(self.first)[1] if self.first else self.rows


class Exchange(BaseOperator):
    """An exchange that sends records by key on one worker."""

    def __init__(
        self,
        context: OperatorContext,
        source: InputPort,
        output: OutputPort,
        routing: Routing,
        guard: Guard,
        max_unsent: int,
        first_bin: int,
        downstream_passed: Callable[[int], bool],
        hashes_of: Callable[[Batch], UInt64s],
    ) -> None:
        """`first_bin` is the number of its first bin. `downstream_passed` returns whether the sinks
        that write its records on arrival have passed a time. `hashes_of` returns the hashes whose
        top bits are the bins of records."""
        self._hashes_of = hashes_of
        self._downstream_passed, self._move_times = downstream_passed, set[int]()
        """The check, and the times of moves that these sinks have not passed."""
        self._me, self._input, self._output = context.me, source, output
        self._routing, self._control, self._guard = routing, context.control, guard
        self._first_bin = first_bin
        self.stash = context.buffer("records")
        self._max_waiting, self._max_unsent = context.max_waiting, max_unsent
        self._unsent: dict[WorkerId, deque[_Unsent]] = {}
        self._unsent_bytes = 0
        self._over_limit = False
        self._capabilities = CapabilitySet()

    def schedule(self) -> bool:
        """Send unsent records, stash new ones, and route those that the control frontier has
        passed. Return whether the exchange worked."""
        if self._input.empty and self.stash.empty and not self._unsent:
            return False
        worked = self._send_unsent()
        if self._unsent_bytes < self._max_unsent:
            received = not self._over_limit and self._receive()
            self._move_times = {t for t in self._move_times if not self._downstream_passed(t)}
            ready, more = self.stash.pop_passed(Antichain.of(*self._control(), *self._move_times))
            for rows in ready:
                self._route(rows)
            worked = worked or received or bool(ready) or more
        if worked or self._over_limit:
            worked |= self._spill()
            times = (unsent.least_time for queue in self._unsent.values() for unsent in queue)
            self._capabilities.downgrade(*least_of(*self.stash.pending_times, *times))
        return worked

    def note_move(self, time: int) -> None:
        """Hold records from the time of a move on until all earlier results are out (I9)."""
        self._move_times.add(time)

    def in_flight(self) -> Iterable[InFlight]:
        """Return the unsent and stashed records."""
        at, queues = self._input.location, self._unsent.values()
        unsent = [one.rest.isolated() for queue in queues for one in queue]
        rows = chain(unsent, self.stash.rows())
        return (InFlight(at, some.least_time, some.batch) for some in rows)

    @property
    def output(self) -> Location:
        """Return the location at which its records leave."""
        return self._output.location

    @property
    def blocked_owners(self) -> list[WorkerId]:
        """Return the owners without credit, for which records stay unsent."""
        return list(self._unsent)

    @property
    def frontier(self) -> Antichain:
        """Return the frontier of its records in outer time."""
        return outer_frontier(self._output.frontier)

    def _receive(self) -> bool:
        return receive_records(self._input, self._output, self._capabilities, self.stash)

    def _spill(self) -> bool:
        """Spill records where too many wait. Return whether any record was spilled."""
        self._over_limit = self.stash.size + self._unsent_bytes > self._max_waiting
        return self._over_limit and bool(self.stash.spill_some())

    def _route(self, rows: Rows) -> None:
        if (sole := self._routing.sole_owner) is not None:
            self._send_or_queue(sole, _Unsent(rows))
            return
        batch = rows.batch
        bins = self._routing.space.bins_of(self._hashes_of(batch)) + self._first_bin
        owners = self._routing.destinations(bins, batch.times)
        distinct = np.flatnonzero(np.bincount(owners)).tolist()
        for owner in distinct:
            its = rows.take(np.flatnonzero(owners == owner)) if len(distinct) > 1 else rows
            self._send_or_queue(WorkerId(owner), _Unsent(its))

    def _send_or_queue(self, owner: WorkerId, unsent: _Unsent) -> None:
        if owner not in self._unsent:
            self._send_messages(owner, unsent)
        if unsent.count and len(rows := self._sendable_rows(unsent)):
            self._unsent.setdefault(owner, deque()).append(_Unsent(rows))
            self._unsent_bytes += rows.batch.weight

    def _send_unsent(self) -> bool:
        sent = False
        for owner, queue in list(self._unsent.items()):
            while queue and not self._output.blocked(owner):
                self._unsent_bytes -= queue[0].weight
                self._send_messages(owner, queue[0])
                self._unsent_bytes += queue[0].weight
                sent = True
                if not queue[0].count:
                    queue.popleft()
            if not queue:
                del self._unsent[owner]
        return sent

    def _send_messages(self, owner: WorkerId, unsent: _Unsent) -> None:
        """Send messages while the owner gives credit. Copy values for this worker too, so results
        do not depend on the owners of bins."""
        while unsent.count and not self._output.blocked(owner):
            arrived, batch = self._message(unsent)
            if len(batch):
                time = nested_time(int(batch.times.min()), unsent.rows.iterations)
                batch = batch.isolated() if owner == self._me else batch
                self._output.send(self._capabilities.capability_for(time), time, batch, owner)
            self._input.latency.complete_each(arrived)

    def _message(self, unsent: _Unsent) -> tuple[Int64s, Batch]:
        """Remove one message. Return the arrival times of its records, and the sendable records
        with packed values. Columns of numbers are sendable as they are."""
        first, size, parts = unsent.first, 0, list[PackedValues]()
        if (row_bytes := _row_bytes(unsent.rows.batch)) is not None:
            end = first + max(1, MESSAGE_BYTES // (row_bytes + COLUMN_BYTES))
            unsent.first = min(end, len(unsent.rows))
            rows = unsent.rows.between(first, unsent.first)
            return rows.arrivals, rows.batch.with_size(row_bytes * len(rows))
        unsent.first = len(unsent.rows)
        for piece in self._pieces(unsent.rows.batch, first):
            size += piece.size + COLUMN_BYTES * len(piece.rows)
            if parts and size > MESSAGE_BYTES:
                unsent.first = piece.rows.start
                break
            parts.append(piece)
        batch, numbers = unsent.rows.batch, _numbers(parts)
        if len(numbers) < len(batch):
            batch = batch.take(numbers)
        return unsent.rows.arrivals[first : unsent.first], batch.with_packed(join_packed(parts))

    def _sendable_rows(self, unsent: _Unsent) -> Rows:
        """Return the records that can be sent, measured, so that a checkpoint can hold them."""
        if (row_bytes := _row_bytes(unsent.rows.batch)) is not None:
            rows = unsent.rest
            return replace(rows, batch=rows.batch.with_size(row_bytes * len(rows)))
        numbers = np.arange(unsent.first, len(unsent.rows))
        parts = [
            piece._replace(data=b"") for piece in self._pieces(unsent.rows.batch, unsent.first)
        ]
        sendable = _numbers(parts)
        self._input.latency.complete_each(unsent.rows.arrivals[np.setdiff1d(numbers, sendable)])
        rows = unsent.rows.take(sendable)
        size = sum(piece.size for piece in parts)
        return replace(rows, batch=rows.batch.with_size(size))

    def _pieces(self, batch: Batch, first: int) -> Iterator[PackedValues]:
        """Yield encoded values in pieces. Values that no link takes have failed."""
        refuse = partial(self._guard.failed, batch)
        for piece in pack(batch.values, refuse, first, batch.keys):
            if len(piece.rows) == 1 and piece.size > RECORD_BYTES:
                refuse(piece.rows.start, RecordTooLargeError(piece.size))
            else:
                yield piece


class RecordTooLargeError(ValueError):
    """An error for a record that no link takes, alone in its message."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"it takes {size:,} bytes with its key, and a link between workers takes "
            f"{RECORD_BYTES:,}: make it smaller, or several of it"
        )


def _row_bytes(batch: Batch) -> int | None:
    """Return the bytes of each record where these are equal, as in columns of numbers."""
    if batch.keys is None and isinstance(batch.values, ValueColumns):
        return batch.values.row_bytes
    return None


def _numbers(parts: Sequence[PackedValues]) -> Int64s:
    return np.concatenate([np.arange(p.rows.start, p.rows.stop) for p in parts] or [NO_ROWS])
