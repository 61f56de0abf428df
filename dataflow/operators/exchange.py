"""Routes keyed records to the owners of their bins: F's data path (live reconfiguration, 2.2).

Guarantees I2: a record of time s leaves once the control frontier has passed s, to the owner of
its bin at s; until then it is stashed, under a capability for its time. Records of one partition
keep their order; where bins move, also on their way to sinks that write what comes (I9). A message
has a bound of bytes, and values are encoded when it leaves (I6). Past a bound the stash spills;
what an owner gives no credit for is kept back, and past a window of that nothing more is taken.
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
    """The records that one owner gets of some, from the first on that has not been sent."""

    rows: Rows
    first: int = 0
    least_time: Time = field(init=False)
    """A lower bound of their times."""

    def __post_init__(self) -> None:
        self.least_time = self.rows.least_time

    @property
    def left(self) -> int:
        """How many have not been sent."""
        return len(self.rows) - self.first

    @property
    def weight(self) -> int:
        """About how many bytes these take in memory."""
        return self.rows.batch.weight * self.left // max(1, len(self.rows))

    @property
    def rest(self) -> Rows:
        """Those that have not been sent."""
        return self.rows.cut(self.first)[1] if self.first else self.rows


class Exchange(BaseOperator):
    """One exchange by key on one worker, to bins whose numbers begin with `first`."""

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
        """`out` says whether all results of before a time have left by the sinks that write what
        comes from here as it comes."""
        self._out, self._moved = out, set[int]()
        """The latter are times at which bins move, and of before which not all has left."""
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
        """Send what was kept back, stash what has come, route what is certain."""
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
        """Bins move at a time: from it on nothing leaves before all of before it is out (I9)."""
        self._moved.add(time)

    def underway(self) -> Iterable[InFlight]:
        """What is kept back, and what is stashed."""
        at, shares = self._input.location, chain.from_iterable(self._kept.values())
        kept = [share.rest.isolated() for share in shares]
        rows = chain(kept, self.stash.rows())
        return (InFlight(at, some.least_time, some.batch) for some in rows)

    @property
    def output(self) -> Location:
        """Where its records leave."""
        return self._output.location

    @property
    def kept(self) -> list[WorkerId]:
        """The owners for whom something is kept back, as they give no credit."""
        return list(self._kept)

    @property
    def frontier(self) -> Antichain:
        """Below which no more records leave, in outer time."""
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
        """Make some room where too much waits; whether anything was done."""
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
        """Send of a share, message after message, what its owner gives credit for.

        What a flow answers does not depend on who owns which bin: values that stay here become
        values of their own too."""
        while share.left and not self._output.blocked(owner):
            arrived, batch = self._message(share)
            if len(batch):
                time = at(int(batch.times.min()), share.rows.rounds)
                batch = batch.isolated() if owner == self._me else batch
                self._output.send(self._held.permitting(time), time, batch, owner)
            self._input.stay.over_each(arrived)

    def _message(self, share: _Share) -> tuple[Int64s, Batch]:
        """Take of a share what one message holds: when all of it has arrived, and what can travel
        of it, packed."""
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
        """What is left of a share and can travel, so that a checkpoint can have it; measured."""
        numbers = np.arange(share.first, len(share.rows))
        parts = [piece._replace(data=b"") for piece in self._pieces(share.rows.batch, share.first)]
        kept = _numbers(parts)
        self._input.stay.over_each(share.rows.arrived[np.setdiff1d(numbers, kept)])
        rows = share.rows.take(kept)
        size = sum(piece.size for piece in parts)
        return replace(rows, batch=rows.batch.with_size(size))

    def _pieces(self, batch: Batch, first: int) -> Iterator[PackedValues]:
        """Values encoded, some at a time, without those that could not travel, wherever they would
        go: these have failed."""
        refuse = partial(self._guard.failed, batch)
        for piece in pieces(batch.values, refuse, first, batch.keys):
            if len(piece.rows) == 1 and piece.size > RECORD_BYTES:
                refuse(piece.rows.start, RecordTooLargeError(piece.size))
            else:
                yield piece


class RecordTooLargeError(ValueError):
    """A record that no link takes, alone in its message."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"it takes {size:,} bytes with its key, and a link between workers takes "
            f"{RECORD_BYTES:,}: make it smaller, or several of it"
        )


def _numbers(parts: Sequence[PackedValues]) -> Int64s:
    return np.concatenate([np.arange(p.rows.start, p.rows.stop) for p in parts] or [NONE])
