"""Manifests: the locations and the contents of a bin's layers.

A layer is immutable; its `LayerId` names it for ever. A new owner installs a bin from its manifest
alone, so only the manifest has authority. The manifest travels on a dataflow edge under a
capability, the entries through the state topic. Cost: some hundred bytes, and 30 per chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypedDict
from weakref import WeakValueDictionary

from meander.schemas.avro import Format
from meander.state.keys.ids import Bin, ExecutionId, LayerId, WorkerId
from meander.state.layers.topic import RecordLocation
from meander.state.times.time import Time

Kind = Literal["base", "delta"]
AvroTime = int | list[int]


@dataclass(frozen=True, slots=True)
class Description:
    """A description that bounds the times of a layer: it has the effect of all records of lower <=
    time < upper.

    Times before `since` are not distinguished any more. A layer that a worker writes while it
    applies records is fuzzy. Each of its states belongs to some moment after its keys were
    collected. So a state may have the effect of records of `upper` and later. The next layer
    contains later changes too. Nothing changes during the last layer, so it makes the bin exact.
    """

    lower: Time
    upper: Time
    since: Time


@dataclass(frozen=True, slots=True)
class LayerPointer:
    """A layer pointer that names one layer, its counts, and the locations of its chunks in order.

    `count` is the number of keys. `checksum` is xxh3 of the chunks' own checksums (8 bytes each) in
    order.
    """

    id: LayerId
    description: Description
    kind: Kind
    count: int
    checksum: int
    codec: str
    chunks: tuple[RecordLocation, ...]

    @property
    def bytes(self) -> int:
        """Return the bytes of the layer on the topic."""
        return sum(location.size for location in self.chunks)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Manifest:
    """A manifest that names the live layers of one operator's bin. `epoch` is the time from which
    its new owner owns it.

    A checkpoint names all manifests, and few have changed since the last one. So a manifest keeps
    its bytes, and equal bytes are read once while their manifest is in use.

    >>> manifest = Manifest("per_plane", Bin(3), epoch=0, layers=())
    >>> Manifest.from_bytes(manifest.to_bytes()) == manifest
    True
    """

    operator: str
    bin: Bin
    epoch: int
    layers: tuple[LayerPointer, ...]
    _data: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def to_bytes(self) -> bytes:
        """Return the bytes of the manifest."""
        data = self._data
        if data is None:
            data = _encoded(self)
            self._keep(data)
        return data

    @staticmethod
    def from_bytes(data: bytes) -> Manifest:
        """Undo `to_bytes`. Raise MeanderError when another format version wrote it."""
        manifest = _IN_USE.get(data)
        if manifest is None:
            manifest = _decoded(data)
            manifest._keep(data)
            _IN_USE[data] = manifest
        return manifest

    def _keep(self, data: bytes) -> None:
        object.__setattr__(self, "_data", data)


_IN_USE: Final = WeakValueDictionary[bytes, Manifest]()
"""The manifests that this process has read, by their bytes."""


class LocationRecord(TypedDict):
    """A record that holds a record location."""

    key: bytes
    partition: int
    offset: int
    size: int


class _LayerRecord(TypedDict):
    execution: int
    worker: int
    sequence: int
    kind: Kind
    codec: str
    lower: AvroTime
    upper: AvroTime
    since: AvroTime
    count: int
    checksum: bytes
    chunks: list[LocationRecord]


class _ManifestRecord(TypedDict):
    operator: str
    bin: int
    epoch: int
    layers: list[_LayerRecord]


_FORMAT: Final = Format[_ManifestRecord]("manifest")


def _encoded(one: Manifest) -> bytes:
    layers = [_layer_record(layer) for layer in one.layers]
    return _FORMAT.encode(
        {"operator": one.operator, "bin": one.bin, "epoch": one.epoch, "layers": layers}
    )


def _decoded(data: bytes) -> Manifest:
    record = _FORMAT.decode(data)
    layers = tuple(map(_layer, record["layers"]))
    return Manifest(record["operator"], Bin(record["bin"]), record["epoch"], layers)


def avro_time(time: Time) -> AvroTime:
    """Return a time as Avro has it: a long, or an array of longs.

    >>> avro_time(5), avro_time((5, 1))
    (5, [5, 1])
    """
    return time if isinstance(time, int) else list(time)


def time_of(record: AvroTime) -> Time:
    """Undo `avro_time`."""
    return record if isinstance(record, int) else tuple(record)


def location_record(location: RecordLocation) -> LocationRecord:
    """Return a location as an Avro record; `RecordLocation(**record)` undoes it."""
    return {
        "key": location.key, "partition": location.partition, "offset": location.offset,
        "size": location.size,
    }  # fmt: skip


def _layer_record(layer: LayerPointer) -> _LayerRecord:
    return {
        "execution": layer.id.execution,
        "worker": layer.id.worker,
        "sequence": layer.id.sequence,
        "kind": layer.kind,
        "codec": layer.codec,
        "lower": avro_time(layer.description.lower),
        "upper": avro_time(layer.description.upper),
        "since": avro_time(layer.description.since),
        "count": layer.count,
        "checksum": layer.checksum.to_bytes(8, "big"),
        "chunks": [location_record(location) for location in layer.chunks],
    }


def _layer(record: _LayerRecord) -> LayerPointer:
    return LayerPointer(
        LayerId(ExecutionId(record["execution"]), WorkerId(record["worker"]), record["sequence"]),
        Description(time_of(record["lower"]), time_of(record["upper"]), time_of(record["since"])),
        record["kind"],
        record["count"],
        int.from_bytes(record["checksum"], "big"),
        record["codec"],
        tuple(RecordLocation(**location) for location in record["chunks"]),
    )
