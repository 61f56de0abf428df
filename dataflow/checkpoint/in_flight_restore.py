"""The in-flight restore returns records of a checkpoint to their inputs, reading a few pieces
ahead.

Guarantees I3 and I9 through a recovery: each worker reads its own records by the new routing,
downstream first. New records wait behind them, so no record of a key or partition overtakes an
earlier one. Around a move operators and sinks keep the order (`Migrator.resume`). Guarantees I1:
unread pieces count with their least time from the opening on. A checkpoint taken meanwhile
references unread pieces. Cost: every worker reads the keyed pieces that may hold its bins, and
keeps its own rows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

import numpy as np

from meander.dataflow.api.nodes import group_of
from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.dataflow.graph.graph import Location
from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.ports import InputPort, Message
from meander.dataflow.progress.progress import Progress
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import nested_time, outer_time
from meander.state.checkpoint import in_flight
from meander.state.checkpoint.checkpoint import Piece
from meander.state.checkpoint.in_flight import InFlightColumns
from meander.state.keys.ids import WorkerId
from meander.state.layers.parts import read_values
from meander.state.layers.topic import StateTopic

AHEAD_BYTES = 1 << 20
"""The bytes that are requested at once: a piece alone takes as long as several."""


class InFlightRestore:
    """A restore of the in-flight records of one worker."""

    def __init__(
        self,
        me: WorkerId,
        plan: Plan,
        start: RestorePlan,
        inputs: Mapping[Location, InputPort],
        progress: Progress,
        topic: StateTopic,
        clock: Clock,
    ) -> None:
        self._me, self._plan, self._start = me, plan, start
        self._inputs, self._progress, self._clock = inputs, progress, clock
        self._owners = np.array(start.owners, np.int64)
        self._mine = np.flatnonzero(self._owners == me)
        self._nodes = {node.name: (n, node) for n, node in enumerate(plan.nodes)}
        pieces = [piece for piece in start.cut.pieces if self._may_have(piece)]
        self._downstream_of = Counter(at for leading in plan.graph.reach.values() for at in leading)
        # Downstream first, so that no waiting record depends on a piece behind it; for one operator
        # in the stored order.
        self._left = deque(sorted(pieces, key=self._turn))
        self._found = read_values(topic, [piece.locations for piece in self._left], AHEAD_BYTES)
        self._left_at = Counter(map(self._location, self._left))
        """The number of unread pieces by input."""
        self._payload: bytes | None = None
        """The next piece, once it has been fetched."""
        self.read, self.total = 0, sum(piece.size for piece in pieces)
        """The bytes read, and their total."""
        keyless = {self._location(piece) for piece in pieces if not piece.keyed}
        self._ahead = {at: plan.ports_ahead(at) for at in keyless}
        for piece in self._left:
            progress.changes.add(self._location(piece), piece.time, 1)
        for location in self._left_at.keys() - plan.sorting_inputs:
            inputs[location].hold_new()

    @property
    def unread(self) -> list[Piece]:
        """The unread pieces, restricted to this worker's records."""
        left = map(self._restricted, self._left)
        return [piece for piece in left if piece.bins is None or any(piece.bins)]

    def _turn(self, piece: Piece) -> tuple[int, int, bool]:
        """Return the sort key of a piece.

        A location reaches fewer others than those upstream of it, and as many on a common loop. A
        sink receives nothing before the contents of its outbox.
        """
        led_to = self._downstream_of[self._location(piece)]
        return led_to, -self._nodes[piece.node][0], not self._plan.in_outbox(piece)

    def step(self) -> bool:
        """Restore the next piece once earlier ones have been received; return whether it was."""
        if not self._left:
            return False
        piece = self._left[0]
        location = self._location(piece)
        if self._payload is None:
            self._payload = next(self._found)
        if (
            self._payload is None
            or not self._may_continue(piece)
            or not self._inputs[location].drained
        ):
            return False
        payload, self._payload = self._payload, None
        self._left.popleft()
        self._left_at[location] -= 1
        self.read += piece.size
        _, columns = in_flight.decode(payload)
        self._put(piece, columns)
        self._admit(location)
        return True

    def _admit(self, here: Location) -> None:
        """Let new records follow once all pieces of an input have been restored."""
        if not self._left_at[here]:
            self._inputs[here].release_new()

    def _may_continue(self, piece: Piece) -> bool:
        """Return whether a piece may continue.

        Records without keys that no operator sorts wait until no earlier record is left ahead of
        them on any worker.
        """
        if piece.keyed:
            return True
        least = self._progress.least(self._ahead[self._location(piece)])
        return least is None or outer_time(least) > outer_time(piece.time)

    def _put(self, piece: Piece, columns: InFlightColumns) -> None:
        location, changes = self._location(piece), self._progress.changes
        rows = self._own_rows(piece, columns)
        if len(rows):
            batch = self._batch(location, columns).take(rows)
            time = nested_time(int(batch.times.min()), columns.iterations)
            changes.add(location, time, 1)
            message = Message(time, batch, None, self._clock.monotonic())
            self._inputs[location].restore(message)
        changes.add(location, piece.time, -1)

    def _batch(self, at: Location, columns: InFlightColumns) -> Batch:
        """Return records as their input receives them, with the numbers that the flow now gives
        their origins; a stream of a loop may have lost its keys since."""
        keys = columns.keys if at in self._plan.keyed_inputs else None
        origins = columns.origins
        if columns.origin_names:
            origins = np.array([*map(self._plan.origins.index, columns.origin_names)])[origins]
        return Batch(
            columns.times, origins, columns.partitions, columns.offsets, columns.indexes,
            columns.values, keys, None if keys is None else self._plan.flow.space.hash_keys(keys),
            extra=columns.extra,
        )  # fmt: skip

    def _own_rows(self, piece: Piece, columns: InFlightColumns) -> np.ndarray:
        if columns.bins is None:
            return np.arange(len(columns))
        mine = self._owners[columns.bins + self._first(piece)] == self._me
        if piece.bins is not None:
            mine &= np.isin(columns.bins, in_flight.bins_of(piece.bins))
        return np.flatnonzero(mine)

    def _may_have(self, piece: Piece) -> bool:
        """Return whether this worker owns records of a piece; those without keys belong to one
        worker."""
        if not piece.keyed:
            return self._start.rank(piece.worker) == self._me
        left = self._restricted(piece).bins
        return left is None or any(left)

    def _restricted(self, piece: Piece) -> Piece:
        """Return a piece with this worker's records only."""
        if not piece.keyed:
            return piece._replace(worker=self._me)
        first, count = self._first(piece), self._plan.flow.space.count
        mine = self._mine
        bins = mine[(mine >= first) & (mine < first + count)] - first
        if piece.bins is not None:
            bins = np.intersect1d(bins, in_flight.bins_of(piece.bins))
        return piece._replace(worker=self._me, bins=in_flight.mask_of(bins.tolist(), count))

    def _location(self, piece: Piece) -> Location:
        return self._plan.input_at(*piece.at)

    def _first(self, piece: Piece) -> int:
        """Return the number of the first bin of an operator's group."""
        return self._plan.groups.first_bin(group_of(self._nodes[piece.node][1]))
