"""A join pairs each update of one side with each of the other, once."""

from __future__ import annotations

import pytest

from meander.dataflow.collections import join as joins
from meander.dataflow.collections.join import IncrementalJoin, Side
from meander.state.collections.columns import Int64s
from meander.state.collections.description import LayerDescription
from meander.state.collections.layer import Layer, Updates
from meander.state.collections.merge import layer_of
from meander.state.times.antichain import Antichain
from tests.support.collections.columns import Row, rows_of


def hundreds(keys: Int64s, left: Int64s, right: Int64s) -> tuple[Int64s, Int64s]:
    return keys, 100 * left + right


def layer(now: int, rows: list[Row], depth: int = 1) -> Layer:
    inner = (0,) * (depth - 1)
    lower, upper = (Antichain.of((time, *inner) if inner else time) for time in (now, now + 1))
    return layer_of(Updates.of(rows, depth), LayerDescription(lower, upper, lower))


def test_pairs_have_the_join_of_the_times_and_the_product_of_the_diffs() -> None:
    left, right = Side.own(2), Side.own(2)
    join = IncrementalJoin(left, right, hundreds)
    batches = layer(0, [(7, 1, (0, 5), 2), (8, 1, (0, 0), 1)], 2), layer(0, [(7, 3, (0, 2), -1)], 2)
    assert [*rows_of(join.step(*batches))] == [(7, 103, (0, 5), -2)]
    batches = layer(1, [(8, 2, (1, 0), 1)], 2), layer(1, [(7, 4, (1, 0), 1), (8, 9, (1, 3), 1)], 2)
    assert sorted(rows_of(join.step(*batches))) == [
        (7, 104, (1, 5), 2),
        (8, 109, (1, 3), 1),
        (8, 209, (1, 3), 1),
    ]


def test_the_traces_hold_the_batches_and_forget_their_times() -> None:
    left, right = Side.own(1), Side.own(1)
    join = IncrementalJoin(left, right, hundreds)
    assert [*join.step(layer(0, [(7, 1, (0,), 1)]), layer(0, []))] == []
    traces = left.arrangement.trace, right.arrangement.trace
    assert [*map(len, traces)] == [1, 0]
    assert {trace.upper for trace in traces} == {trace.since for trace in traces}
    assert traces[0].upper == Antichain.of(1)


def test_pairs_of_a_hot_key_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "PIECE_ROWS", 7)
    join = IncrementalJoin(Side.own(1), Side.own(1), hundreds)
    sides = [layer(0, [(7, value, (0,), 1) for value in range(count)]) for count in (5, 6)]
    pieces = [*join.step(*sides)]
    assert [len(piece) for piece in pieces] == [7, 7, 7, 7, 2]
    found = sorted(value for _, value, *_ in rows_of(pieces))
    assert found == [100 * left + right for left in range(5) for right in range(6)]
