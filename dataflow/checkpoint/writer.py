"""What one worker writes of a checkpoint: records in flight, and what of its states has changed.

Guarantees that what is reported is durable and is all that was frozen here: references to batches,
which nobody changes, and the states as they were (`states.py`). Fuelled: a turn writes a slice of
each; what lies side by side is written together, as a recovery reads piece after piece. Cost: 4 to
12 us a record in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.state_writer import StateWriter
from meander.dataflow.checkpoint.upload import Sending
from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.control.partition_handoff import PartitionHandoff
from meander.dataflow.graph.graph import Location
from meander.dataflow.migration.migrator import OutgoingState
from meander.dataflow.operators.ports import InFlight
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import at, outer, rounds_of
from meander.dataflow.wire import Payload
from meander.state.checkpoint import in_flight
from meander.state.checkpoint.checkpoint import Checkpoint, Cut, Notice, Piece, Position, ReplayFrom
from meander.state.checkpoint.delta_bundles import Bundle, Delta
from meander.state.checkpoint.in_flight import Columns, Header
from meander.state.encoding.codec import UnencodableError
from meander.state.keys.ids import ExecutionId, WorkerId
from meander.state.layers.manifest import Manifest
from meander.state.layers.topic import StateTopic
from meander.state.times.time import Time

ROWS = 1024
"""Records of a piece at most: about a millisecond of encoding."""
BYTES = 256 << 10
"""About what they take, unless one alone takes more."""
WINDOW = 32
"""Pieces on their way to the topic at once;"""
WINDOW_BYTES = 16 << 20
"""and about their bytes, but for one piece that takes more."""


@dataclass(slots=True)
class SnapshotContents:
    """What has been frozen on one worker, but for its states."""

    underway: list[Iterable[InFlight]]
    """Those that go on first come first."""
    behind: list[InFlight]
    """What waits until all that is unread has been put back where it waits."""
    deliveries: list[BinHandoff]
    parcels: list[tuple[str, PartitionHandoff]]
    """By source."""
    notices: list[Notice]
    unread: Sequence[Piece]
    """Of the checkpoint that the flow has started from, what has not gone on yet."""
    unloaded: Sequence[Manifest]
    """The bins of it that are not here yet."""
    lacking: Sequence[Delta]
    bundles: Sequence[Bundle]
    """What their layers lack."""
    anew: Sequence[ReplayFrom]
    """From when on its sinks have let nothing go."""


class CheckpointWriter:
    """One worker's part of one checkpoint; `report` is given it once it is durable."""

    def __init__(
        self,
        me: WorkerId,
        plan: Plan,
        execution: ExecutionId,
        number: int,
        held: SnapshotContents,
        outlets: Sequence[OutgoingState],
        topic: StateTopic,
        report: Callable[[Checkpoint], None],
        fail: Callable[[int, str], None],
    ) -> None:
        self._me, self._plan, self._held = me, plan, held
        self._execution, self._number = execution, number
        self._report, self._fail = report, fail
        self._inputs = {
            at: (name, place)
            for name, ports in plan.ports.items()
            for place, at in enumerate(ports.inputs)
        }
        self._recorded = [*held.behind]
        self._ahead: int | None = None
        """How many pieces go on before all that is unread; None before that is known."""
        self._complete = self.done = False
        self._pieces_left: Iterator[InFlight] | None = _in_pieces(held.underway)
        self._sequence = 0
        self._sending = Sending[Piece](topic, lambda one, places: one._replace(places=places))
        self._states = StateWriter(me, execution, number, outlets, held.unloaded, topic)

    def record(self, at: Location, time: Time, payload: Payload) -> None:
        """A message was on its way here."""
        match payload:
            case Batch():
                self._recorded.append(InFlight(at, time, payload))
            case BinHandoff():
                self._held.deliveries.append(payload)
            case PartitionHandoff():
                name, _ = self._inputs[at]
                self._held.parcels.append((name, payload))

    def complete(self) -> None:
        """Nothing more was."""
        self._complete = True

    def cancel(self) -> None:
        """It is given up: what has been written is forgotten."""
        self.done = True
        self._states.cancel()
        self._sending.cancel()

    def step(self) -> bool:
        """Write a little; whether anything was done."""
        if self.done:
            return False
        try:
            sent = self._send()
        except UnencodableError as error:
            self.cancel()
            self._fail(self._number, f"a record in flight cannot be written: {error}")
            return True
        placed = self._sending.look()
        written = self._states.step()
        if self._sent and not self._sending and self._states.done:
            self._finish(self._part())
        return sent or placed or written or self.done

    def _finish(self, part: Checkpoint) -> None:
        """Report the part, or give it up where a layer that it names has proved unreadable since:
        its bin has a new base in the next checkpoint."""
        spoilt = self._states.unreadable(part.manifests)
        if spoilt is None:
            self.done = True
            self._report(part)
            return
        self.cancel()
        named = f"bin {spoilt.bin} of operator {spoilt.operator!r}"
        self._fail(self._number, f"a layer of {named} cannot be read, and is written again")

    @property
    def _sent(self) -> bool:
        return self._complete and self._pieces_left is None

    # -- records in flight

    def _send(self) -> bool:
        """The next piece; what came by links comes last."""
        full = len(self._sending) >= WINDOW or self._sending.bytes >= WINDOW_BYTES
        if self._pieces_left is None or full:
            return False
        found = next(self._pieces_left, None)
        if found is None:
            if not self._complete:
                return False
            if self._ahead is not None:
                self._pieces_left = None
                return False
            self._ahead = self._sequence
            self._pieces_left, self._recorded = _in_pieces([self._recorded]), []
            return True
        self._begin(found)
        return True

    def _begin(self, one: InFlight) -> None:
        name, place = self._inputs[one.location]
        header = Header(self._execution, self._number, self._me, name, place, self._sequence)
        self._sequence += 1
        batch, rounds = one.batch, rounds_of(one.time)
        placed = batch.hashes is not None or one.location in self._plan.placed
        bins = self._plan.flow.space.bins_of(batch.places) if placed else None
        columns = Columns(
            rounds, batch.times, batch.origins, batch.partitions, batch.offsets, batch.indexes,
            batch.keys, bins, batch.values,
        )  # fmt: skip
        payload = in_flight.encode(header, columns)
        least = at(int(batch.times.min()), rounds)
        piece = Piece(name, place, self._me, least, len(batch), (), bins is not None)
        self._sending.send(header.key, payload, piece)

    # -- the whole

    def _part(self) -> Checkpoint:
        held = self._held
        manifests = [*self._states.manifests, *(one.manifest for one in held.deliveries)]
        lacking = [
            *held.lacking,
            *(Delta(one.manifest.operator, one.manifest.bin, one.remainder)
              for one in held.deliveries),
        ]  # fmt: skip
        positions = (
            Position(
                source, parcel.partition, self._me, parcel.rest.offset, parcel.rest.end,
                parcel.maximum, parcel.newest, parcel.frontier,
            )
            for source, parcel in held.parcels
        )  # fmt: skip
        placed = self._sending.placed
        cut = Cut(
            lacking=tuple(lacking), bundles=(*held.bundles, *self._states.bundles),
            positions=tuple(positions), notices=tuple(held.notices),
            pieces=(*placed[: self._ahead], *held.unread, *placed[self._ahead :]),
            anew=tuple(held.anew),
        )  # fmt: skip
        space = self._plan.flow.space
        return Checkpoint(self._number, self._execution, space, 0, tuple(manifests), cut)


def _in_pieces(many: Iterable[Iterable[InFlight]]) -> Iterator[InFlight]:
    return (piece for one in _together(chain.from_iterable(many)) for piece in _pieces(one))


def _together(many: Iterable[InFlight]) -> Iterator[InFlight]:
    """What lies side by side in as many records of the topic as it takes: a transaction has a few
    results, and many wait at once."""
    near, rows, weight = list[InFlight](), 0, 0
    for one in many:
        one = one._replace(batch=one.batch.measured())
        rows, weight = rows + len(one.batch), weight + one.batch.weight
        if near and not (rows <= ROWS and weight <= BYTES and _alike(near[0], one)):
            yield _joined(near)
            near, rows, weight = [], len(one.batch), one.batch.weight
        near.append(one)
    if near:
        yield _joined(near)


def _alike(one: InFlight, other: InFlight) -> bool:
    """Whether their records go on at one place, in the same rounds, and all have keys or are of one
    partition: those without wait for what is as early as the first of their piece, which says
    nothing of another partition's."""
    if one.location != other.location or rounds_of(one.time) != rounds_of(other.time):
        return False
    keyed = one.batch.keys is not None
    if keyed != (other.batch.keys is not None):
        return False
    return keyed or len(_partitions(one) | _partitions(other)) == 1


def _partitions(one: InFlight) -> set[tuple[int, int]]:
    batch = one.batch
    return {*zip(batch.origins.tolist(), batch.partitions.tolist(), strict=True)}


def _joined(near: list[InFlight]) -> InFlight:
    least = min(near, key=lambda one: outer(one.time))
    return least._replace(batch=Batch.concat([one.batch for one in near]))


def _pieces(one: InFlight) -> Iterator[InFlight]:
    """What records of the topic can hold."""
    batch = one.batch
    most = max(1, min(ROWS, BYTES * len(batch) // max(1, batch.weight)))
    if len(batch) <= most:
        yield one
        return
    for first in range(0, len(batch), most):
        rows = np.arange(first, min(first + most, len(batch)))
        yield one._replace(batch=batch.take(rows))
