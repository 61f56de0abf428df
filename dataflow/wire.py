"""Frames between members: progress and data, as bytes that cannot run code.

A frame is a list of parts. Part 0 begins with its kind. Progress is msgpack; a batch is one part
of Arrow IPC for its columns and one of plain values (`state.codec`); pointers to state and
moves are plain values. Cost: one encoding per remote message, none for local ones.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.batch import Batch, Int64s, UInt64s
from dataflow.graph import EdgeId, Location
from dataflow.migrate.moves import Moves
from dataflow.protocols import Frame
from schemas.errors import MeanderError
from state import codec
from state.manifest import Manifest
from state.time import Time

Payload = Batch | Manifest | Moves
Change = tuple[Location, Time, int]

PROGRESS, DATA, TAKEN = b"P", b"D", b"T"
_COLUMNS = ("time", "origin", "partition", "offset", "index")
_PLAIN = pa.schema([(name, pa.int64()) for name in _COLUMNS])
_KEYED = pa.schema([*_PLAIN, ("key", pa.binary()), ("hash", pa.uint64())])


@dataclass(frozen=True, slots=True)
class ProgressFrame:
    """One atomic update of a member."""

    changes: list[Change]


@dataclass(frozen=True, slots=True)
class DataFrame:
    """One message on one edge."""

    edge: EdgeId
    time: Time
    payload: Payload


@dataclass(frozen=True, slots=True)
class TakenFrame:
    """A peer has taken so many bytes of data off its link since it last said so."""

    size: int


def encode_progress(changes: list[Change]) -> Frame:
    """A progress update as a frame.

    >>> decode(encode_progress([(Location(3), (5, 1), -1)])).changes
    [(3, (5, 1), -1)]
    """
    return [PROGRESS + msgpack.packb(changes)]


def encode_data(edge: EdgeId, time: Time, payload: Payload) -> Frame:
    """A message as a frame."""
    head = DATA + msgpack.packb((edge, time, type(payload).__name__))
    if isinstance(payload, Batch):
        return [head, *_encode_batch(payload)]
    return [head, payload.to_bytes()]


def encode_taken(size: int) -> Frame:
    """The acknowledgement of data as a frame."""
    return [TAKEN + msgpack.packb(size)]


def decode(frame: Frame) -> ProgressFrame | DataFrame | TakenFrame:
    """The frame's meaning. Raises MeanderError for one that has none."""
    try:
        return _decode(frame)
    except MeanderError:
        raise
    except Exception as error:  # Arrow, Avro and msgpack raise what they like
        raise MeanderError("a frame of a peer", f"it cannot be read: {error}") from error


def _decode(frame: Frame) -> ProgressFrame | DataFrame | TakenFrame:
    kind, body, parts = frame[0][:1], msgpack.unpackb(frame[0][1:], use_list=False), frame[1:]
    if kind == PROGRESS and not parts:
        return ProgressFrame([_change(*change) for change in body])
    if kind == DATA:
        edge, time, name = body
        return DataFrame(EdgeId(_count(edge)), _time(time), _decode_payload(name, parts))
    if kind == TAKEN and not parts:
        return TakenFrame(_count(body))
    raise ValueError(f"{len(frame)} parts of kind {kind!r} mean nothing")


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
    raise ValueError(f"{len(parts)} parts of {name!r} are no payload")


def _encode_batch(batch: Batch) -> list[bytes]:
    schema = _PLAIN if batch.keys is None else _KEYED
    places = batch.times, batch.origins, batch.partitions, batch.offsets, batch.indexes
    columns = [_numbers(column, pa.int64()) for column in places]
    if batch.keys is not None:
        assert batch.hashes is not None
        columns += [_strings(batch.keys), _numbers(batch.hashes, pa.uint64())]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    packed = codec.encode(batch.values) if batch.packed is None else batch.packed
    return [sink.getvalue().to_pybytes(), packed]


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


def _head(schema: pa.Schema) -> bytes:
    """How a stream of these columns begins: byte for byte the same on all members."""
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    return bytes(sink.getvalue().to_pybytes().removesuffix(b"\xff\xff\xff\xff\0\0\0\0"))


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
