"""A column of Python values gives them back, equal in value and type, and compares as they do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.state.encoding import codec
from meander.state.encoding.codec import UnencodableError
from meander.state.encoding.object_column import ObjectColumn

ATOMS = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
VALUES = st.lists(ATOMS | st.tuples(ATOMS, ATOMS), max_size=12)


@given(VALUES)
def test_values_come_back(values: list[object]) -> None:
    column = ObjectColumn.of(values)
    assert column.tolist() == values
    assert [*map(type, column)] == [*map(type, values)]
    decoded, end = ObjectColumn.decode(column.encode(), len(values), 0)
    assert decoded.tolist() == values
    assert end == len(column.encode()) and end % 8 == 0


@given(VALUES, st.data())
def test_rows_are_taken_as_those_of_an_array(values: list[object], data: st.DataObject) -> None:
    column = ObjectColumn.of(values)
    places = data.draw(st.lists(st.integers(0, len(values) - 1))) if values else []
    assert column[np.array(places, np.int64)].tolist() == [values[place] for place in places]
    assert column[1:3].tolist() == values[1:3]
    for value in values:
        keys = [codec.encode_key(one) for one in values]
        assert (column == value).tolist() == [key == codec.encode_key(value) for key in keys]


@given(st.lists(st.text()))
def test_ranks_are_in_the_order_of_python(values: list[str]) -> None:
    distinct = sorted(set(values))
    assert ObjectColumn.of(values).ranks.tolist() == [distinct.index(value) for value in values]


def test_values_without_an_order_have_no_ranks() -> None:
    with pytest.raises(TypeError):
        _ = ObjectColumn.of(["a", 1]).ranks


def test_a_value_that_is_not_plain_is_refused() -> None:
    with pytest.raises(UnencodableError):
        ObjectColumn.of([object()])


@given(VALUES, st.data())
def test_changed_bytes_are_refused_or_give_a_column(
    values: list[object], data: st.DataObject
) -> None:
    encoded = bytearray(ObjectColumn.of(values).encode())
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        column, _ = ObjectColumn.decode(bytes(encoded), len(values), 0)
    except ValueError:
        return
    assert len(column.tolist()) == len(values)
