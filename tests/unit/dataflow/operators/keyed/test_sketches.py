"""A sketch follows from its values alone, whatever batches they come in, and is near enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meander import columns
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.windows.folding import Folding, states_of

VALUES = np.random.default_rng(7).lognormal(0, 2, 20_000)
FOLDS = [columns.approx_distinct(), columns.quantiles(0.5, 0.99)]


def folded(fold: ColumnFold, seed: int, values: Any = VALUES) -> Any:
    """Return the state of one group whose values come in slices of random sizes."""
    folding, rng, at = Folding(fold), np.random.default_rng(seed), 0
    states = folding.new(2)
    while at < len(values):
        some = values[at : at + int(rng.integers(1, 900))]
        states = folding.fold(states, np.ones(len(some), np.int64), some, [])
        at += len(some)
    return tuple(column[1:] for column in states)


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.name)
def test_states_are_equal_bytes_for_any_batches(fold: ColumnFold) -> None:
    first, second = (states_of(folded(fold, seed)) for seed in (1, 2))
    assert first == second
    assert all(type(part) is bytes for part in first[0])


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.name)
def test_merged_states_are_equal_bytes_for_any_batches(fold: ColumnFold) -> None:
    halves = VALUES[:11_000], VALUES[11_000:]
    merged = [
        Folding(fold).merge(folded(fold, seed, halves[0]), folded(fold, seed + 1, halves[1]))
        for seed in (1, 3)
    ]
    assert states_of(merged[0]) == states_of(merged[1])


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.name)
def test_a_step_gives_the_states_of_the_grouped_one(fold: ColumnFold) -> None:
    folding, some = Folding(fold), VALUES[:600]
    states = tuple(column.copy() for column in folding.new(1))
    for row in range(len(some)):
        folding.step(states, np.zeros(1, np.int64), some[row : row + 1], [])
    assert states_of(states) == states_of(folded(fold, 1, some))


@pytest.mark.parametrize("count", [0, 1, 100, 20_000])
def test_a_distinct_count_is_near_the_exact_one(count: int) -> None:
    fold = columns.approx_distinct()
    values = np.array([f"value {n}" for n in range(count)] * 2, object)
    estimate: Any
    (estimate,) = Folding(fold).results(folded(fold, 5, values))
    assert abs(estimate - count) <= 0.05 * count


def test_equal_values_of_equal_types_count_once() -> None:
    fold = columns.approx_distinct()
    values = np.empty(4, object)
    values[:] = [1, 1.0, (1, "a"), (1, "a")]
    assert Folding(fold).results(folded(fold, 5, values)) == [3]


def test_quantiles_are_near_the_exact_ones() -> None:
    fractions = 0.01, 0.5, 0.9, 0.99, 0.999
    fold = columns.quantiles(*fractions)
    found: Any
    (found,) = Folding(fold).results(folded(fold, 5))
    ranks = np.searchsorted(np.sort(VALUES), found) / len(VALUES)
    assert np.abs(ranks - np.array(fractions)).max() <= 0.02


def test_a_quantile_refuses_what_has_no_order() -> None:
    with pytest.raises(ValueError, match="finite"):
        folded(columns.quantiles(0.5), 1, np.array([1.0, np.nan]))
