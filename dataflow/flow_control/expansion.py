"""The lazy expansion of rows: a function gives an iterator per value, which batches suspend.

Guarantees the outputs of a `flat_map` with the same function, without more of them in memory than
one batch has. A row that is expanded in part waits as (outputs that have left, value), so a restart
calls its function again and skips these. Cost: one call per row, and one step of its iterator per
output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import numpy as np

from meander.dataflow.flow_control.ready_rows import ReadyRows
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.stateless import (
    MAX_OUTPUTS,
    TooManyOutputsError,
    append_index,
    with_index_room,
)
from meander.state.times.time import Time

Expand = Callable[[Any], Iterable[object]]


def unexpanded(value: object) -> tuple[int, object]:
    """Return the value of a row of which no output has left.

    >>> unexpanded("a")
    (0, 'a')
    """
    return 0, value


@dataclass(slots=True)
class ExpandedRow:
    """A row that is expanded in part."""

    row: Rows
    """The row with its value alone."""
    outputs: Iterator[object]
    """The outputs that have not left."""
    left: int
    """The number of outputs that have left."""

    @property
    def waiting(self) -> Rows:
        """Return the row with the number of outputs that have left."""
        (value,) = self.row.batch.values
        return _with_values(self.row, [(self.left, value)])


class Expansion:
    """A queue of rows that gives their outputs."""

    def __init__(self, rows: ReadyRows, expand: Expand, guard: Guard) -> None:
        self._rows, self._expand, self._guard = rows, expand, guard
        self._first: ExpandedRow | None = None

    @property
    def size(self) -> int:
        """Return about the bytes of the rows."""
        return self._rows.size

    def add(self, passed: list[Rows]) -> None:
        """Add rows that a frontier has passed."""
        self._rows.add(passed)

    def take(self, count: int) -> list[Rows]:
        """Remove and return the first outputs, at most `count`."""
        outputs = list[Rows]()
        while count > 0 and (first := self._first or self._begin()) is not None:
            outputs.append(self._next_outputs(first, count))
            count -= len(outputs[-1])
        return _merged(outputs)

    def count(self, rows: Rows) -> int:
        """Return the number of outputs."""
        return len(rows)

    def least_times(self) -> Iterator[Time]:
        """Yield the least times of the rows."""
        if self._first is not None:
            yield self._first.row.least_time
        yield from self._rows.least_times()

    def __iter__(self) -> Iterator[Rows]:
        if self._first is not None:
            yield self._first.waiting
        yield from self._rows

    def __len__(self) -> int:
        return (self._first is not None) + len(self._rows)

    def _begin(self) -> ExpandedRow | None:
        """Begin to expand the next row whose index has room. Return it, or None."""
        while taken := self._rows.take(1):
            (packed,) = taken
            ((left, value),) = cast(list[tuple[int, object]], packed.batch.values)
            row = _with_values(packed, [value])
            if len(with_index_room(row.batch, self._guard)):
                self._first = ExpandedRow(row, self._outputs(value, left), left)
                return self._first
        return None

    def _outputs(self, value: object, left: int) -> Iterator[object]:
        """Yield the outputs of a value behind those that have left."""
        # A generator calls the function at its first step, where the guard handles an error.
        yield from islice(self._expand(value), left, None)

    def _next_outputs(self, first: ExpandedRow, count: int) -> Rows:
        """Return the next outputs of the first row, and forget the row at its end."""
        found = list[object]()
        try:
            for output in islice(first.outputs, count):
                if first.left + len(found) == MAX_OUTPUTS:
                    raise TooManyOutputsError
                found.append(output)
        except failure() as error:
            self._guard.failed(first.row.batch, 0, error)
            self._first = None
        rows = first.row.take(np.zeros(len(found), np.int64))
        positions = np.arange(first.left, first.left + len(found))
        indexes = append_index(rows.batch.indexes, positions)
        first.left += len(found)
        if len(found) < count:
            self._first = None
        return _with_values(replace(rows, batch=replace(rows.batch, indexes=indexes)), found)


def _with_values(rows: Rows, values: list[object]) -> Rows:
    return replace(rows, batch=rows.batch.with_values(values))


def _merged(outputs: list[Rows]) -> list[Rows]:
    """Return the same rows, each run of equal iterations as one element."""
    merged = list[list[Rows]]()
    for rows in outputs:
        if merged and merged[-1][0].iterations == rows.iterations:
            merged[-1].append(rows)
        elif len(rows):
            merged.append([rows])
    return [Rows.concat(some) for some in merged]
