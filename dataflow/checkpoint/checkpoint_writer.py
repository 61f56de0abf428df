"""The checkpoint writer: one worker's part of a checkpoint, with in-flight records and state
changes.

Guarantees that the reported part is durable and is all that was frozen here, and that all earlier
dead letters of the worker are durable: a recovery does not repeat them. It holds references to
batches, which no operator changes, and the frozen states (`state_writer.py`). A turn writes a
slice. Adjacent records share a piece, as a recovery reads piece after piece. Cost: 4 to 12 us per
in-flight record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.state_writer import StateWriter
from meander.dataflow.checkpoint.upload import Upload
from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.control.partition_handoff import PartitionHandoff
from meander.dataflow.graph.graph import Location
from meander.dataflow.migration.migrator import OutgoingState
from meander.dataflow.operators.ports import InFlight
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.loop_times import iterations_of, nested_time, outer_time
from meander.dataflow.wire import Payload
from meander.state.checkpoint import in_flight
from meander.state.checkpoint.arrangements import OperatorFrontier, UnreadRows
from meander.state.checkpoint.checkpoint import (
    Checkpoint,
    Cut,
    Notification,
    Piece,
    Position,
    ReplayFrom,
)
from meander.state.checkpoint.delta_bundles import Bundle, Delta
from meander.state.checkpoint.in_flight import Header, InFlightColumns
from meander.state.encoding.codec import UnencodableError
from meander.state.keys.ids import ExecutionId, WorkerId
from meander.state.layers.manifest import Manifest
from meander.state.layers.topic import StateTopic
from meander.state.times.time import Time

ROWS = 1024
"""The most records of a piece: about a millisecond of encoding."""
BYTES = 256 << 10
"""About the most bytes of a piece, unless one record exceeds them."""
WINDOW = 32
"""The most pieces on their way to the topic."""
WINDOW_BYTES = 16 << 20
"""About the most bytes on their way, unless one piece exceeds them."""


@dataclass(slots=True)
class SnapshotContents:
    """The frozen contents of one worker, without its states."""

    in_flight: list[Iterable[InFlight]]
    """In-flight records; downstream ones come first."""
    behind: list[InFlight]
    """Records that wait until all unread pieces have been restored."""
    bin_handoffs: list[BinHandoff]
    partition_handoffs: list[tuple[str, PartitionHandoff]]
    """The positions of partitions, by source."""
    notifications: list[Notification]
    unread: Sequence[Piece]
    """Pieces of the checkpoint from which the flow started that are not restored yet."""
    unloaded: Sequence[Manifest]
    """The bins of that checkpoint that are not loaded yet."""
    deltas: Sequence[Delta]
    bundles: Sequence[Bundle]
    """The deltas and bundles that complete the layers of unloaded bins."""
    replay_from: Sequence[ReplayFrom]
    """The time from which each sink has released no result."""
    frontiers: Sequence[OperatorFrontier]
    """The frontier of each stateful operator."""
    unread_rows: Sequence[UnreadRows]
    """The rows that operators have not read in the arrangements of others."""
    dead_letters_durable: Callable[[], bool]
    """Returns whether all dead letters from before the snapshot are durable."""


class CheckpointWriter:
    """A writer of one worker's part of one checkpoint; `report` receives the durable part."""

    def __init__(
        self,
        me: WorkerId,
        plan: Plan,
        execution: ExecutionId,
        number: int,
        contents: SnapshotContents,
        outgoing: Sequence[OutgoingState],
        topic: StateTopic,
        report: Callable[[Checkpoint], None],
        fail: Callable[[int, str], None],
    ) -> None:
        self._me, self._plan, self._contents = me, plan, contents
        self._execution, self._number = execution, number
        self._report, self._fail = report, fail
        self._inputs = {
            at: (name, place)
            for name, ports in plan.ports.items()
            for place, at in enumerate(ports.inputs)
        }
        self._recorded = [*contents.behind]
        self._ahead: int | None = None
        """The number of pieces before the unread ones; None before it is known."""
        self._complete = self.done = False
        self._pieces_left: Iterator[InFlight] | None = _in_pieces(contents.in_flight)
        self._sequence = 0
        self._upload = Upload[Piece](
            topic, lambda one, locations: one._replace(locations=locations)
        )
        self._states = StateWriter(me, execution, number, outgoing, contents.unloaded, topic)

    def record(self, at: Location, time: Time, payload: Payload) -> None:
        """Add a message that was on its way here."""
        match payload:
            case Batch():
                self._recorded.append(InFlight(at, time, payload))
            case BinHandoff():
                self._contents.bin_handoffs.append(payload)
            case PartitionHandoff():
                name, _ = self._inputs[at]
                self._contents.partition_handoffs.append((name, payload))

    def complete(self) -> None:
        """End the recording of messages."""
        self._complete = True

    def cancel(self) -> None:
        """Give up the part and forget what has been written."""
        self.done = True
        self._states.cancel()
        self._upload.cancel()

    def step(self) -> bool:
        """Write a slice; return whether anything was done."""
        if self.done:
            return False
        try:
            sent = self._send()
        except UnencodableError as error:
            self.cancel()
            self._fail(self._number, f"an in-flight record cannot be encoded: {error}")
            return True
        placed = self._upload.poll()
        written = self._states.step()
        stored = self._all_sent and not self._upload and self._states.done
        if stored and self._contents.dead_letters_durable():
            self._finish(self._part())
        return sent or placed or written or self.done

    def _finish(self, part: Checkpoint) -> None:
        """Report the part, or fail where one of its layers has become unreadable.

        The bin of that layer gets a new base in the next checkpoint.
        """
        unreadable = self._states.unreadable(part.manifests)
        if unreadable is None:
            self.done = True
            self._report(part)
            return
        self.cancel()
        named = f"bin {unreadable.bin} of operator {unreadable.operator!r}"
        self._fail(
            self._number,
            f"a layer of {named} is unreadable; the next checkpoint writes the bin again",
        )

    @property
    def _all_sent(self) -> bool:
        return self._complete and self._pieces_left is None

    # -- in-flight records

    def _send(self) -> bool:
        """Send the next piece; recorded messages come last."""
        full = len(self._upload) >= WINDOW or self._upload.bytes >= WINDOW_BYTES
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
        self._send_piece(found)
        return True

    def _send_piece(self, one: InFlight) -> None:
        name, place = self._inputs[one.location]
        header = Header(self._execution, self._number, self._me, name, place, self._sequence)
        self._sequence += 1
        batch, iterations = one.batch, iterations_of(one.time)
        bins = self._bins(one)
        numbers, origins = np.unique(batch.origins, return_inverse=True)
        names = tuple(self._plan.origins[number] for number in numbers.tolist())
        columns = InFlightColumns(
            iterations, batch.times, origins, batch.partitions, batch.offsets, batch.indexes,
            batch.keys, bins, batch.values, batch.extra, names,
        )  # fmt: skip
        payload = in_flight.encode(header, columns)
        least = nested_time(int(batch.times.min()), iterations)
        piece = Piece(name, place, self._me, least, len(batch), (), bins is not None)
        self._upload.send(header.key, payload, piece)

    def _bins(self, one: InFlight) -> Int64s | None:
        """Return the bins whose owners get these records, or None where one worker gets them."""
        space, plan, batch = self._plan.flow.space, self._plan, one.batch
        if one.location in plan.collection_inputs:
            from meander.dataflow.operators.collection.updates import key_hashes

            return space.bins_of(key_hashes(batch))
        placed = batch.hashes is not None or one.location in plan.inputs_by_partition
        return space.bins_of(batch.bin_hashes) if placed else None

    # -- the part

    def _part(self) -> Checkpoint:
        contents = self._contents
        manifests = [*self._states.manifests, *(one.manifest for one in contents.bin_handoffs)]
        deltas = [
            *contents.deltas,
            *(Delta(one.manifest.operator, one.manifest.bin, one.remainder)
              for one in contents.bin_handoffs),
        ]  # fmt: skip
        positions = (
            Position(
                source, handoff.partition, self._me, handoff.rest.offset, handoff.rest.end,
                handoff.maximum, handoff.newest, handoff.frontier,
            )
            for source, handoff in contents.partition_handoffs
        )  # fmt: skip
        placed = self._upload.placed
        cut = Cut(
            deltas=tuple(deltas), bundles=(*contents.bundles, *self._states.bundles),
            positions=tuple(positions), notifications=tuple(contents.notifications),
            pieces=(*placed[: self._ahead], *contents.unread, *placed[self._ahead :]),
            replay_starts=tuple(contents.replay_from), frontiers=tuple(contents.frontiers),
            unread_rows=tuple(contents.unread_rows),
        )  # fmt: skip
        space = self._plan.flow.space
        return Checkpoint(self._number, self._execution, space, 0, tuple(manifests), cut)


def _in_pieces(many: Iterable[Iterable[InFlight]]) -> Iterator[InFlight]:
    return (piece for one in _together(chain.from_iterable(many)) for piece in _pieces(one))


def _together(many: Iterable[InFlight]) -> Iterator[InFlight]:
    """Join adjacent batches into pieces: a transaction has few results, and many wait at once."""
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
    """Return whether two batches may share a piece.

    They belong to one input and the same iterations, and have keys or belong to one partition.
    Records without keys wait for the least time of their piece, which must not depend on another
    partition.
    """
    if one.location != other.location or iterations_of(one.time) != iterations_of(other.time):
        return False
    keyed = one.batch.keys is not None
    if keyed != (other.batch.keys is not None):
        return False
    return keyed or len(_partitions(one) | _partitions(other)) == 1


def _partitions(one: InFlight) -> set[tuple[int, int]]:
    batch = one.batch
    return {*zip(batch.origins.tolist(), batch.partitions.tolist(), strict=True)}


def _joined(near: list[InFlight]) -> InFlight:
    least = min(near, key=lambda one: outer_time(one.time))
    return least._replace(batch=Batch.concat([one.batch for one in near]))


def _pieces(one: InFlight) -> Iterator[InFlight]:
    """Cut a batch into pieces that fit into one record of the topic."""
    batch = one.batch
    most = max(1, min(ROWS, BYTES * len(batch) // max(1, batch.weight)))
    if len(batch) <= most:
        yield one
        return
    for first in range(0, len(batch), most):
        rows = np.arange(first, min(first + most, len(batch)))
        yield one._replace(batch=batch.take(rows))
