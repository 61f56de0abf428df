"""What links carry is Arrow: others read what is written here, and write what is read here."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.dataflow.records.columnar_encoding import StreamLayout

SCHEMA = pa.schema([("a", pa.int64()), ("key", pa.binary()), ("b", pa.uint64())])
LAYOUT = StreamLayout(SCHEMA)
words = st.integers(min_value=0, max_value=2**63 - 1)
rows = st.lists(st.tuples(words, st.binary(max_size=20), words), max_size=20)


def written_by_arrow(table: list[tuple[int, bytes, int]]) -> bytes:
    columns = [list(column) for column in zip(*table, strict=True)]
    arrays = [pa.array(c, kind) for c, kind in zip(columns, SCHEMA.types, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    return bytes(sink.getvalue().to_pybytes())


def write(table: list[tuple[int, bytes, int]]) -> bytes:
    numbers = [np.array([row[place] for row in table], np.int64) for place in (0, 2)]
    return LAYOUT.write(numbers, [key for _, key, _ in table])


@given(rows)
def test_arrow_reads_what_is_written_here(table: list[tuple[int, bytes, int]]) -> None:
    read = pa.ipc.open_stream(write(table)).read_all()
    read.validate(full=True)
    assert [tuple(row.values()) for row in read.to_pylist()] == table


@given(rows.filter(len))
def test_arrow_writes_what_is_written_here(table: list[tuple[int, bytes, int]]) -> None:
    assert write(table) == written_by_arrow(table)


@given(rows)
def test_what_is_written_here_is_read_here(table: list[tuple[int, bytes, int]]) -> None:
    (first, second), keys = LAYOUT.read(write(table))
    assert list(zip(first.tolist(), keys, second.tolist(), strict=True)) == table


@given(rows.filter(len), st.data())
def test_columns_that_are_laid_out_otherwise_are_refused(
    table: list[tuple[int, bytes, int]], data: st.DataObject
) -> None:
    """I4: no length or place is followed that does not follow from the number of rows."""
    whole = bytearray(write(table))

    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    try:
        (first, second), keys = LAYOUT.read(bytes(whole))
    except ValueError:
        return
    assert [len(column) for column in (first, second, keys)] == [len(table)] * 3


def test_a_stream_that_ends_early_is_refused() -> None:
    whole = write([(1, b"key", 2)])
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="its columns"):
            LAYOUT.read(whole[:size])
