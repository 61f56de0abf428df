"""Frames between members: progress and data, as bytes that cannot run code.

A frame is a list of parts. Part 0 begins with its kind. Progress is msgpack; a batch is one part
of Arrow IPC for its columns and one of plain values (`state.codec`); pointers to state and
moves are plain values. Cost: one encoding per remote message, none for local ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack
import numpy as np
import pyarrow as pa

from dataflow.batch import Batch
from dataflow.graph import EdgeId, Location
from dataflow.migrate.moves import Moves
from dataflow.protocols import Frame
from schemas.errors import MeanderError
from state import codec
from state.manifest import Manifest
from state.time import Time

Payload = Batch | Manifest | Moves

PROGRESS, DATA = b"P", b"D"
_COLUMNS = ("time", "origin", "partition", "offset", "index")


@dataclass(frozen=True, slots=True)
class ProgressFrame:
    """One atomic update of a member."""

    changes: list[tuple[Location, Time, int]]


@dataclass(frozen=True, slots=True)
class DataFrame:
    """One message on one edge."""

    edge: EdgeId
    time: Time
    payload: Payload


def encode_progress(changes: list[tuple[Location, Time, int]]) -> Frame:
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


def decode(frame: Frame) -> ProgressFrame | DataFrame:
    """The frame's meaning. Raises MeanderError for one that has none."""
    try:
        kind, body = frame[0][:1], frame[0][1:]
        if kind == PROGRESS:
            return ProgressFrame([tuple(c) for c in msgpack.unpackb(body, use_list=False)])
        if kind == DATA:
            edge, time, name = msgpack.unpackb(body, use_list=False)
            return DataFrame(edge, time, _decode_payload(name, frame[1:]))
    except (ValueError, TypeError, IndexError, KeyError, msgpack.UnpackException) as error:
        raise MeanderError("a frame of a peer", f"it cannot be read: {error}") from error
    raise MeanderError("a frame of a peer", f"its kind {kind!r} is unknown")


def _decode_payload(name: str, parts: list[bytes]) -> Payload:
    match name:
        case "Batch":
            return _decode_batch(parts)
        case "Manifest":
            return Manifest.from_bytes(parts[0])
        case "Moves":
            return Moves.from_bytes(parts[0])
    raise ValueError(f"unknown payload {name!r}")


def _encode_batch(batch: Batch) -> list[bytes]:
    arrays = [batch.times, batch.origins, batch.partitions, batch.offsets, batch.indexes]
    columns: dict[str, pa.Array] = {
        name: pa.array(array) for name, array in zip(_COLUMNS, arrays, strict=True)
    }
    if batch.keys is not None:
        columns["key"] = pa.array(batch.keys, pa.binary())
        columns["hash"] = pa.array(batch.hashes)
    table = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_batch(table)
    return [sink.getvalue().to_pybytes(), codec.encode(batch.values)]


def _decode_batch(parts: list[bytes]) -> Batch:
    table = pa.ipc.open_stream(parts[0]).read_next_batch()
    values = codec.decode(parts[1])
    if not isinstance(values, list) or len(values) != table.num_rows:
        raise ValueError("values and columns differ in length")
    times, origins, partitions, offsets, indexes = (
        table.column(name).to_numpy().astype(np.int64, copy=False) for name in _COLUMNS
    )
    keyed = "key" in table.schema.names
    return Batch(
        times,
        origins,
        partitions,
        offsets,
        indexes,
        values,
        table.column("key").to_pylist() if keyed else None,
        table.column("hash").to_numpy() if keyed else None,
        len(parts[1]),
    )
