"""A batch whose values are columns keeps them as columns wherever it is cut, joined or packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.dataflow.records.batch import ROW_BYTES, Batch
from meander.dataflow.records.packing import (
    PIECE_BYTES,
    decode_values,
    encode_values,
    join_packed,
    pack,
)
from meander.state.encoding import codec
from meander.state.encoding.value_columns import ValueColumns, Values
from meander.state.keys.bins import BinSpace


@pytest.fixture
def no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """No value becomes an object."""

    def refuse(*_: object) -> Any:
        raise AssertionError("a value became an object")

    monkeypatch.setattr(ValueColumns, "__iter__", refuse)
    monkeypatch.setattr(codec, "encode", refuse)


def typed(count: int, first: int = 0) -> ValueColumns:
    numbers = np.arange(first, first + count)
    return ValueColumns((numbers, numbers / 2))


def batch_of(values: Values, keys: list[bytes] | None = None) -> Batch:
    numbers = np.arange(len(values))
    hashes = None if keys is None else BinSpace(8).hash_keys(keys)
    return Batch(numbers, numbers, numbers, numbers, numbers, values, keys, hashes)


def columns_of(values: Values) -> list[list[Any]]:
    assert isinstance(values, ValueColumns)
    return [column.tolist() for column in values.columns]


@pytest.mark.usefixtures("no_objects")
def test_a_batch_keeps_its_columns_through_take_and_concat() -> None:
    batch = batch_of(typed(5), [b"%d" % n for n in range(5)])
    some = batch.take(np.array([4, 1]))
    assert columns_of(some.values) == [[4, 1], [2.0, 0.5]]
    assert some.keys == [b"4", b"1"]
    both = Batch.concat([some, batch.take(np.array([0]))])
    assert columns_of(both.values) == [[4, 1, 0], [2.0, 0.5, 0.0]]
    assert both.keys == [b"4", b"1", b"0"]


def test_a_batch_of_mixed_kinds_holds_a_list_of_tuples() -> None:
    both = Batch.concat([batch_of(typed(2)), batch_of(["a"])])
    assert both.values == [(0, 0.0), (1, 0.5), "a"]


@pytest.mark.usefixtures("no_objects")
def test_a_batch_of_columns_is_weighed_without_objects() -> None:
    batch = batch_of(typed(100))
    assert batch.measured().size == 1600
    assert batch.measured().weight == batch.estimated_weight == 1600 + 100 * ROW_BYTES


@pytest.mark.usefixtures("no_objects")
def test_isolated_batches_share_their_columns() -> None:
    batch = batch_of(typed(3)).with_packed(typed(3).encode())
    alone = batch.isolated()
    assert alone.values is batch.values
    assert (alone.size, alone.packed) == (batch.size, None)


@pytest.mark.usefixtures("no_objects")
@pytest.mark.parametrize("count", [1, 3, 20_000, 60_000])
@pytest.mark.parametrize("key", [None, b"k" * 9])
def test_pieces_of_columns_are_bounded_and_join_to_all_values(
    count: int, key: bytes | None
) -> None:
    values, keys = typed(count), None if key is None else [key] * count
    pieces = [*pack(values, _refused, 1 if count > 1 else 0, keys)]
    first = pieces[0].rows.start
    assert [row for piece in pieces for row in piece.rows] == [*range(first, count)]
    assert all(piece.size <= PIECE_BYTES for piece in pieces)
    assert all(
        piece.size == len(piece.data) + len(key or b"") * len(piece.rows) for piece in pieces
    )
    assert len(pieces) <= 2 + 3 * values.nbytes // PIECE_BYTES
    assert join_packed(pieces) == values[first:].encode()


def test_a_record_with_a_key_above_the_bound_is_a_piece_of_its_own() -> None:
    keys = [b"a", b"k" * PIECE_BYTES, b"b"]
    pieces = [*pack(typed(3), _refused, 0, keys)]
    assert [len(piece.rows) for piece in pieces if piece.size > PIECE_BYTES] == [1]
    assert join_packed(pieces) == typed(3).encode()


@given(st.lists(st.integers(0, 3) | st.text(max_size=3)))
def test_encoded_values_come_back_as_what_they_were(values: list[object]) -> None:
    assert decode_values(encode_values(values)) == values
    columns = typed(len(values))
    assert columns_of(decode_values(encode_values(columns))) == columns_of(columns)


def _refused(row: int, error: Exception) -> None:
    raise AssertionError(f"value {row} was refused: {error}")
