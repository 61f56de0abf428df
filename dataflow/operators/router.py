"""Routes keyed records to the owners of their bins: F's data path (live reconfiguration, 2.2).

Guarantees I2: a record of time s leaves once the control frontier has passed s, to the owner of
its bin at s; until then it is stashed, under a capability for its time. Records of one partition
keep their order. Past a bound the stash spills; what an owner gives no credit for is kept back, and
past a window of that nothing more is taken (I6). Cost: one look-up per record, one message per
destination and batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np

from dataflow.batch import Batch, Int64s
from dataflow.capability import Held
from dataflow.graph import Location
from dataflow.migrate.routing import Routing
from dataflow.nested import at, outward, rounds_of
from dataflow.operators.base import InputPort, OutputPort, Quiet, Underway, least_of
from dataflow.operators.errors import Guard
from dataflow.operators.pool import Pool
from dataflow.operators.rows import Rows
from state import codec
from state.antichain import Antichain
from state.codec import UnencodableError
from state.ids import WorkerId
from state.time import Time


class Router(Quiet):
    """One exchange by key on one worker, to bins whose numbers begin with `first`."""

    def __init__(
        self,
        me: WorkerId,
        source: InputPort,
        output: OutputPort,
        routing: Routing,
        control: Callable[[], Antichain],
        guard: Guard,
        stash: Pool,
        most: int,
        window: int,
        first: int,
    ) -> None:
        self._me, self._input, self._output, self._routing = me, source, output, routing
        self._control, self._guard = control, guard
        self._first = first
        self.stash, self._most, self._window = stash, most, window
        self._kept: dict[WorkerId, deque[tuple[Time, Batch, Int64s]]] = {}
        self._kept_bytes = 0
        self._over = False
        self._held = Held()

    def schedule(self) -> bool:
        """Send what was kept back, stash what has come, route what is certain."""
        worked = self._send_kept()
        if self._kept_bytes < self._window:
            received = not self._over and self._receive()
            ready, more = self.stash.passed(self._control())
            for rows in ready:
                self._route(rows)
            worked = worked or received or bool(ready) or more
        if worked or self._over:
            worked |= self._relieve()
            kept = (time for shares in self._kept.values() for time, _, _ in shares)
            self._held.keep(*least_of(*self.stash.owed, *kept))
        return worked

    def underway(self) -> Iterable[Underway]:
        """What is kept back, and what is stashed."""
        at = self._input.location
        kept = [Underway.held(at, time, batch) for s in self._kept.values() for time, batch, _ in s]
        stashed = self.stash.rows()
        return chain(kept, (Underway(at, rows.least_time, rows.batch) for rows in stashed))

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
            share = self._plain(mine.batch)
            if len(share):
                time = at(int(share.times.min()), rows.rounds)
                self._send_or_keep(WorkerId(owner), time, share, mine.arrived)
            else:
                self._input.stay.over_each(mine.arrived)

    def _send_or_keep(self, owner: WorkerId, time: Time, share: Batch, arrived: Int64s) -> None:
        if owner not in self._kept and not self._output.blocked(owner):
            self._send(owner, time, share, arrived)
            return
        self._kept.setdefault(owner, deque()).append((time, share, arrived))
        self._kept_bytes += share.weight

    def _send_kept(self) -> bool:
        sent = False
        for owner, shares in list(self._kept.items()):
            while shares and not self._output.blocked(owner):
                time, share, arrived = shares.popleft()
                self._kept_bytes -= share.weight
                self._send(owner, time, share, arrived)
                sent = True
            if not shares:
                del self._kept[owner]
        return sent

    def _send(self, owner: WorkerId, time: Time, share: Batch, arrived: Int64s) -> None:
        """What a flow answers does not depend on who owns which bin: values that stay here become
        values of their own too."""
        if owner == self._me:
            share = share.isolated()
        self._output.send(self._held.permitting(time), time, share, owner)
        self._input.stay.over_each(arrived)

    def _plain(self, batch: Batch) -> Batch:
        """Packed, without the values that could not travel, wherever they would go."""
        try:
            packed = codec.encode(batch.values)
        except UnencodableError:
            kept = [row for row in range(len(batch)) if self._travels(batch, row)]
            batch = batch.take(np.array(kept, np.int64))
            packed = codec.encode(batch.values)
        return batch.with_packed(packed)

    def _travels(self, batch: Batch, row: int) -> bool:
        try:
            codec.encode(batch.values[row])
        except UnencodableError as error:
            self._guard.failed(batch, row, error)
            return False
        return True
