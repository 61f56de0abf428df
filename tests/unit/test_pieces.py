"""Records in flight lie on the topic in few records: a recovery reads one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataflow.batch import Batch
from dataflow.checkpoint.persisting import BYTES, ROWS, _in_pieces
from dataflow.graph import Location
from dataflow.operators.base import Underway
from state.time import Time

HERE, THERE = Location(0), Location(1)


def lying(
    at: Location, values: Sequence[bytes], time: Time = 7, *, keyed: bool = True, partition: int = 0
) -> Underway:
    """Records that an operator holds."""
    n = len(values)
    zeros = np.zeros(n, np.int64)
    keys = [b"k"] * n if keyed else None
    hashes = np.zeros(n, np.uint64) if keyed else None
    return Underway(
        at, time, Batch(zeros + 7, zeros, zeros + partition, zeros, zeros, [*values], keys, hashes)
    )


def values_of(pieces: Sequence[Underway]) -> list[list[object]]:
    return [one.batch.values for one in pieces]


def test_what_lies_side_by_side_is_one_piece_in_its_order() -> None:
    many = [[lying(HERE, [b"a", b"b"])], [lying(HERE, [b"c"]), lying(HERE, [b"d"])]]
    assert values_of([*_in_pieces(many)]) == [[b"a", b"b", b"c", b"d"]]


def test_other_places_rounds_and_keys_are_pieces_of_their_own() -> None:
    many = [
        lying(HERE, [b"a"]), lying(THERE, [b"b"]), lying(HERE, [b"c"]),
        lying(HERE, [b"d"], (7, 1)), lying(HERE, [b"e"], (7, 2)), lying(HERE, [b"f"], keyed=False),
    ]  # fmt: skip
    assert values_of([*_in_pieces([many])]) == [[b"a"], [b"b"], [b"c"], [b"d"], [b"e"], [b"f"]]


def test_what_has_no_keys_is_together_only_with_what_is_of_its_partition() -> None:
    def of(value: bytes, partition: int) -> Underway:
        return lying(HERE, [value], keyed=False, partition=partition)

    many = [of(b"a", 1), of(b"b", 1), of(b"c", 2), of(b"d", 1)]
    assert values_of([*_in_pieces([many])]) == [[b"a", b"b"], [b"c"], [b"d"]]
    keyed = [lying(HERE, [b"e"], partition=1), lying(HERE, [b"f"], partition=2)]
    assert values_of([*_in_pieces([keyed])]) == [[b"e", b"f"]]


def test_none_of_a_piece_is_earlier_than_it_says() -> None:
    (piece,) = _in_pieces([[lying(HERE, [b"a"], 6), lying(HERE, [b"b"], 3)]])
    assert piece.time == 3


def test_a_piece_has_no_more_rows_than_a_slice_and_no_more_bytes_than_it_may() -> None:
    rows = [*_in_pieces([[lying(HERE, [b"a"] * 100)] * 30])]
    assert sum(map(len, values_of(rows))) == 3000
    assert max(map(len, values_of(rows))) <= ROWS
    sizes = [*_in_pieces([[lying(HERE, [b"." * 1000] * 50)] * 20])]
    assert sum(map(len, values_of(sizes))) == 1000
    assert all(one.batch.weight <= BYTES for one in sizes)
    large = [*_in_pieces([[lying(HERE, [b"." * 1000] * 2000)]])]
    assert sum(map(len, values_of(large))) == 2000
    assert len(large) == -(-2000 // (BYTES // (1000 + 3 + 128)))
