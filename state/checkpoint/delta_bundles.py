"""Deltas and bundles: the changes of bins since their last layers, many bins in one record.

A checkpoint that finds few changes in a bin puts them into a bundle instead of a layer. So it
writes one record for some hundred bins. Guarantees that a bundle is read as it was written, or
BundleCorrupt is raised. Cost: a key takes 0.2 us to write, a bin some bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypedDict

import xxhash

from meander.schemas.avro import NULL, THERE, Format, array, byte_strings, long
from meander.state.encoding.timers import Timers
from meander.state.keys.ids import Bin, ExecutionId, WorkerId
from meander.state.layers.layer import DeltaEntries
from meander.state.layers.manifest import PlaceRecord, place_record
from meander.state.layers.topic import LayerUnreadable, RecordLocation

CHECKSUM_BYTES: Final = 8


class BundleCorrupt(LayerUnreadable):
    """What lies at a bundle's place is not what was written."""


class Delta(NamedTuple):
    """What the layers of an operator's bin lack."""

    operator: str
    bin: Bin
    remainder: DeltaEntries

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        keys, states, timers = self.remainder
        return sum(map(len, keys)) + sum(map(len, states)) + 16 * len(timers or ())


class Bundle(NamedTuple):
    """Where it lies what the layers of some bins of an operator lack."""

    operator: str
    bins: tuple[Bin, ...]
    """Those for which it counts: of others it may tell what they were once."""
    place: RecordLocation


def key_of(execution: ExecutionId, checkpoint: int, worker: WorkerId, sequence: int) -> bytes:
    """The key of a bundle on its topic: the n-th of a worker and checkpoint."""
    return f"bundle/{execution}/{checkpoint}/{worker}/{sequence}".encode()


def to_bytes(many: Iterable[Delta]) -> bytes:
    """A bundle as it rests on its topic.

    >>> found = from_bytes(to_bytes([Delta("totals", Bin(3), DeltaEntries([b"k"], [b"s"], None))]))
    >>> found[0].bin, found[0].remainder.states
    (3, [b's'])
    """
    # Column by column, as Avro's writer takes several times as long for strings one by one.
    body = bytes([_FORMAT.version]) + array(list(map(_bundled, many)))
    return xxhash.xxh3_64_digest(body) + body


def _bundled(one: Delta) -> bytes:
    """As it stands in a bundle."""
    name, (keys, states, timers) = one.operator.encode(), one.remainder
    head = long(len(name)) + name + long(one.bin)
    return head + byte_strings(keys) + byte_strings(states) + _optional(timers)


def _optional(timers: Timers | None) -> bytes:
    if timers is None:
        return NULL
    return THERE + array([long(at) + long(len(key)) + key for at, key in timers])


def from_bytes(data: bytes) -> list[Delta]:
    """Undo `to_bytes`. Raises BundleCorrupt for what was not written so, MeanderError for another
    format version."""
    checksum, body = data[:CHECKSUM_BYTES], data[CHECKSUM_BYTES:]
    if xxhash.xxh3_64_digest(body) != checksum:
        raise BundleCorrupt(
            "a record of format 'bundle'", "its checksum is another",
            "see who else writes to the in-flight topic, and start from an earlier checkpoint",
        )  # fmt: skip
    return list(map(lacking, _FORMAT.decode(body)["remainders"]))


class TimerRecord(TypedDict):
    """When a key has asked to be called."""

    time: int
    key: bytes


class LackingRecord(TypedDict):
    """What the layers of one bin lack."""

    operator: str
    bin: int
    keys: list[bytes]
    states: list[bytes]
    timers: list[TimerRecord] | None


class BundleRecord(TypedDict):
    """Where a bundle lies."""

    operator: str
    bins: list[int]
    place: PlaceRecord


class _Bundled(TypedDict):
    remainders: list[LackingRecord]


_FORMAT: Final = Format[_Bundled]("bundle")


def lacking_record(one: Delta) -> LackingRecord:
    """As Avro has it."""
    keys, states, timers = one.remainder
    known = None if timers is None else [TimerRecord(time=at, key=key) for at, key in timers]
    return {
        "operator": one.operator, "bin": one.bin, "keys": keys, "states": states, "timers": known,
    }  # fmt: skip


def lacking(record: LackingRecord) -> Delta:
    """Undo `lacking_record`."""
    known = record["timers"]
    timers = None if known is None else [(timer["time"], timer["key"]) for timer in known]
    remainder = DeltaEntries(record["keys"], record["states"], timers)
    return Delta(record["operator"], Bin(record["bin"]), remainder)


def bundle_record(one: Bundle) -> BundleRecord:
    """As Avro has it."""
    bins = list[int](one.bins)
    return {"operator": one.operator, "bins": bins, "place": place_record(one.place)}


def bundle(record: BundleRecord) -> Bundle:
    """Undo `bundle_record`."""
    return Bundle(
        record["operator"], tuple(map(Bin, record["bins"])), RecordLocation(**record["place"])
    )
