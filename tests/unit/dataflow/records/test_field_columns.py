"""Objects of one class as columns: what goes in comes out, and other bytes are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.dataflow.records import packing
from meander.dataflow.records.packing import (
    decode_own_values,
    decode_values,
    encode_values,
    join_packed,
    pack,
)
from meander.state.encoding import codec
from meander.state.encoding.field_columns import to_columns
from meander.state.encoding.named_types import NamedTypes, in_use, use


class Bid(msgspec.Struct):
    auction: Any
    price: Any


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(slots=True)
class Line:
    item: Any


@pytest.fixture(autouse=True)
def _named() -> Iterator[None]:
    before = in_use()
    use(NamedTypes([Bid, Pair, Line]))
    yield
    use(before)


fields = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(inner, max_size=2).map(tuple)
        | st.builds(Bid, inner, inner)
    ),
    max_leaves=4,
)
kinds = [st.builds(Bid, fields, fields), st.builds(Pair, fields, fields), st.builds(Line, fields)]
many = st.one_of(*(st.lists(kind) for kind in kinds), st.lists(st.one_of(*kinds, fields)))


@given(many)
def test_values_come_back_with_their_types_strictly_read_or_not(values: list[Any]) -> None:
    """I4."""
    data = encode_values(values)
    for found in (decode_values(data), decode_own_values(data)):
        assert isinstance(found, list)
        assert [codec.encode(one) for one in found] == [codec.encode(one) for one in values]
        assert [*map(type, found)] == [*map(type, values)]


@given(st.lists(many, max_size=4), st.integers(20, 300))
def test_pieces_with_columns_and_without_are_joined_in_order(
    runs: list[list[Any]], most: int
) -> None:
    values = [one for run in runs for one in run]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "PIECE_BYTES", most)
        parts = [*pack(values, lambda *_: pytest.fail("all values are plain"))]
    found = decode_values(join_packed(parts)) if parts else []
    assert [codec.encode(one) for one in found] == [codec.encode(one) for one in values]


def test_objects_of_one_class_are_columns_where_there_are_several() -> None:
    assert to_columns([Bid(1, "a"), Bid(2, "b")]) == {
        "Bid": [["auction", "price"], [1, 2], ["a", "b"]]
    }
    assert to_columns([Bid(1, "a"), Line(2)]) is None
    assert len(encode_values([Bid(1, 2)] * 100)) < len(codec.encode([Bid(1, 2)] * 100)) / 5


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"Bid": 5},
        {"Bid": []},
        {"Bid": [["auction"], [1]]},
        {"Bid": [["price", "auction"], [1], [2]]},
        {"Bid": [["auction", "price"], [1], [2, 3]]},
        {"Bid": [["auction", "price"], [1]]},
        {"Bid": [["auction", "price"], 1, 2]},
        {"Ask": [["auction", "price"], [1], [2]]},
        {"Bid": [["auction", "price"], [1], [2]], "Line": [["item"], [1]]},
        {("Bid",): [["auction", "price"], [1], [2]]},
        None,
    ],
    ids=repr,
)
def test_bytes_of_a_peer_that_are_no_columns_are_refused(columns: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode_values(packing._OBJECTS + codec.encode([columns]))


@pytest.mark.parametrize("items", [[codec._TUPLE], [[1, codec._TUPLE], 2], [[5, codec._TUPLE]]])
def test_a_builder_in_a_column_is_refused(items: list[object]) -> None:
    columns = {"Line": [["item"], items]}
    with pytest.raises(ValueError, match=r"hold no value|are no 'Line'"):
        decode_values(packing._OBJECTS + codec._packer().pack([columns]))
