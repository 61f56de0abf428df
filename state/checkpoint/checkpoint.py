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
from meander.state.checkpoint.delta_bundles import (
    Bundle,
    BundleRecord,
    Delta,
    LackingRecord,
    bundle,
    bundle_record,
    lacking,
    lacking_record,
)
from meander.state.checkpoint.in_flight import Author
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import ExecutionId, WorkerId
from meander.state.layers.manifest import (
    AvroTime,
    Manifest,
    PlaceRecord,
    avro_time,
    place_record,
    time_of,
)
from meander.state.layers.topic import RecordLocation
from meander.state.times.time import MIN_TIME, Time

Fetch = Callable[[Sequence[RecordLocation]], Sequence[bytes]]
"""Reads what lies at some places. Raises MeanderError."""


class Position(NamedTuple):
    """How far a source partition has been sent."""

    source: str
    """Its name in the flow."""
    partition: int
    worker: WorkerId
    """Who reads it."""
    offset: int
    """Of the first record that has not been sent."""
    end: int | None
    """Where a bounded run ends: the first offset that is not read."""
    maximum: int
    """The running maximum of what its records ask for."""
    newest: int
    """The time of the last record sent."""
    frontier: int
    """The partition's frontier, not before `newest`."""


class Notice(NamedTuple):
    """A call that a key has asked an operator for, once all of a time has come."""

    operator: str
    time: Time
    key: bytes


class Piece(NamedTuple):
    """Records in flight, of one round, that go on at one input of one operator."""

    node: str
    input: int
    worker: WorkerId
    """Who was to take them."""
    time: Time
    """None of them is of an earlier one."""
    records: int
    places: tuple[RecordLocation, ...]
    """Where the parts of a record of format 'in_flight' lie, in order."""
    keyed: bool
    """Whether they have keys, and so belong to the owners of their bins."""
    bins: bytes | None = None
    """A bit for each bin whose records have not gone on yet; None where none has."""

    @property
    def at(self) -> tuple[str, int]:
        """Where they go on."""
        return self.node, self.input

    @property
    def size(self) -> int:
        """What it takes on its topic."""
        return sum(place.size for place in self.places)

    @property
    def author(self) -> Author:
        """Who has written it."""
        return Author.of(self.places[0].key)


class ReplayFrom(NamedTuple):
    """From when on results come again."""

    sink: str
    since: int
    """No result from this time on was let go of before the cut: all are made anew behind it."""


class InputLineage(NamedTuple):
    """How records came to one input of one operator, and where they went on to."""

    node: str
    input: int
    behind: tuple[str, ...]
    """What they had come through, from the last source or stateful operator on."""
    before: tuple[str, ...]
    """To which of those with names of their own they went on: stateful operators, sinks, loops and
    probes, the operator itself where it is one."""

    @property
    def at(self) -> tuple[str, int]:
        """Of which input it is."""
        return self.node, self.input


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a flow was stopped: all but the layers of its bins."""

    time: int = MIN_TIME
    """No command of an earlier time is outstanding, and none will come."""
    members: tuple[WorkerId, ...] = ()
    owners: tuple[WorkerId, ...] = ()
    """Of each bin, group after group."""
    lacking: tuple[Delta, ...] = ()
    """Of bins on their way to another owner."""
    bundles: tuple[Bundle, ...] = ()
    """Of others that had changed a little."""
    positions: tuple[Position, ...] = ()
    notices: tuple[Notice, ...] = ()
    pieces: tuple[Piece, ...] = ()
    """In the order in which they go on."""
    anew: tuple[ReplayFrom, ...] = ()
    """Of sinks that deliver exactly once; of one that is not here nobody knows."""
    ways: tuple[InputLineage, ...] = ()
    """Of each input that takes records; of one that is not here nobody knows."""


BEGINNING: Final = Cut()
"""Of a flow that has not run: it starts from states alone."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The states of a flow's operators, and where it was stopped; a bin that has no manifest holds
    no keys.

    >>> checkpoint = Checkpoint(1, ExecutionId(7), BinSpace(8), millis=5, manifests=())
    >>> Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint
    True
    """

    number: int
    execution: ExecutionId
    space: BinSpace
    millis: int
    manifests: tuple[Manifest, ...]
    cut: Cut = BEGINNING
    savepoint: str = ""
    """The name under which it is kept until it is dropped; '' of one that is retired by itself."""
    policy: str = "unaligned"
    """How records in flight were treated."""
    alignment_ms: float = 0.0
    """From the command to the freeze."""
    write_ms: float = 0.0
    """From the freeze until all parts were durable."""
    parts: tuple[RecordLocation, ...] = ()
    """Where it lies itself on the in-flight topic, in order, if it is more than a record takes."""

    @property
    def key(self) -> bytes:
        """The key of its parts on their topic, never used twice."""
        return f"checkpoint/{self.execution}/{self.number}".encode()

    @property
    def operators(self) -> set[str]:
        """The operators whose states it holds."""
        return {manifest.operator for manifest in self.manifests}

    @property
    def entries(self) -> int:
        """How many its layers hold: keys, each as often as it is in one."""
        return sum(layer.count for manifest in self.manifests for layer in manifest.layers)

    @property
    def state_bytes(self) -> int:
        """What all layers that it names take, and what says what they lack."""
        layers = sum(layer.bytes for manifest in self.manifests for layer in manifest.layers)
        return layers + sum({one.place: one.place.size for one in self.cut.bundles}.values())

    @property
    def places(self) -> dict[RecordLocation, None]:
        """All that it names on the in-flight topic."""
        pieces, bundles = self.cut.pieces, self.cut.bundles
        flying = chain.from_iterable(piece.places for piece in pieces)
        return dict.fromkeys(chain(self.parts, flying, (b.place for b in bundles)))

    @property
    def chunks(self) -> list[RecordLocation]:
        """Where its layers lie on the state topic."""
        layers = (layer for manifest in self.manifests for layer in manifest.layers)
        return [place for layer in layers for place in layer.chunks]

    @property
    def in_flight(self) -> int:
        """How many records are in flight; of pieces that have gone on in part all count."""
        return sum(piece.records for piece in self.cut.pieces)

    @property
    def in_flight_bytes(self) -> int:
        """What they take on their topic."""
        return sum({piece.places: piece.size for piece in self.cut.pieces}.values())

    @staticmethod
    def joined(whole: Checkpoint, parts: Iterable[Checkpoint]) -> Checkpoint:
        """One of what the coordinator and each worker have contributed."""
        parts = list(parts)
        cuts = [part.cut for part in parts]
        return replace(
            whole,
            manifests=tuple(chain.from_iterable(part.manifests for part in parts)),
            cut=replace(
                whole.cut,
                lacking=tuple(chain.from_iterable(cut.lacking for cut in cuts)),
                bundles=tuple(chain.from_iterable(cut.bundles for cut in cuts)),
                positions=tuple(chain.from_iterable(cut.positions for cut in cuts)),
                notices=tuple(chain.from_iterable(cut.notices for cut in cuts)),
                pieces=tuple(chain.from_iterable(cut.pieces for cut in cuts)),
                anew=_latest([whole.cut, *cuts]),
            ),
        )

    def to_bytes(self) -> bytes:
        """Return all of the checkpoint but where its parts lie: a record, or what is cut."""
        return _FORMAT.encode(self._record())

    def head(self, data: bytes) -> bytes:
        """Return the record that makes a checkpoint of the parts into which `data` was cut."""
        head = replace(self, manifests=(), cut=BEGINNING)._record()
        head["parts"] = [place_record(place) for place in self.parts]
        head["checksum"] = _checksum(data)
        return _FORMAT.encode(head)

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
            "remainders": [lacking_record(one) for one in cut.lacking],
            "bundles": [bundle_record(one) for one in cut.bundles],
            "positions": [one._asdict() for one in cut.positions],
            "notices": [
                {"operator": one.operator, "time": avro_time(one.time), "key": one.key}
                for one in cut.notices
            ],
            "pieces": [_piece_record(one) for one in cut.pieces],
            "anew": [one._asdict() for one in cut.anew],
            "ways": [one._asdict() for one in cut.ways],
            "parts": [],
            "checksum": 0,
        }

    @staticmethod
    def from_bytes(data: bytes, fetch: Fetch | None = None) -> Checkpoint:
        """Undo `to_bytes`, and `head` with what `fetch` has of the parts. Raises MeanderError when
        another format version wrote it, or where the parts are not those that were cut."""
        record = _FORMAT.decode(data)
        if record["parts"]:
            return _joined(record, fetch)
        return Checkpoint(
            record["number"], ExecutionId(record["execution"]), BinSpace(record["bits"]),
            record["millis"], tuple(map(Manifest.from_bytes, record["manifests"])),
            Cut(
                record["time"],
                tuple(map(WorkerId, record["members"])),
                tuple(map(WorkerId, record["owners"])),
                tuple(map(lacking, record["remainders"])),
                tuple(map(bundle, record["bundles"])),
                tuple(Position(**one) for one in record["positions"]),
                tuple(
                    Notice(one["operator"], time_of(one["time"]), one["key"])
                    for one in record["notices"]
                ),
                tuple(map(_piece, record["pieces"])),
                tuple(ReplayFrom(**one) for one in record["anew"]),
                tuple(
                    InputLineage(
                        one["node"], one["input"], tuple(one["behind"]), tuple(one["before"])
                    )
                    for one in record["ways"]
                ),
            ),
            record["savepoint"], record["policy"], record["alignment_ms"], record["write_ms"],
        )  # fmt: skip


def _joined(head: _CheckpointRecord, fetch: Fetch | None) -> Checkpoint:
    """Return the checkpoint whose parts a head names."""
    concerns = f"checkpoint {head['number']}"
    if fetch is None:
        raise MeanderError(concerns, "it lies in parts, where a whole one was expected")
    places = tuple(RecordLocation(**place) for place in head["parts"])
    data = b"".join(fetch(places))
    if _checksum(data) != head["checksum"]:
        raise MeanderError(
            concerns,
            f"its {len(places)} parts are not what was written: their checksum is another",
            "see who else writes to the in-flight topic, or deletes from it",
        )  # fmt: skip
    return replace(Checkpoint.from_bytes(data), parts=places)


def _checksum(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data) >> 1


class _NoticeRecord(TypedDict):
    operator: str
    time: AvroTime
    key: bytes


class _PieceRecord(TypedDict):
    node: str
    input: int
    worker: int
    time: AvroTime
    records: int
    place: PlaceRecord
    more: list[PlaceRecord]
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
    remainders: list[LackingRecord]
    bundles: list[BundleRecord]
    positions: list[dict[str, Any]]
    """Of `Position`, field by field."""
    notices: list[_NoticeRecord]
    pieces: list[_PieceRecord]
    anew: list[dict[str, Any]]
    """Of `ReplayFrom`, field by field."""
    ways: list[dict[str, Any]]
    """Of `InputLineage`, field by field."""
    parts: list[PlaceRecord]
    checksum: int


_FORMAT: Final = Format[_CheckpointRecord]("checkpoint", earlier=[2, 3, 4, 5])


def _latest(cuts: Iterable[Cut]) -> tuple[ReplayFrom, ...]:
    """What holds on all workers."""
    found = dict[str, int]()
    for sink, since in chain.from_iterable(cut.anew for cut in cuts):
        found[sink] = max(since, found.get(sink, since))
    return tuple(starmap(ReplayFrom, found.items()))


def _piece_record(one: Piece) -> _PieceRecord:
    return {
        "node": one.node, "input": one.input, "worker": one.worker, "time": avro_time(one.time),
        "records": one.records, "keyed": one.keyed, "bins": one.bins,
        "place": place_record(one.places[0]), "more": list(map(place_record, one.places[1:])),
    }  # fmt: skip


def _piece(record: _PieceRecord) -> Piece:
    return Piece(
        record["node"], record["input"], WorkerId(record["worker"]), time_of(record["time"]),
        record["records"],
        tuple(RecordLocation(**one) for one in (record["place"], *record["more"])),
        record["keyed"], record["bins"],
    )  # fmt: skip
