"""A reduction sends what changes in the function of a key's values, at the time of the change."""

from __future__ import annotations

import pickle

import pytest

from meander.dataflow.collections.arrangement import Arrangement
from meander.dataflow.collections.reduce import (
    Function,
    NegativeCount,
    Reduction,
    count,
    distinct,
    minimum,
    top,
)
from meander.state.collections.description import LayerDescription
from meander.state.collections.layer import Updates
from meander.state.collections.merge import layer_of
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time, from_millis
from tests.support.collections.columns import Row, rows_of


class Reduced:
    """A reduction with its input, as rows."""

    def __init__(self, function: Function, depth: int = 1) -> None:
        self._arranged = Arrangement(depth)
        self.reduction = Reduction("least", self._arranged.reader(depth), function, depth)

    def step(self, rows: list[Row], *upper: Time) -> list[Row]:
        """The changes before a frontier."""
        lower = self._arranged.upper
        description = LayerDescription(lower, Antichain.of(*upper), lower)
        layer = layer_of(Updates.of(rows, self._arranged.depth), description)
        self._arranged.insert(layer)
        return sorted(rows_of(self.reduction.step(layer)))


def test_the_minimum_changes_with_the_least_value() -> None:
    reduced = Reduced(minimum)
    first: list[Row] = [(7, 5, (0,), 1), (7, 3, (2,), 1), (8, 4, (0,), 2)]
    assert reduced.step(first, 3) == [
        (7, 3, (2,), 1),
        (7, 5, (0,), 1),
        (7, 5, (2,), -1),
        (8, 4, (0,), 1),
    ]
    assert reduced.step([(7, 9, (3,), 1), (8, 4, (3,), -1)], 4) == []
    assert reduced.step([(7, 3, (4,), -1), (8, 4, (4,), -1)], 5) == [
        (7, 3, (4,), -1),
        (7, 5, (4,), 1),
        (8, 4, (4,), -1),
    ]


def test_the_count_sums_all_values() -> None:
    reduced = Reduced(count)
    assert reduced.step([(7, 5, (0,), 1), (7, 6, (0,), 2)], 1) == [(7, 3, (0,), 1)]
    assert reduced.step([(7, 6, (1,), -2)], 2) == [(7, 1, (1,), 1), (7, 3, (1,), -1)]
    assert reduced.step([(7, 5, (2,), -1)], 3) == [(7, 1, (2,), -1)]


def test_distinct_has_each_value_once() -> None:
    reduced = Reduced(distinct)
    assert reduced.step([(7, 5, (0,), 3), (7, 6, (0,), 1)], 1) == [(7, 5, (0,), 1), (7, 6, (0,), 1)]
    assert reduced.step([(7, 5, (1,), -2)], 2) == []
    assert reduced.step([(7, 5, (2,), -1)], 3) == [(7, 5, (2,), -1)]


def test_top_has_the_least_values_with_their_counts() -> None:
    reduced = Reduced(top(2))
    assert reduced.step([(7, 5, (0,), 1), (7, 6, (0,), 2), (7, 7, (0,), 1)], 1) == [
        (7, 5, (0,), 1),
        (7, 6, (0,), 2),
    ]
    assert reduced.step([(7, 5, (1,), -1)], 2) == [(7, 5, (1,), -1), (7, 7, (1,), 1)]


def test_two_changes_change_the_output_where_they_join() -> None:
    """The least value of (0, 1) and of (1, 0) both hold at (1, 1), where only one may stay."""
    reduced = Reduced(minimum, depth=2)
    # (1, 1) is not before the frontier yet.
    changes = reduced.step([(7, 5, (0, 1), 1), (7, 3, (1, 0), 1)], (1, 1))
    assert changes == [(7, 3, (1, 0), 1), (7, 5, (0, 1), 1)]
    assert reduced.reduction.pending[1].tolist() == [[1, 1]]
    assert reduced.step([], (2, 1)) == [(7, 5, (1, 1), -1)]
    assert reduced.reduction.pending[1].tolist() == []


def test_the_output_trace_holds_what_was_sent() -> None:
    reduced = Reduced(minimum)
    sent = reduced.step([(7, 5, (0,), 1)], 1)
    output = reduced.reduction.output.trace
    assert [row for layer in output.layers for row in rows_of(layer.updates())] == sent
    assert output.upper == output.since == Antichain.of(1)


def test_a_value_removed_more_often_than_added_is_an_error() -> None:
    reduced = Reduced(minimum)
    assert reduced.step([(7, 5, (0,), 1), (8, 5, (0,), 1)], 1)
    at = from_millis(7, sequence=3)
    with pytest.raises(NegativeCount) as error:
        reduced.step([(8, 5, (at,), -3)], at + 1)
    assert str(error.value) == (
        "key 8 of operator 'least': its value 5 has count -2 at time 7340035 (7 ms); "
        "send each removal once, and not before its addition."
    )
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_a_value_that_a_loop_removes_too_often_is_named_with_the_iteration() -> None:
    with pytest.raises(NegativeCount, match=r"count -1 at time 0 \(0 ms\), iteration 2;"):
        Reduced(minimum, depth=2).step([(8, 5, (0, 2), -1)], (1, 0))
