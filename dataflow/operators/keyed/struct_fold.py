"""Several folds over columns as one, whose result is a dict.

Guarantees the result that each fold alone would have. A record on which one of them fails changes
no state of the others. Invariant: the columns of a state, and those of the values, are the ones of
the first fold, then those of the second, and so on. Cost: that of all folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.records.batch import Int64s
from meander.schemas.errors import SetupError
from meander.state.encoding.columns import Column, Columns, column_of


def struct_fold(parts: Mapping[str, ColumnFold]) -> ColumnFold:
    """Return a fold of some named ones. Raises SetupError where there is none."""
    if not parts or not all(isinstance(one, ColumnFold) for one in parts.values()):
        raise SetupError(
            "a struct of folds", f"its folds are {parts!r}",
            "give folds over columns by name, such as sold=columns.count()",
        )  # fmt: skip
    folds = tuple(parts.values())
    places = _Places.of(folds)
    fields = [field for fold in folds for field in fold.fields]
    names = ", ".join(f"{name}={one.definition}" for name, one in parts.items())
    groupers = [one.grouped for one in folds if one.grouped is not None]
    mergers = [one.merge for one in folds if one.merge is not None]
    uses = tuple(dict.fromkeys(name for one in folds for name in one.uses))

    def step(states: Columns, values: Column, *used: Column) -> tuple[Columns, Column]:
        by_name = dict(zip(uses, used, strict=True))
        after, found = list[Columns](), list[list[object]]()
        for fold, some, own in places.split(states, values):
            changed, results = fold.step(some, own, *(by_name[name] for name in fold.uses))
            after.append(changed)
            found.append(results.tolist())
        return tuple(chain(*after)), dicts(found)

    def grouped(states: Columns, groups: Int64s, values: Column) -> Columns:
        split = zip(groupers, places.split(states, values), strict=True)
        return tuple(chain(*(call(some, groups, own) for call, (_, some, own) in split)))

    def merge(earlier: Columns, later: Columns) -> Columns:
        split = zip(mergers, places.states(earlier), places.states(later), strict=True)
        return tuple(chain(*(call(a, b) for call, a, b in split)))

    def result(states: Columns) -> Column:
        split = zip(folds, places.states(states), strict=True)
        return dicts([fold.results(some) for fold, some in split])

    def dicts(results: Sequence[Sequence[object]]) -> Column:
        rows = zip(*results, strict=True)
        return column_of([dict(zip(parts, row, strict=True)) for row in rows], "object")

    return ColumnFold(
        tuple(chain(*(one.init for one in folds))), step,
        tuple(chain(*(one.dtypes for one in folds))),
        tuple(dtype for _, dtype in fields), tuple(of for of, _ in fields), uses,
        merge=merge if len(mergers) == len(folds) else None, result=result,
        grouped=grouped if len(groupers) == len(folds) else None, name=f"struct({names})",
        commutative=all(one.commutative for one in folds),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the columns of each fold are among those of all."""

    folds: tuple[ColumnFold, ...]
    of_states: tuple[slice, ...]
    of_values: tuple[slice, ...]

    @staticmethod
    def of(folds: tuple[ColumnFold, ...]) -> _Places:
        return _Places(
            folds, _slices([len(one.dtypes) for one in folds]),
            _slices([len(one.fields) for one in folds]),
        )  # fmt: skip

    def states(self, states: Columns) -> list[Columns]:
        """Return the columns of the states of each fold."""
        return [states[place] for place in self.of_states]

    def split(self, states: Columns, values: Column) -> list[tuple[ColumnFold, Columns, Column]]:
        """Return each fold with its states and its values."""
        table: Any = values  # numpy's types know no columns by name
        found = list[tuple[ColumnFold, Columns, Column]]()
        parts = zip(self.folds, self.states(states), self.of_values, strict=True)
        for fold, some, place in parts:
            names = list(values.dtype.names or ())[place]
            if isinstance(fold.of, tuple):
                own = table[names]
                own.dtype.names = tuple(f"f{number}" for number in range(len(names)))
            else:
                (name,) = names
                own = table[name]
            found.append((fold, some, own))
        return found


def _slices(counts: Sequence[int]) -> tuple[slice, ...]:
    ends = np.cumsum(counts).tolist()
    return tuple(slice(end - count, end) for end, count in zip(ends, counts, strict=True))
