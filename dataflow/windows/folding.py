"""The columnar fold of windows: the states of many windows as columns, changed by many values.

Invariant: a fold that raises changes no state. Cost: one call of the grouped step for any number of
values, or one call of the step for each pass, in which a window has one value at most.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.operators.keyed.columnar import passes
from meander.dataflow.records.batch import Int64s
from meander.state.encoding.columns import Column, Columns, column_of, fit_column


class Folding:
    """The columnar fold of windows, over the states of some groups of records.

    >>> from meander.dataflow.operators.keyed.columns import mean
    >>> folding = Folding(mean())
    >>> states = folding.fold(folding.new(2), np.array([0, 1, 0]), np.array([1.0, 5.0, 2.0]), [])
    >>> folding.results(states)
    [1.5, 5.0]
    """

    def __init__(self, fold: ColumnFold) -> None:
        self._fold, self._dtypes = fold, fold.layout.dtypes

    def new(self, count: int) -> Columns:
        """Return the states of some groups without records."""
        parts = zip(self._fold.init, self._dtypes, strict=True)
        return tuple(column_of([value] * count, dtype) for value, dtype in parts)

    def of(self, states: Sequence[Sequence[object]]) -> Columns:
        """Return states as columns, each given as the values of its columns."""
        if not states:
            return self.new(0)
        return tuple(map(column_of, zip(*states, strict=True), self._dtypes))

    def fold(
        self, states: Columns, groups: Int64s, values: Column, used: Sequence[Column]
    ) -> Columns:
        """Return the states with some values, in order. Each has the number of its group."""
        if self._fold.grouped is not None:
            return self._fitted(self._fold.grouped(states, groups, values), len(states[0]))
        columns = tuple(column.copy() for column in states)
        for rows in passes(groups.view(np.uint64)):
            self.step(columns, groups[rows], values[rows], [column[rows] for column in used])
        return columns

    def step(self, states: Columns, groups: Int64s, values: Column, used: Sequence[Column]) -> None:
        """Change the states of different groups by one value each; all of them, or none where it
        raises."""
        after, _ = self._fold.step(tuple(column[groups] for column in states), values, *used)
        for column, changed in zip(states, self._fitted(after, len(groups)), strict=True):
            column[groups] = changed

    def merge(self, earlier: Columns, later: Columns) -> Columns:
        """Return the states of pairs of sessions as those of one session each."""
        assert self._fold.merge is not None, "sessions have a fold that merges states"
        return self._fitted(self._fold.merge(earlier, later), len(earlier[0]))

    def results(self, states: Columns) -> list[object]:
        """Return the result of each state."""
        return self._fold.results(states)

    def _fitted(self, columns: Columns, count: int) -> Columns:
        fitted = tuple(map(fit_column, columns, self._dtypes))
        if len(columns) != len(self._dtypes) or any(len(column) != count for column in fitted):
            raise ValueError(f"the fold has no {len(self._dtypes)} columns of {count} states")
        return fitted


def states_of(columns: Columns) -> list[tuple[object, ...]]:
    """Return the states of columns, each as the values of its columns.

    >>> states_of((np.array([1, 2]), np.array([0.5, 1.5])))
    [(1, 0.5), (2, 1.5)]
    """
    return list(zip(*(column.tolist() for column in columns), strict=True))
