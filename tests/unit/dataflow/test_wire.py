"""Frames: what is sent is what is read, and what is not a frame is refused, never obeyed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.control.instructions import (
    CancelMove,
    Instruction,
    Prefetch,
    Revoke,
    Rewrite,
    StartPreCopy,
)
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.timestamp_overrides import TimestampOverride
from meander.dataflow.graph.graph import EdgeId, Location
from meander.dataflow.interfaces import Frame, Partition
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.wire import (
    DATA,
    PROGRESS,
    AnyFrame,
    DataFrame,
    ProgressFrame,
    decode,
    encode_data,
    encode_progress,
)
from meander.schemas.errors import MeanderError
from meander.state.encoding import codec
from meander.state.encoding.value_columns import ValueColumns, Values
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, ExecutionId, LayerId, WorkerId
from meander.state.layers.layer import DeltaEntries
from meander.state.layers.manifest import Description, LayerPointer, Manifest
from meander.state.layers.topic import RecordLocation
from meander.state.times.time import Time

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
OUTER = st.integers(0, (1 << 63) - 1)
TIMES: st.SearchStrategy[Time] = st.one_of(OUTER, st.tuples(OUTER, st.integers(0, 9)))
PLAIN: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from([date(2013, 1, 1), datetime(2013, 1, 1, 5, tzinfo=UTC), Decimal("1.50")])
    | st.just(timedelta(days=-1, microseconds=1)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
TYPED = ValueColumns((np.array([1, -2, 1 << 62]), np.array([0.5, -0.0, np.inf])))
MOVES = Moves("m1", 7, WorkerId(1), (Bin(3), Bin(4)))
MANIFEST = Manifest(
    "total", Bin(3), 7,
    (
        LayerPointer(
            LayerId(ExecutionId(1), WorkerId(0), 7), Description(0, 7, 7), "base", 3, 99, "msgpack",
            (RecordLocation(b"k", 0, 1, 2),),
        ),
    ),
)  # fmt: skip

DELIVERIES = [
    BinHandoff(MANIFEST),
    BinHandoff(MANIFEST, DeltaEntries([b"k"], [b"s"], None)),
    BinHandoff(MANIFEST, DeltaEntries([], [], [(5, b"k")])),
]
INSTRUCTIONS: list[Instruction] = [
    StartPreCopy(1 << 40, Bin(3)),
    Prefetch(5, MANIFEST),
    CancelMove(Bin(3)),
    Rewrite("total", Bin(3), None),
    Rewrite("total", Bin(3), 7),
    Revoke("m1", 7),
]


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    values = draw(st.lists(PLAIN, min_size=1, max_size=5))
    numbers = draw(arrays(np.int64, (5, len(values)), elements=INT64))
    keyed = draw(st.booleans())
    return batch_of(numbers, values, [draw(PLAIN) for _ in values] if keyed else None)


def batch_of(
    numbers: Int64s | list[list[int]], values: Values, keys: list[object] | None = None
) -> Batch:
    times, origins, partitions, offsets, indexes = np.asarray(numbers, np.int64)
    if keys is None:
        return Batch(times, origins, partitions, offsets, indexes, values)
    encoded = [codec.encode(key) for key in keys]
    hashes = BinSpace(8).hash_keys(encoded)
    return Batch(times, origins, partitions, offsets, indexes, values, encoded, hashes)


def columns(batch: Batch) -> list[object]:
    arrays = (batch.times, batch.origins, batch.partitions, batch.offsets, batch.indexes)
    hashes = None if batch.hashes is None else (batch.hashes.dtype, batch.hashes.tolist())
    return [*((a.dtype, a.tolist()) for a in arrays), batch.keys, hashes]


# -- round trips


@settings(max_examples=60)
@given(batches(), TIMES, st.integers(0, 99))
def test_a_batch_comes_back_equal_in_value_and_type(batch: Batch, time: Time, edge: int) -> None:
    """I4, I3: places in the order, keys and values are those that were sent."""
    got = decode(encode_data(EdgeId(edge), time, batch))
    assert isinstance(got, DataFrame) and isinstance(got.payload, Batch)
    assert (got.edge, got.time) == (edge, time)
    assert columns(got.payload) == columns(batch)
    assert codec.encode(got.payload.values) == codec.encode(batch.values)
    assert got.payload.size == len(codec.encode(batch.values))


@pytest.mark.parametrize("keys", [None, ["a", "b", "c"]])
@pytest.mark.parametrize("packed", [False, True])
def test_a_batch_of_value_columns_comes_back_as_columns(
    keys: list[object] | None, packed: bool
) -> None:
    batch = batch_of([[*range(3)]] * 5, TYPED, keys)
    sent = batch.with_packed(TYPED.encode()) if packed else batch
    got = decode(encode_data(EdgeId(1), 5, sent))
    assert isinstance(got, DataFrame) and isinstance(got.payload, Batch)
    assert columns(got.payload) == columns(batch)
    values = got.payload.values
    assert isinstance(values, ValueColumns) and values.encode() == TYPED.encode()
    assert got.payload.size == len(TYPED.encode())


@pytest.mark.parametrize("payload", [MOVES, *DELIVERIES, *INSTRUCTIONS])
def test_moves_and_pointers_come_back_equal(payload: Moves | BinHandoff | Instruction) -> None:
    assert decode(encode_data(EdgeId(2), 7, payload)) == DataFrame(EdgeId(2), 7, payload)


@given(st.lists(st.tuples(st.integers(0, 99), TIMES, INT64), max_size=9))
def test_progress_comes_back_equal(changes: list[tuple[Location, Time, int]]) -> None:
    """I1: outer and nested times alike, an empty opening too."""
    assert decode(encode_progress(changes)) == ProgressFrame(changes)


RULINGS = (
    TimestampOverride(0, Partition(3), 17, 5 << 40),
    TimestampOverride(1, Partition(0), 0, 0, last=9),
)


def test_what_sources_rule_comes_back_equal() -> None:
    frame = encode_progress([(Location(1), 7, 1)], 2, RULINGS)
    assert decode(frame) == ProgressFrame([(Location(1), 7, 1)], 2, RULINGS)


@pytest.mark.parametrize(
    "ruling",
    [
        (0, 3, 17, 5),
        (0, 3, 17, 5, True),
        (0, 3, 17, 5, -1),
        (0, -3, 17, 5, None),
        (0, 3, 17.0, 5, None),
        (0, 3, 17, (5, 1), None),
        (0, 3, 17, 5, None, 0),
        7,
    ],
)
def test_a_ruling_that_is_none_is_refused(ruling: object) -> None:
    frame = [PROGRESS + msgpack.packb((1, [], [ruling]))]
    with pytest.raises(MeanderError, match="cannot be read"):
        decode(frame)


# -- garbage


VALUES: list[object] = [
    1,
    "a",
    None,
    (1, [2.5]),
    {1, 2},
    {"a": b"x"},
    date(2013, 1, 1),
    Decimal(1),
    1 << 80,
]
GOOD: list[Frame] = [
    encode_data(EdgeId(3), 5, batch_of([[*range(3)]] * 5, TYPED, [*range(3)])),
    encode_data(EdgeId(3), (5, 1), batch_of([[*range(3)]] * 5, TYPED)),
    encode_data(EdgeId(3), 5, batch_of([[*range(9)]] * 5, VALUES, [*range(9)])),
    encode_data(EdgeId(3), (5, 1), batch_of([[0, 1]] * 5, [1, "b"])),
    encode_data(EdgeId(1), 5, MOVES),
    *(encode_data(EdgeId(1), 5, delivery) for delivery in DELIVERIES),
    *(encode_data(EdgeId(1), 5, instruction) for instruction in INSTRUCTIONS),
    encode_progress([(Location(1), 2, 3), (Location(4), (5, 6), -1)]),
]
Damage = tuple[int, int, int, bytes]
"""What is done, to which part, where, and with what."""
DAMAGES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 4095), st.binary(max_size=9)),
    min_size=1,
    max_size=3,
)


def damaged(frame: Frame, damages: list[Damage]) -> Frame:
    parts = list(frame)
    for kind, which, where, what in damages:
        if not parts:
            break
        which %= len(parts)
        part = parts[which]
        at = where % (len(part) + 1)
        match kind:
            case 0:
                parts[which] = part[:at] + what + part[at + len(what) :]
            case 1:
                parts[which] = part[:at]
            case 2:
                parts[which] = part[:at] + what + part[at:]
            case 3:
                parts[which] = part[:at] + part[at + 1 + len(what) :]
            case _:
                parts = parts[:which] if where % 2 else [*parts, what]
    return parts


def refused_or_read(frame: Frame) -> None:
    with suppress(MeanderError):
        assert isinstance(decode(frame), AnyFrame)


@settings(max_examples=2500, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(GOOD), DAMAGES)
def test_a_damaged_frame_is_refused_with_a_sentence_and_nothing_else_happens(
    frame: Frame, damages: list[Damage]
) -> None:
    """I4: truncated, grown and overwritten parts; neither another error nor the process's end."""
    refused_or_read(damaged(frame, damages))


@settings(max_examples=500)
@given(st.lists(st.binary(max_size=40), max_size=3), st.sampled_from([b"", PROGRESS, DATA]))
def test_garbage_is_refused(parts: list[bytes], kind: bytes) -> None:
    refused_or_read([kind + part if i == 0 else part for i, part in enumerate(parts)])


def _head(*fields: object) -> bytes:
    return DATA + bytes(msgpack.packb(fields))


def _stream(table: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_batch(table)
    return bytes(sink.getvalue().to_pybytes())


def _columns(**changed: object) -> bytes:
    names = ("time", "origin", "partition", "offset", "index")
    return _stream(pa.record_batch({name: pa.array([1, 2]) for name in names} | changed))


TWO = codec.encode([1, 2])


@pytest.mark.parametrize(
    "frame",
    [
        [],
        [b""],
        [b"X" + msgpack.packb([])],
        [PROGRESS],
        [PROGRESS + msgpack.packb([[1, 2]])],
        [PROGRESS + msgpack.packb([["a", 2, 1]])],
        [PROGRESS + msgpack.packb([[-1, 2, 1]])],
        [PROGRESS + msgpack.packb([[1, 2.5, 1]])],
        [PROGRESS + msgpack.packb([[1, [2, "a"], 1]])],
        [PROGRESS + msgpack.packb([[1, 2, None]])],
        [*encode_progress([]), b"more"],
        [_head(0, 5, "Moves")],
        [_head(0, 5, "Moves"), MOVES.to_bytes(), b"more"],
        [_head(0, 5, "Moves"), MOVES.to_bytes() + b"\0"],
        [_head(0, 5, "Manifest"), b"\x01" + b"\xff" * 40],
        [_head(0, 5, "Prepare"), msgpack.packb([1, -3])],
        [_head(0, 5, "Prepare"), msgpack.packb([True, 3])],
        [_head(0, 5, "Prepare"), msgpack.packb([1, 3, 7])],
        [_head(0, 5, "Prefetch"), msgpack.packb([1, MANIFEST.to_bytes()[:-1]])],
        [_head(0, 5, "Prefetch"), msgpack.packb([-1, MANIFEST.to_bytes()])],
        [_head(0, 5, "Spare"), msgpack.packb("3")],
        [_head(0, 5, "Spare"), CancelMove(Bin(3)).to_bytes() + b"\0"],
        [_head(0, 5, "Rewrite"), msgpack.packb([b"total", 3, 7])],
        [_head(0, 5, "Rewrite"), msgpack.packb(["total", None, 7])],
        [_head(0, 5, "Rewrite"), msgpack.packb(["total", 3, True])],
        [_head(0, 5, "Rewrite"), msgpack.packb(["total", 3, [5, 1]])],
        [_head(0, 5, "Revoke"), msgpack.packb(["m1", None])],
        [_head(0, 5, "Revoke"), msgpack.packb([1, 7])],
        [_head(0, 5, "Other"), b""],
        [_head(-1, 5, "Moves"), MOVES.to_bytes()],
        [_head(0, "5", "Moves"), MOVES.to_bytes()],
        [_head(0, 5, "Batch"), _columns()],
        [_head(0, 5, "Batch"), _columns(), codec.encode([1])],
        [_head(0, 5, "Batch"), _columns(), codec.encode({1: 2})],
        [_head(0, 5, "Batch"), _columns(time=pa.array([1, None])), TWO],
        [_head(0, 5, "Batch"), _columns(time=pa.array(["1", "2"])), TWO],
        [_head(0, 5, "Batch"), _columns(time=pa.array([1.5, 2.0])), TWO],
        [_head(0, 5, "Batch"), _columns(key=pa.array([b"a", b"b"])), TWO],
        [_head(0, 5, "Batch"), _columns(other=pa.array([1, 2])), TWO],
        [_head(0, 5, "Batch"), b"", TWO],
        [_head(0, 5, "Batch"), _columns(), TYPED.encode()],
        [_head(0, 5, "Batch"), _columns(), TYPED[:1].encode()],
        [_head(0, 5, "Batch"), _columns(), TYPED[:2].encode() + b"\0"],
        [_head(0, 5, "Batch"), _columns(), TYPED[:2].encode()[:-1]],
        [_head(0, 5, "Batch"), _columns(), TYPED[:2].encode().replace(b"if", b"ix")],
    ],
)
def test_what_is_nearly_a_frame_is_refused(frame: Frame) -> None:
    with pytest.raises(MeanderError, match="a frame of a peer"):
        decode(frame)


def test_columns_whose_lengths_lie_are_refused() -> None:
    """I4: Arrow believes the offsets of what it reads; followed blindly they end the process."""
    good = encode_data(EdgeId(0), 5, batch_of([[0, 1, 2]] * 5, [1, 2, 3], [4, 5, 6]))
    table = pa.ipc.open_stream(good[1]).read_next_batch()
    validity, offsets, data = table.column("key").buffers()
    wild = np.frombuffer(offsets, np.int32).copy()
    wild[1] = 1 << 30
    key = pa.Array.from_buffers(pa.binary(), 3, [validity, pa.py_buffer(wild.tobytes()), data])
    bad = pa.record_batch([*table.columns[:5], key, table.column("hash")], schema=table.schema)
    with pytest.raises(MeanderError, match="cannot be read"):
        decode([good[0], _stream(bad), good[2]])


def test_coding_a_batch_does_not_make_a_worker_wait_for_pandas() -> None:
    """Its import takes a second, which the first records to travel would wait."""
    words = [sys.executable, "-c", _CODES]
    said = subprocess.run(words, check=True, capture_output=True, text=True)
    assert said.stdout.split() == ["True", "False"]


_CODES = """
import sys
import numpy as np
from meander.dataflow.records.batch import Batch
from meander.dataflow.wire import decode, encode_data
column = np.arange(2)
batch = Batch(column, column, column, column, column, [1, 2], [b"a", b""], column.view(np.uint64))
again = decode(encode_data(0, 0, batch)).payload
print(again.keys == batch.keys and again.times.tolist() == [0, 1], "pandas" in sys.modules)
"""
