"""Deltas and bundles: the changes of bins since their last layers, many bins in one record.

A checkpoint that finds few changes in a bin puts them into a bundle instead of a layer. So it
writes one record for some hundred bins. Guarantees that a bundle is read as it was written, or
BundleCorrupt is raised. Cost: a key takes 0.2 us to write, a bin some bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypedDict

import xxhash

from meander.schemas.avro import NULL, PRESENT, Format, array, byte_strings, long
from meander.state.encoding.cells import bytes_of, with_none, without_none
from meander.state.encoding.timers import Timers
from meander.state.keys.ids import Bin, ExecutionId, WorkerId
from meander.state.layers.layer import DeltaEntries
from meander.state.layers.manifest import LocationRecord, location_record
from meander.state.layers.topic import LayerUnreadableError, RecordLocation

CHECKSUM_BYTES: Final = 8


class BundleCorrupt(LayerUnreadableError):
    """An error that reports a bundle that differs from the written one."""


class Delta(NamedTuple):
    """A delta that holds the changes of a bin since its last layer."""

    operator: str
    bin: Bin
    entries: DeltaEntries

    @property
    def size(self) -> int:
        """Return its size in bytes, estimated."""
        keys, states, timers = self.entries
        return sum(map(len, keys)) + bytes_of(states) + 16 * len(timers or ())


class Bundle(NamedTuple):
    """A bundle that names a record with the deltas of some bins of an operator."""

    operator: str
    bins: tuple[Bin, ...]
    """The bins whose deltas count. For other bins the record may hold outdated deltas."""
    location: RecordLocation


def bundle_key(execution: ExecutionId, checkpoint: int, worker: WorkerId, sequence: int) -> bytes:
    """Return the key of the n-th bundle of a worker and checkpoint on its topic."""
    return f"bundle/{execution}/{checkpoint}/{worker}/{sequence}".encode()


def encode_deltas(deltas: Iterable[Delta]) -> bytes:
    """Encode deltas as a bundle for its topic.

    >>> delta = Delta("totals", Bin(3), DeltaEntries([b"k"], [b"s"], None))
    >>> decode_deltas(encode_deltas([delta])) == [delta]
    True
    """
    # Avro's writer takes several times as long for single strings as for whole columns.
    body = bytes([_FORMAT.version]) + array(list(map(_encode_delta, deltas)))
    return xxhash.xxh3_64_digest(body) + body


def _encode_delta(one: Delta) -> bytes:
    name, (keys, states, timers) = one.operator.encode(), one.entries
    known, forgotten = without_none(states)
    head = long(len(name)) + name + long(one.bin)
    places = array(list(map(long, forgotten)))
    return head + byte_strings(keys) + byte_strings(known) + places + _optional(timers)


def _optional(timers: Timers | None) -> bytes:
    if timers is None:
        return NULL
    return PRESENT + array([long(at) + long(len(key)) + key for at, key in timers])


def decode_deltas(data: bytes) -> list[Delta]:
    """Undo `encode_deltas`. Raise BundleCorrupt for other bytes, MeanderError for another format
    version."""
    checksum, body = data[:CHECKSUM_BYTES], data[CHECKSUM_BYTES:]
    if xxhash.xxh3_64_digest(body) != checksum:
        raise BundleCorrupt(
            "a record of format 'bundle'", "its checksum is wrong",
            "look for another program that writes to the in-flight topic, and start from an earlier"
            " checkpoint",
        )  # fmt: skip
    return list(map(decode_delta, _FORMAT.decode(body)["deltas"]))


class TimerRecord(TypedDict):
    """A record that holds one timer of a key."""

    time: int
    key: bytes


class DeltaRecord(TypedDict):
    """A record that holds the delta of one bin."""

    operator: str
    bin: int
    keys: list[bytes]
    states: list[bytes]
    forgotten: list[int]
    timers: list[TimerRecord] | None


class BundleRecord(TypedDict):
    """A record that holds the location of a bundle."""

    operator: str
    bins: list[int]
    location: LocationRecord


class _Bundled(TypedDict):
    deltas: list[DeltaRecord]


_FORMAT: Final = Format[_Bundled]("bundle")


def delta_record(one: Delta) -> DeltaRecord:
    """Return a delta as an Avro record."""
    keys, states, timers = one.entries
    known = None if timers is None else [TimerRecord(time=at, key=key) for at, key in timers]
    with_bytes, forgotten = without_none(states)
    return {
        "operator": one.operator, "bin": one.bin, "keys": keys, "states": with_bytes,
        "forgotten": forgotten, "timers": known,
    }  # fmt: skip


def decode_delta(record: DeltaRecord) -> Delta:
    """Undo `delta_record`."""
    known = record["timers"]
    timers = None if known is None else [(timer["time"], timer["key"]) for timer in known]
    states = with_none(record["states"], record["forgotten"])
    entries = DeltaEntries(record["keys"], states, timers)
    return Delta(record["operator"], Bin(record["bin"]), entries)


def bundle_record(one: Bundle) -> BundleRecord:
    """Return a bundle as an Avro record."""
    bins = list[int](one.bins)
    return {"operator": one.operator, "bins": bins, "location": location_record(one.location)}


def decode_bundle(record: BundleRecord) -> Bundle:
    """Undo `bundle_record`."""
    return Bundle(
        record["operator"], tuple(map(Bin, record["bins"])), RecordLocation(**record["location"])
    )
