"""The values with the greatest number of a key, as a fold over columns.

Guarantees all of them, in the order of the records, however batches cut these. Of two sessions that
merge, those of the earlier one come first. Invariant: a state is the greatest number so far, and a
tuple of its values. Cost: a few calls of numpy for a batch, and Python only for records that reach
the greatest number of their key so far. A state grows with each further value that does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.records.batch import Int64s
from meander.state.encoding.columns import Column, Columns, column_of


def max_by_fold(by: str, of: str | None, dtype: str) -> ColumnFold:
    """Return a fold that keeps the values with the greatest number in a field."""
    kind = np.dtype(dtype)
    least = -np.inf if kind.kind == "f" else int(np.iinfo(kind).min)
    given = f"{by!r}" if of is None else f"{by!r}, of={of!r}"
    return ColumnFold(
        (least, ()), _step, (dtype, "object"), (dtype, "object"), (by, of), merge=_merge,
        result=_listed, grouped=_grouped, name=f"max_by({given})",
    )  # fmt: skip


def _step(states: Columns, values: Column) -> tuple[Columns, Column]:
    after = _grouped(states, np.arange(len(values)), values)
    return after, _listed(after)


def _grouped(states: Columns, groups: Int64s, values: Column) -> Columns:
    table: Any = values  # numpy's types know no columns by name
    numbers, offered = (table[name] for name in table.dtype.names)
    if np.isnan(numbers).any():
        raise ValueError("NaN is neither less nor greater than a number")
    if numbers.dtype.kind == "f":
        numbers = numbers + 0.0  # zero has no sign
    before, held = states
    best: Any = before.copy()
    np.maximum.at(best, groups, numbers)
    after: Any = held.copy()
    for group in np.flatnonzero(best > before).tolist():
        after[group] = ()
    found = dict[int, list[object]]()
    reached = np.flatnonzero(numbers == best[groups])
    for group, value in zip(groups[reached].tolist(), offered[reached].tolist(), strict=True):
        found.setdefault(group, []).append(value)
    for group, some in found.items():
        after[group] = (*after[group], *some)
    return best, after


def _merge(earlier: Columns, later: Columns) -> Columns:
    best = np.maximum(earlier[0], later[0])
    parts = [
        np.where(side[0] == best, side[1], column_of([()] * len(best), "object"))
        for side in (earlier, later)
    ]
    held = [(*a, *b) for a, b in zip(*(part.tolist() for part in parts), strict=True)]
    return best, column_of(held, "object")


def _listed(states: Columns) -> Column:
    return column_of([[*held] for held in states[1].tolist()], "object")
