"""Frames between members: progress and data, as bytes that cannot run code.

A frame is a list of parts. Part 0 begins with its kind. Progress is msgpack; a batch is one part
of Arrow IPC for its columns and one of plain values (`state.codec`); pointers to state and
moves are plain values; news of members are msgpack. Cost: one encoding per remote message, none
for local ones.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.batch import Batch, Int64s, UInt64s
from dataflow.graph import EdgeId, Location
from dataflow.migrate.moves import Moves
from dataflow.migrate.parcels import Order, Parcel
from dataflow.protocols import Frame
from schemas.errors import MeanderError
from state import codec
from state.antichain import Antichain
from state.ids import WorkerId
from state.manifest import Manifest
from state.time import Time

Payload = Batch | Manifest | Moves | Order | Parcel
Change = tuple[Location, Time, int]

PROGRESS, MEMBERS, DATA, TAKEN = b"P", b"M", b"D", b"T"
_COLUMNS = ("time", "origin", "partition", "offset", "index")
_PLAIN = pa.schema([(name, pa.int64()) for name in _COLUMNS])
_KEYED = pa.schema([*_PLAIN, ("key", pa.binary()), ("hash", pa.uint64())])


News = Literal["welcome", "joins", "parts", "parted", "gone"]
"""To a newcomer, of a newcomer, to one who is to part, of one who has nothing left, of its end."""


@dataclass(frozen=True, slots=True)
class ProgressFrame:
    """One atomic update of a member."""

    changes: list[Change]


@dataclass(frozen=True, slots=True)
class Base:
    """A lower bound, at every location, of all that is still outstanding anywhere; the greater its
    number, the later. It follows from so many updates of each member as `cut` says."""

    number: int
    bounds: tuple[Antichain, ...]
    cut: tuple[tuple[WorkerId, int], ...] = ()

    def before(self, location: Location, time: Time) -> bool:
        """Whether nothing is outstanding any more at this location and time.

        >>> Base(1, (Antichain.of(5),)).before(Location(0), 4)
        True
        """
        return not self.bounds[location].less_equal(time)


@dataclass(frozen=True, slots=True)
class OpeningFrame:
    """To a newcomer: all that the sender has contributed so far and that is not before its base."""

    base: Base
    sent: int
    """In how many updates."""
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class MemberFrame:
    """News of who takes part."""

    news: News
    members: tuple[WorkerId, ...] = ()
    """Of a welcome, all others; of an arrival or an end, the one."""
    time: int = 0
    """Of a parting, from when on nothing will be addressed to the one who parts."""


@dataclass(frozen=True, slots=True)
class DataFrame:
    """One message on one edge."""

    edge: EdgeId
    time: Time
    payload: Payload


@dataclass(frozen=True, slots=True)
class TakenFrame:
    """A peer gives back credit: its operator has taken so many bytes since it last said so."""

    edge: EdgeId
    size: int


ProgressUpdate = ProgressFrame | Base | OpeningFrame | MemberFrame
Anything = ProgressUpdate | DataFrame | TakenFrame


def encode_progress(changes: list[Change]) -> Frame:
    """A progress update as a frame.

    >>> decode(encode_progress([(Location(3), (5, 1), -1)])).changes
    [(3, (5, 1), -1)]
    """
    return [PROGRESS + msgpack.packb(changes)]


def encode_base(base: Base) -> Frame:
    """A base as a frame.

    >>> decode(encode_base(Base(1, (Antichain.of(5), Antichain()), ((WorkerId(0), 7),))))
    Base(number=1, bounds=(Antichain(times=(5,)), Antichain(times=())), cut=((0, 7),))
    """
    return [MEMBERS + msgpack.packb(("base", *_plain_base(base)))]


def encode_opening(base: Base, sent: int, changes: list[Change]) -> Frame:
    """An opening to a newcomer as a frame."""
    return [MEMBERS + msgpack.packb(("opening", *_plain_base(base), sent, changes))]


def encode_member(news: News, members: tuple[WorkerId, ...] = (), time: int = 0) -> Frame:
    """News of members as a frame.

    >>> decode(encode_member("joins", (WorkerId(3),)))
    MemberFrame(news='joins', members=(3,), time=0)
    """
    return [MEMBERS + msgpack.packb((news, members, time))]


def of_progress(frame: Frame) -> bool:
    """Whether it must stay in order with all others of its kind, and is never held back."""
    return frame[0][:1] in (PROGRESS, MEMBERS)


def encode_data(edge: EdgeId, time: Time, payload: Payload) -> Frame:
    """A message as a frame."""
    head = DATA + msgpack.packb((edge, time, type(payload).__name__))
    if isinstance(payload, Batch):
        return [head, *_encode_batch(payload)]
    return [head, payload.to_bytes()]


def encode_taken(edge: EdgeId, size: int) -> Frame:
    """Credit that is given back, as a frame.

    >>> decode(encode_taken(EdgeId(3), 4096))
    TakenFrame(edge=3, size=4096)
    """
    return [TAKEN + msgpack.packb((edge, size))]


def decode(frame: Frame) -> Anything:
    """The frame's meaning. Raises MeanderError for one that has none."""
    try:
        return _decode(frame)
    except MeanderError:
        raise
    except Exception as error:  # Arrow, Avro and msgpack raise what they like
        raise MeanderError("a frame of a peer", f"it cannot be read: {error}") from error


def _decode(frame: Frame) -> Anything:
    kind, body, parts = frame[0][:1], msgpack.unpackb(frame[0][1:], use_list=False), frame[1:]
    if kind == PROGRESS and not parts:
        return ProgressFrame([_change(*change) for change in body])
    if kind == MEMBERS and not parts:
        return _decode_members(*body)
    if kind == DATA:
        edge, time, name = body
        return DataFrame(EdgeId(_count(edge)), _time(time), _decode_payload(name, parts))
    if kind == TAKEN and not parts:
        edge, size = body
        return TakenFrame(EdgeId(_count(edge)), _count(size))
    raise ValueError(f"{len(frame)} parts of kind {kind!r} mean nothing")


def _decode_members(news: object, *said: object) -> Base | OpeningFrame | MemberFrame:
    match news, said:
        case "base", [number, bounds, cut]:
            return _base(number, bounds, cut)
        case "opening", [number, bounds, cut, sent, changes]:
            net = [_change(*_many(change)) for change in _many(changes)]
            return OpeningFrame(_base(number, bounds, cut), _count(sent), net)
        case ("welcome" | "joins" | "parts" | "parted" | "gone") as news, [members, time]:
            numbers = tuple(WorkerId(_whole(member)) for member in _many(members))
            return MemberFrame(news, numbers, _count(time))
    raise ValueError(f"{news!r} with {len(said)} parts is no news of members")


def _plain_base(base: Base) -> tuple[object, ...]:
    return base.number, [bound.times for bound in base.bounds], base.cut


def _base(number: object, bounds: object, cut: object) -> Base:
    pairs = [_many(pair) for pair in _many(cut)]
    return Base(
        _count(number),
        tuple(Antichain.of(*map(_time, _many(bound))) for bound in _many(bounds)),
        tuple((WorkerId(_whole(member)), _count(sent)) for member, sent in pairs),
    )


def _many(things: object) -> tuple[object, ...]:
    if isinstance(things, tuple):
        return things
    raise TypeError(f"{things!r} is not a list")


def _whole(number: object) -> int:
    if type(number) is int:
        return number
    raise TypeError(f"{number!r} is no member")


def _change(location: object, time: object, delta: object) -> Change:
    if type(delta) is not int:
        raise TypeError(f"{delta!r} is not a count")
    return Location(_count(location)), _time(time), delta


def _time(time: object) -> Time:
    if type(time) is int:
        return time
    if type(time) is tuple and len(time) > 1 and all(type(t) is int for t in time):
        return time
    raise TypeError(f"{time!r} is not a time")


def _count(number: object) -> int:
    if type(number) is int and number >= 0:
        return number
    raise TypeError(f"{number!r} numbers nothing")


def _decode_payload(name: str, parts: list[bytes]) -> Payload:
    match name, parts:
        case "Batch", [columns, values]:
            return _decode_batch(columns, values)
        case "Manifest", [manifest]:
            return Manifest.from_bytes(manifest)
        case "Moves", [moves]:
            return Moves.from_bytes(moves)
        case "Order", [order]:
            return Order.from_bytes(order)
        case "Parcel", [parcel]:
            return Parcel.from_bytes(parcel)
    raise ValueError(f"{len(parts)} parts of {name!r} are no payload")


def _encode_batch(batch: Batch) -> list[bytes]:
    schema, head = _HEADS[batch.keys is None]
    places = batch.times, batch.origins, batch.partitions, batch.offsets, batch.indexes
    columns = [_numbers(column, pa.int64()) for column in places]
    if batch.keys is not None:
        assert batch.hashes is not None
        columns += [_strings(batch.keys), _numbers(batch.hashes, pa.uint64())]
    # What a stream's writer would write, for a third of the price of making one.
    body = pa.RecordBatch.from_arrays(columns, schema=schema).serialize()
    packed = codec.encode(batch.values) if batch.packed is None else batch.packed
    return [b"".join((head, body, _END)), packed]


# Arrow's own ways from and to numpy import pandas at the first call, which takes a worker a second.


def _numbers(column: Int64s | UInt64s, kind: pa.DataType) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(column))
    return pa.Array.from_buffers(kind, len(column), [None, buffer])


def _strings(column: list[bytes]) -> pa.Array:
    ends = np.zeros(len(column) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, column), np.int32, len(column)), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(column))]
    return pa.Array.from_buffers(pa.binary(), len(column), buffers)


def _as_numbers(column: pa.Array, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    if not len(column):
        return np.zeros(0, kind)
    return np.frombuffer(column.buffers()[1], kind, len(column), 8 * column.offset)


def _as_strings(column: pa.Array) -> list[bytes]:
    if not len(column):
        return []
    _, places, data = column.buffers()
    ends = np.frombuffer(places, np.int32, len(column) + 1, 4 * column.offset).tolist()
    joined = b"" if data is None else data.to_pybytes()
    return [joined[start:end] for start, end in pairwise(ends)]


def _decode_batch(columns: bytes, packed: bytes) -> Batch:
    table, values = _decode_columns(columns), codec.decode_checked(packed)
    if type(values) is not list or len(values) != table.num_rows:
        raise ValueError("values and columns differ in length")
    times, origins, partitions, offsets, indexes = (
        _as_numbers(table.column(name), np.int64) for name in _COLUMNS
    )
    keyed = "key" in table.schema.names
    return Batch(
        times,
        origins,
        partitions,
        offsets,
        indexes,
        values,
        _as_strings(table.column("key")) if keyed else None,
        _as_numbers(table.column("hash"), np.uint64) if keyed else None,
        len(packed),
    )


_END = b"\xff\xff\xff\xff\0\0\0\0"
"""How a stream ends."""


def _head(schema: pa.Schema) -> bytes:
    """How a stream of these columns begins: byte for byte the same on all members."""
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    return bytes(sink.getvalue().to_pybytes().removesuffix(_END))


_HEADS = [(schema, _head(schema)) for schema in (_KEYED, _PLAIN)]


def _compressed(metadata: pa.Buffer) -> bool:
    """Whether a batch's flatbuffer has a compression: the fourth field of what its third names."""
    root = _at("<I", metadata, 0)
    fields = root - _at("<i", metadata, root)
    name = root + _at("<H", metadata, fields + 8)
    batch = name + _at("<I", metadata, name)
    fields = batch - _at("<i", metadata, batch)
    return _at("<H", metadata, fields) > 10 and _at("<H", metadata, fields + 10) != 0


def _at(kind: str, data: pa.Buffer, place: int) -> int:
    if place < 0:
        raise ValueError("a place before the beginning")
    return int(struct.unpack_from(kind, data, place)[0])


def _decode_columns(data: bytes) -> pa.RecordBatch:
    schema, head = next((known for known in _HEADS if data.startswith(known[1])), (None, b""))
    if schema is None:
        raise ValueError("its columns are not those of a batch")
    message = pa.ipc.read_message(pa.py_buffer(data).slice(len(head)))
    if _compressed(message.metadata):
        raise ValueError("its columns are compressed, and nobody knows how large they are")
    table = pa.ipc.read_record_batch(message, schema)
    # Arrow trusts lengths and offsets that it reads, and following wrong ones ends the process.
    table.validate(full=True)
    if any(column.null_count for column in table.columns):
        raise ValueError("a column has nulls")
    return table
