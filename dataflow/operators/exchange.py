"""The exchange: sends keyed records to the owners of their bins (Megaphone's F, 2.2).

Guarantees I2: a record of time s leaves once the control frontier has passed s, to the owner of its
bin at s. Before that it is stashed under a capability for its time. Records of one partition keep
their order. Where bins move, they also keep it on their way to sinks that write on arrival (I9).

A message has a bound of bytes, and values are encoded when it leaves (I6). Past a bound the stash
spills. Records without credit are kept back, and past a window of them the exchange takes no more.
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
from meander.dataflow.operators.buffer.rows import NONE, Rows
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import BaseOperator, InFlight, InputPort, OutputPort, least_of
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.loop_times import at, outward, rounds_of
from meander.dataflow.records.packing import PackedValues, joined, pieces
from meander.dataflow.wire import COLUMN_BYTES, MESSAGE_BYTES, RECORD_BYTES
from meander.state.keys.ids import WorkerId
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time


@dataclass(slots=True)
class _Share:
    """A share that holds the records of one owner, from the first unsent record on."""

    rows: Rows
    first: int = 0
    least_time: Time = field(init=False)
    """A lower bound of their times."""

    def __post_init__(self) -> None:
        self.least_time = self.rows.least_time

    @property
    def left(self) -> int:
        """Return the number of unsent records."""
        return len(self.rows) - self.first

    @property
    def weight(self) -> int:
        """Return about the bytes of unsent records in memory."""
        return self.rows.batch.weight * self.left // max(1, len(self.rows))

    @property
    def rest(self) -> Rows:
        """Return the unsent records."""
        return self.rows.cut(self.first)[1] if self.first else self.rows


class Exchange(BaseOperator):
    """An exchange that sends records by key on one worker. `first` is the number of its first
    bin."""

    def __init__(
        self,
        context: OperatorContext,
        source: InputPort,
        output: OutputPort,
        routing: Routing,
        guard: Guard,
        window: int,
        first: int,
        out: Callable[[int], bool],
    ) -> None:
        """Take ports and routing. `out` tells whether all results before a time have left by the
        sinks that write this exchange's records on arrival."""
        self._out, self._moved = out, set[int]()
        """The second holds times of moves before which some results have not left."""
        self._me, self._input, self._output = context.me, source, output
        self._routing, self._control, self._guard = routing, context.control, guard
        self._first = first
        self.stash = context.buffer("records")
        self._most, self._window = context.max_waiting, window
        self._kept: dict[WorkerId, deque[_Share]] = {}
        self._kept_bytes = 0
        self._over = False
        self._held = CapabilitySet()

    def schedule(self) -> bool:
        """Send kept records, stash new ones, and route those that the control frontier has passed.
        Return whether the exchange worked."""
        worked = self._send_kept()
        if self._kept_bytes < self._window:
            received = not self._over and self._receive()
            self._moved = {time for time in self._moved if not self._out(time)}
            ready, more = self.stash.passed(Antichain.of(*self._control(), *self._moved))
            for rows in ready:
                self._route(rows)
            worked = worked or received or bool(ready) or more
        if worked or self._over:
            worked |= self._relieve()
            kept = (share.least_time for shares in self._kept.values() for share in shares)
            self._held.downgrade(*least_of(*self.stash.owed, *kept))
        return worked

    def expect(self, time: int) -> None:
        """Note a move at a time: records from that time on leave once all earlier results are out
        (I9)."""
        self._moved.add(time)

    def underway(self) -> Iterable[InFlight]:
        """Return the kept and stashed records."""
        at, shares = self._input.location, chain.from_iterable(self._kept.values())
        kept = [share.rest.isolated() for share in shares]
        rows = chain(kept, self.stash.rows())
        return (InFlight(at, some.least_time, some.batch) for some in rows)

    @property
    def output(self) -> Location:
        """Return the location at which its records leave."""
        return self._output.location

    @property
    def kept(self) -> list[WorkerId]:
        """Return the owners without credit for which records are kept back."""
        return list(self._kept)

    @property
    def frontier(self) -> Antichain:
        """Return the frontier of its records in outer time."""
        return outward(self._output.frontier)

    def _receive(self) -> bool:
        received = False
        for message in self._input.hold():
            received = True
            assert isinstance(message.payload, Batch)
            self._held.retain(self._output.mint(message))
            rounds = rounds_of(message.time)
            self.stash.add(Rows.of(message.payload, 0, rounds, message.arrived))
        return received

    def _relieve(self) -> bool:
        """Spill records where too many wait. Return whether any were spilled."""
        self._over = self.stash.size + self._kept_bytes > self._most
        return self._over and bool(self.stash.shed())

    def _route(self, rows: Rows) -> None:
        batch = rows.batch
        bins = self._routing.space.bins_of(batch.places) + self._first
        owners = self._routing.destinations(bins, batch.times)
        several = sorted(set(owners.tolist()))
        for owner in several:
            mine = rows.take(np.flatnonzero(owners == owner)) if len(several) > 1 else rows
            self._send_or_keep(WorkerId(owner), _Share(mine))

    def _send_or_keep(self, owner: WorkerId, share: _Share) -> None:
        if owner not in self._kept:
            self._send_of(owner, share)
        if share.left and len(rows := self._travelling(share)):
            self._kept.setdefault(owner, deque()).append(_Share(rows))
            self._kept_bytes += rows.batch.weight

    def _send_kept(self) -> bool:
        sent = False
        for owner, shares in list(self._kept.items()):
            while shares and not self._output.blocked(owner):
                self._kept_bytes -= shares[0].weight
                self._send_of(owner, shares[0])
                self._kept_bytes += shares[0].weight
                sent = True
                if not shares[0].left:
                    shares.popleft()
            if not shares:
                del self._kept[owner]
        return sent

    def _send_of(self, owner: WorkerId, share: _Share) -> None:
        """Send messages of a share while its owner gives credit.

        Values for this worker are copied too, so the results of a flow do not depend on the owners
        of bins.
        """
        while share.left and not self._output.blocked(owner):
            arrived, batch = self._message(share)
            if len(batch):
                time = at(int(batch.times.min()), share.rows.rounds)
                batch = batch.isolated() if owner == self._me else batch
                self._output.send(self._held.permitting(time), time, batch, owner)
            self._input.stay.over_each(arrived)

    def _message(self, share: _Share) -> tuple[Int64s, Batch]:
        """Remove one message from a share. Return the arrival times of its records, and the
        sendable records in packed form."""
        first, size, parts = share.first, 0, list[PackedValues]()
        share.first = len(share.rows)
        for piece in self._pieces(share.rows.batch, first):
            size += piece.size + COLUMN_BYTES * len(piece.rows)
            if parts and size > MESSAGE_BYTES:
                share.first = piece.rows.start
                break
            parts.append(piece)
        batch, numbers = share.rows.batch, _numbers(parts)
        if len(numbers) < len(batch):
            batch = batch.take(numbers)
        return share.rows.arrived[first : share.first], batch.with_packed(joined(parts))

    def _travelling(self, share: _Share) -> Rows:
        """Return the unsent records of a share that can be sent, measured, so that a checkpoint can
        hold them."""
        numbers = np.arange(share.first, len(share.rows))
        parts = [piece._replace(data=b"") for piece in self._pieces(share.rows.batch, share.first)]
        kept = _numbers(parts)
        self._input.stay.over_each(share.rows.arrived[np.setdiff1d(numbers, kept)])
        rows = share.rows.take(kept)
        size = sum(piece.size for piece in parts)
        return replace(rows, batch=rows.batch.with_size(size))

    def _pieces(self, batch: Batch, first: int) -> Iterator[PackedValues]:
        """Yield encoded values in pieces. Values that no link takes have failed, for any
        destination."""
        refuse = partial(self._guard.failed, batch)
        for piece in pieces(batch.values, refuse, first, batch.keys):
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


def _numbers(parts: Sequence[PackedValues]) -> Int64s:
    return np.concatenate([np.arange(p.rows.start, p.rows.stop) for p in parts] or [NONE])
