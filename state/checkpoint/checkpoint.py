"""Checkpoints: the records from which a flow starts.

Only the record of a checkpoint has authority. It is written after everything that it names is
durable, so a layer that no checkpoint names does not count. Cost: about 100 bytes per bin that
holds keys, 30 per chunk, and 100 per piece of in-flight records. A checkpoint larger than one
record lies in parts (`parts.py`); the record that names them is written last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, starmap
from typing import Any, Final, NamedTuple, TypedDict

import xxhash

from meander.schemas.avro import Format
from meander.schemas.errors import MeanderError
from meander.state.checkpoint.arrangements import (
    KeptArrangement,
    OperatorFrontier,
    UnreadRows,
    least_frontiers,
)
from meander.state.checkpoint.delta_bundles import (
    Bundle,
    BundleRecord,
    Delta,
    DeltaRecord,
    bundle_record,
    decode_bundle,
    decode_delta,
    delta_record,
)
from meander.state.checkpoint.in_flight import SnapshotId
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, ExecutionId, WorkerId
from meander.state.layers.manifest import (
    AvroTime,
    LocationRecord,
    Manifest,
    avro_time,
    location_record,
    time_of,
)
from meander.state.layers.topic import RecordLocation
from meander.state.times.time import MIN_TIME, Time

Fetch = Callable[[Sequence[RecordLocation]], Sequence[bytes]]
"""A function that reads the records at some locations. It raises MeanderError."""


class Position(NamedTuple):
    """A position up to which a flow has sent a source partition."""

    source: str
    """The name of the source in the flow."""
    partition: int
    worker: WorkerId
    """The worker that reads the partition."""
    offset: int
    """The offset of the first record that has not been sent."""
    end: int | None
    """The end of a bounded run: the first offset that is not read."""
    maximum: int
    """The running maximum of the times that the records ask for."""
    newest: int
    """The time of the last sent record."""
    frontier: int
    """The partition's frontier, at `newest` or later."""


class Notification(NamedTuple):
    """A notification that a key has requested from an operator for a time."""

    operator: str
    time: Time
    key: bytes


class Piece(NamedTuple):
    """A piece that holds in-flight records of one iteration for one input of an operator."""

    node: str
    input: int
    worker: WorkerId
    """The worker at whose input the records waited."""
    time: Time
    """A lower bound of their times."""
    records: int
    locations: tuple[RecordLocation, ...]
    """The locations of the parts of a record of format 'in_flight', in order."""
    keyed: bool
    """Whether the records have keys, so that they belong to the owners of their bins."""
    bins: bytes | None = None
    """One bit per bin whose records still wait; None where all records wait."""

    @property
    def at(self) -> tuple[str, int]:
        """Return the operator and the input that continue with the records."""
        return self.node, self.input

    @property
    def size(self) -> int:
        """Return the bytes of the piece on its topic."""
        return sum(location.size for location in self.locations)

    @property
    def snapshot(self) -> SnapshotId:
        """Return the author that wrote the piece."""
        return SnapshotId.of(self.locations[0].key)


class ReplayFrom(NamedTuple):
    """A lower bound of the times of a sink's results that repeat after a restart."""

    sink: str
    since: int
    """The time from which the sink had released no result before the cut. A restart computes all of
    them again."""


class InputLineage(NamedTuple):
    """An input lineage that names the operators before and behind one input of an operator."""

    node: str
    input: int
    behind: tuple[str, ...]
    """The operators that its records have passed since the last source or stateful operator."""
    before: tuple[str, ...]
    """The named operators that its records reach next: stateful operators, sinks, loops and probes.
    An operator of these kinds lists itself."""

    @property
    def at(self) -> tuple[str, int]:
        """Return the operator and the input of the lineage."""
        return self.node, self.input


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut that describes a stopped flow, except for the layers of its bins."""

    time: int = MIN_TIME
    """A lower bound of the times of outstanding and later commands."""
    members: tuple[WorkerId, ...] = ()
    owners: tuple[WorkerId, ...] = ()
    """The owner of each bin, group after group."""
    deltas: tuple[Delta, ...] = ()
    """The deltas of bins in transit to another owner."""
    bundles: tuple[Bundle, ...] = ()
    """The bundles that complete the layers of other bins."""
    positions: tuple[Position, ...] = ()
    notifications: tuple[Notification, ...] = ()
    pieces: tuple[Piece, ...] = ()
    """The pieces in the order in which their records continue."""
    replay_starts: tuple[ReplayFrom, ...] = ()
    """The replay start of each exactly-once sink, as far as it is known."""
    lineage: tuple[InputLineage, ...] = ()
    """The lineage of each input that receives records, as far as it is known."""
    arrangements: tuple[KeptArrangement, ...] = ()
    """The arrangements of all operators."""
    frontiers: tuple[OperatorFrontier, ...] = ()
    """The frontier of each stateful operator."""
    unread_rows: tuple[UnreadRows, ...] = ()
    """The rows that operators have not read in the arrangements of others."""


INITIAL_CUT: Final = Cut()
"""The cut of a flow that has not run: it starts from states alone."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that names the states of a flow's operators and its cut. A bin without a
    manifest holds no keys.

    >>> checkpoint = Checkpoint(1, ExecutionId(7), BinSpace(8), millis=5, manifests=())
    >>> Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint
    True
    """

    number: int
    execution: ExecutionId
    space: BinSpace
    millis: int
    manifests: tuple[Manifest, ...]
    cut: Cut = INITIAL_CUT
    savepoint: str = ""
    """The savepoint's name; '' for a checkpoint that retention may delete."""
    policy: str = "unaligned"
    """The policy that decided about in-flight records."""
    alignment_ms: float = 0.0
    """The time from the command to the snapshot."""
    write_ms: float = 0.0
    """The time from the snapshot until all parts were durable."""
    parts: tuple[RecordLocation, ...] = ()
    """The locations of the checkpoint's own parts on the in-flight topic, where it exceeds one
    record."""

    @property
    def key(self) -> bytes:
        """Return the key of its parts on their topic. No other checkpoint has this key."""
        return f"checkpoint/{self.execution}/{self.number}".encode()

    @property
    def operators(self) -> set[str]:
        """Return the operators whose states the checkpoint holds."""
        return {manifest.operator for manifest in self.manifests}

    @property
    def entries(self) -> int:
        """Return the number of entries in its layers. A key counts once per layer."""
        return sum(layer.count for manifest in self.manifests for layer in manifest.layers)

    @property
    def state_bytes(self) -> int:
        """Return the bytes of all layers that it names, and of the deltas that complete them."""
        layers = sum(layer.bytes for manifest in self.manifests for layer in manifest.layers)
        return layers + sum({one.location: one.location.size for one in self.cut.bundles}.values())

    @property
    def locations(self) -> dict[RecordLocation, None]:
        """Return all locations on the in-flight topic that it names."""
        pieces, bundles = self.cut.pieces, self.cut.bundles
        in_flight = chain.from_iterable(piece.locations for piece in pieces)
        return dict.fromkeys(chain(self.parts, in_flight, (b.location for b in bundles)))

    @property
    def chunks(self) -> list[RecordLocation]:
        """Return the locations of its layers on the state topic."""
        layers = (layer for manifest in self.manifests for layer in manifest.layers)
        return [location for layer in layers for location in layer.chunks]

    @property
    def in_flight(self) -> int:
        """Return the number of in-flight records. A piece counts in full, even where some bins no
        longer need it."""
        return sum(piece.records for piece in self.cut.pieces)

    @property
    def in_flight_bytes(self) -> int:
        """Return the bytes of the in-flight records on their topic."""
        return sum({piece.locations: piece.size for piece in self.cut.pieces}.values())

    @staticmethod
    def assemble(header: Checkpoint, parts: Iterable[Checkpoint]) -> Checkpoint:
        """Return the checkpoint that consists of the parts of the coordinator and each worker."""
        parts = list(parts)
        cuts = [part.cut for part in parts]
        return replace(
            header,
            manifests=tuple(chain.from_iterable(part.manifests for part in parts)),
            cut=replace(
                header.cut,
                deltas=tuple(chain.from_iterable(cut.deltas for cut in cuts)),
                bundles=tuple(chain.from_iterable(cut.bundles for cut in cuts)),
                positions=tuple(chain.from_iterable(cut.positions for cut in cuts)),
                notifications=tuple(chain.from_iterable(cut.notifications for cut in cuts)),
                pieces=tuple(chain.from_iterable(cut.pieces for cut in cuts)),
                replay_starts=_latest_replay_starts([header.cut, *cuts]),
                frontiers=least_frontiers(cut.frontiers for cut in cuts),
                unread_rows=tuple(chain.from_iterable(cut.unread_rows for cut in cuts)),
            ),
        )

    def to_bytes(self) -> bytes:
        """Return the bytes of the checkpoint without the locations of its parts: one record, or the
        value to split."""
        return _FORMAT.encode(self._record())

    def header(self, data: bytes) -> bytes:
        """Return the record that completes a checkpoint, whose parts together are `data`."""
        header = replace(self, manifests=(), cut=INITIAL_CUT)._record()
        header["parts"] = [location_record(location) for location in self.parts]
        header["checksum"] = _checksum(data)
        return _FORMAT.encode(header)

    def _record(self) -> _CheckpointRecord:
        cut = self.cut
        return {
            "number": self.number,
            "execution": self.execution,
            "bits": self.space.bits,
            "millis": self.millis,
            "savepoint": self.savepoint,
            "policy": self.policy,
            "alignment_ms": self.alignment_ms,
            "write_ms": self.write_ms,
            "manifests": [manifest.to_bytes() for manifest in self.manifests],
            "time": cut.time,
            "members": list(cut.members),
            "owners": list(cut.owners),
            "deltas": [delta_record(one) for one in cut.deltas],
            "bundles": [bundle_record(one) for one in cut.bundles],
            "positions": [one._asdict() for one in cut.positions],
            "notifications": [
                {"operator": one.operator, "time": avro_time(one.time), "key": one.key}
                for one in cut.notifications
            ],
            "pieces": [_piece_record(one) for one in cut.pieces],
            "replay_starts": [one._asdict() for one in cut.replay_starts],
            "lineage": [one._asdict() for one in cut.lineage],
            "arrangements": [one._asdict() for one in cut.arrangements],
            "frontiers": [one._asdict() for one in cut.frontiers],
            "unread_rows": [
                {
                    "operator": one.operator,
                    "input": one.input,
                    "bin": one.bin,
                    "times": list(map(avro_time, one.times)),
                }
                for one in cut.unread_rows
            ],
            "parts": [],
            "checksum": 0,
        }

    @staticmethod
    def from_bytes(data: bytes, fetch: Fetch | None = None) -> Checkpoint:
        """Undo `to_bytes`, or `header` with the parts that `fetch` reads. Raise MeanderError when
        another format version wrote it, or when the parts do not match the header."""
        record = _FORMAT.decode(data)
        if record["parts"]:
            return _assemble(record, fetch)
        return Checkpoint(
            record["number"], ExecutionId(record["execution"]), BinSpace(record["bits"]),
            record["millis"], tuple(map(Manifest.from_bytes, record["manifests"])),
            Cut(
                record["time"],
                tuple(map(WorkerId, record["members"])),
                tuple(map(WorkerId, record["owners"])),
                tuple(map(decode_delta, record["deltas"])),
                tuple(map(decode_bundle, record["bundles"])),
                tuple(Position(**one) for one in record["positions"]),
                tuple(
                    Notification(one["operator"], time_of(one["time"]), one["key"])
                    for one in record["notifications"]
                ),
                tuple(map(_piece, record["pieces"])),
                tuple(ReplayFrom(**one) for one in record["replay_starts"]),
                tuple(
                    InputLineage(
                        one["node"], one["input"], tuple(one["behind"]), tuple(one["before"])
                    )
                    for one in record["lineage"]
                ),
                tuple(KeptArrangement(**one) for one in record["arrangements"]),
                tuple(OperatorFrontier(**one) for one in record["frontiers"]),
                tuple(
                    UnreadRows(
                        one["operator"], one["input"], Bin(one["bin"]),
                        tuple(map(time_of, one["times"])),
                    )
                    for one in record["unread_rows"]
                ),
            ),
            record["savepoint"], record["policy"], record["alignment_ms"], record["write_ms"],
        )  # fmt: skip


def _assemble(header: _CheckpointRecord, fetch: Fetch | None) -> Checkpoint:
    """Return the checkpoint whose parts a header names."""
    subject = f"checkpoint {header['number']}"
    if fetch is None:
        raise MeanderError(subject, "it lies in parts, but one record was expected")
    locations = tuple(RecordLocation(**location) for location in header["parts"])
    data = b"".join(fetch(locations))
    if _checksum(data) != header["checksum"]:
        raise MeanderError(
            subject,
            f"its {len(locations)} parts differ from the written ones: their checksum is wrong",
            "look for another program that writes to the in-flight topic, or deletes from it",
        )  # fmt: skip
    return replace(Checkpoint.from_bytes(data), parts=locations)


def _checksum(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data) >> 1


class _NotificationRecord(TypedDict):
    operator: str
    time: AvroTime
    key: bytes


class _UnreadRecord(TypedDict):
    operator: str
    input: int
    bin: int
    times: list[AvroTime]


class _PieceRecord(TypedDict):
    node: str
    input: int
    worker: int
    time: AvroTime
    records: int
    location: LocationRecord
    more: list[LocationRecord]
    keyed: bool
    bins: bytes | None


class _CheckpointRecord(TypedDict):
    number: int
    execution: int
    bits: int
    millis: int
    savepoint: str
    policy: str
    alignment_ms: float
    write_ms: float
    manifests: list[bytes]
    time: int
    members: list[int]
    owners: list[int]
    deltas: list[DeltaRecord]
    bundles: list[BundleRecord]
    positions: list[dict[str, Any]]
    """The fields of each `Position`."""
    notifications: list[_NotificationRecord]
    pieces: list[_PieceRecord]
    replay_starts: list[dict[str, Any]]
    """The fields of each `ReplayFrom`."""
    lineage: list[dict[str, Any]]
    """The fields of each `InputLineage`."""
    arrangements: list[dict[str, Any]]
    """The fields of each `KeptArrangement`."""
    frontiers: list[dict[str, Any]]
    """The fields of each `OperatorFrontier`."""
    unread_rows: list[_UnreadRecord]
    parts: list[LocationRecord]
    checksum: int


_FORMAT: Final = Format[_CheckpointRecord]("checkpoint")


def _latest_replay_starts(cuts: Iterable[Cut]) -> tuple[ReplayFrom, ...]:
    """Return for each sink the latest replay start of all workers."""
    found = dict[str, int]()
    for sink, since in chain.from_iterable(cut.replay_starts for cut in cuts):
        found[sink] = max(since, found.get(sink, since))
    return tuple(starmap(ReplayFrom, found.items()))


def _piece_record(one: Piece) -> _PieceRecord:
    return {
        "node": one.node, "input": one.input, "worker": one.worker, "time": avro_time(one.time),
        "records": one.records, "keyed": one.keyed, "bins": one.bins,
        "location": location_record(one.locations[0]),
        "more": list(map(location_record, one.locations[1:])),
    }  # fmt: skip


def _piece(record: _PieceRecord) -> Piece:
    return Piece(
        record["node"], record["input"], WorkerId(record["worker"]), time_of(record["time"]),
        record["records"],
        tuple(RecordLocation(**one) for one in (record["location"], *record["more"])),
        record["keyed"], record["bins"],
    )  # fmt: skip
