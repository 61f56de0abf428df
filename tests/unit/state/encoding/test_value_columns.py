"""Value columns come back equal in value and type, and no other bytes become value columns."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from meander.state.encoding import codec
from meander.state.encoding.object_column import ObjectColumn
from meander.state.encoding.value_columns import (
    Column,
    ValueColumns,
    concat_values,
    is_encoded_columns,
)

DTYPES = st.lists(st.sampled_from([np.int64, np.float64, object]), min_size=1, max_size=9)
ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = ATOMS | st.tuples(ATOMS, ATOMS) | st.lists(ATOMS, max_size=2)


@st.composite
def value_columns(draw: st.DrawFn) -> ValueColumns:
    count = draw(st.integers(0, 5))
    objects = st.lists(VALUES, min_size=count, max_size=count).map(ObjectColumn.of)
    columns: list[Column] = [
        draw(objects) if dtype is object else draw(arrays(dtype, count)) for dtype in draw(DTYPES)
    ]
    return ValueColumns(tuple(columns))


def contents(values: ValueColumns) -> list[object]:
    """Codes follow from the values, type for type."""
    return [
        ("objects", column.codes.tolist(), repr(column.tolist()))
        if isinstance(column, ObjectColumn)
        else (column.dtype.str, column.tobytes())
        for column in values.columns
    ]


@given(value_columns())
def test_value_columns_come_back_bit_for_bit(values: ValueColumns) -> None:
    data = values.encode()
    found = ValueColumns.decode(data)
    assert contents(found) == contents(values)
    assert is_encoded_columns(data)
    numbers = (one.codes if isinstance(one, ObjectColumn) else one for one in found.columns)
    assert all(column.flags.aligned and not column.flags.writeable for column in numbers)


@given(value_columns())
def test_value_columns_come_back_from_the_bytes_of_each_value(values: ValueColumns) -> None:
    rows = values.to_rows()
    assert len(rows) == len(values)
    assert contents(ValueColumns.from_rows(values.kinds, rows)) == contents(values)


@given(st.one_of(st.none(), st.integers(), st.text(), st.lists(st.integers())))
def test_encoded_columns_never_look_like_another_encoded_value(value: object) -> None:
    assert not is_encoded_columns(codec.encode(value))


@given(value_columns(), st.data())
def test_truncated_or_longer_bytes_are_refused(values: ValueColumns, data: st.DataObject) -> None:
    encoded = values.encode()
    cut = data.draw(st.integers(0, len(encoded) - 1))
    more = data.draw(st.binary(min_size=1, max_size=20))
    for wrong in (encoded[:cut], encoded + more):
        with pytest.raises(ValueError):
            ValueColumns.decode(wrong)


@settings(max_examples=300)
@given(value_columns(), st.integers(0, 60), st.integers(0, 255))
@example(ValueColumns((ObjectColumn.of([None]),)), 57, 1)  # Behind the bytes of the value.
@example(ValueColumns((ObjectColumn.of([(None, None)]),)), 59, 0)  # An extension without a builder.
@example(ValueColumns((ObjectColumn.of([(None, None)]),)), 59, 2)  # A set with wrong elements.
def test_an_altered_byte_is_refused_or_alters_a_number(
    values: ValueColumns, at: int, byte: int
) -> None:
    encoded = bytearray(values.encode())
    encoded[at % len(encoded)] = byte
    with suppress(ValueError):
        assert ValueColumns.decode(bytes(encoded)).encode() == encoded


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xc1" + bytes(15),
        b"\xc1\x00" + bytes(6) + b"\xff" * 8,
        b"\xc2\x01i" + bytes(13),
        b"\xc1\x01d" + bytes(13),
        b"\xc1\x01I" + bytes(13),
        b"\xc1\x02ix" + bytes(12),
        b"\xc1\x01i" + bytes(4) + b"\x01" + bytes(8),
        b"\xc1\x01i" + bytes(5) + b"\xff" * 8,
        b"\xc1\x01i" + bytes(5) + (1 << 61).to_bytes(8, "little"),
        b"\xc1\xff" + b"i" * 255,
    ],
)
def test_a_head_that_encode_never_writes_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        ValueColumns.decode(data)


@pytest.mark.parametrize(
    "columns",
    [
        (),
        (np.arange(2, dtype=np.int32),),
        (np.arange(2).astype(">i8"),),
        (np.array([True]),),
        (np.array(["a"], object),),
        (np.arange(2), np.arange(3)),
        (np.zeros((2, 2)),),
        (np.arange(1),) * 256,
    ],
)
def test_value_columns_have_one_length_and_eight_byte_numbers(columns: tuple[Column, ...]) -> None:
    with pytest.raises(ValueError):
        ValueColumns(columns)


def test_a_value_is_a_tuple_of_plain_numbers() -> None:
    values = ValueColumns((np.array([1, 2, 3]), np.array([0.5, 1.5, 2.5])))
    assert [*values] == [values[0], values[1], values[-1]] == [(1, 0.5), (2, 1.5), (3, 2.5)]
    assert {(type(one), type(two)) for one, two in (*values, values[0])} == {(int, float)}
    assert [*ValueColumns((np.array([7]),))] == [(7,)]
    with pytest.raises(IndexError):
        values[3]


@given(value_columns(), st.integers(-6, 6), st.integers(-6, 6), st.sampled_from([1, 2, -1]))
def test_a_slice_and_chosen_rows_hold_the_same_values_as_those_of_a_list(
    values: ValueColumns, start: int, stop: int, step: int
) -> None:
    part = values[start:stop:step]
    rows = np.arange(len(values))[start:stop:step]
    assert contents(part) == contents(values.take(rows))
    assert part.kinds == values.kinds
    assert repr([*part]) == repr([*values][start:stop:step])
    assert contents(ValueColumns.decode(part.encode())) == contents(part)
    assert part.nbytes == sum(column.nbytes for column in part.columns)


def test_columns_of_equal_kinds_join_as_columns_and_other_values_as_a_list() -> None:
    whole, half = ValueColumns((np.array([1, 2]),)), ValueColumns((np.array([0.5]),))
    joined = concat_values([whole, [], whole])
    assert isinstance(joined, ValueColumns) and [*joined] == [(1,), (2,), (1,), (2,)]
    assert concat_values([whole, half]) == [(1,), (2,), (0.5,)]
    assert concat_values([["a"], whole]) == ["a", (1,), (2,)]
    assert concat_values([[], []]) == []
    empty = concat_values([whole[:0], whole[:0]])
    assert len(empty) == 0
