"""The steps of collections that need no state: ingest, map, concat, and changes.

Guarantees that each update passes in the turn of its arrival, at its own time. Functions of a user
take whole columns, except those that read the records of a stream. Cost: one call per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meander.dataflow.operators.collection.updates import batch_of, columns_of
from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.ports import BaseOperator, InputPort, OutputPort
from meander.dataflow.records.batch import Batch
from meander.state.collections.columns import Int64s
from meander.state.collections.kernels import hashes_of

Row = tuple[int, int, int]
"""A key, a value and a diff."""
ReadRow = Callable[[Any], Row]
"""From a record of a stream to its update. It raises an error for a record that has none."""
MappedColumns = tuple[Int64s, Int64s, Int64s, Int64s | slice]
"""Columns of keys, values and diffs, and the row of which each is a result."""
MapColumns = Callable[[Int64s, Int64s, Int64s], MappedColumns]
"""From columns of keys, values and diffs to such columns."""


class Pass(BaseOperator):
    """An operator that sends each batch on as a function turns it."""

    def __init__(
        self, inputs: Sequence[InputPort], output: OutputPort, turn: Callable[[Batch], Batch]
    ) -> None:
        self._inputs, self._output, self._turn = inputs, output, turn

    def schedule(self) -> bool:
        """Pass batches on, unless earlier ones still wait. Return whether any passed."""
        passed = False
        for port in self._inputs if not self._output.blocked() else ():
            for message in port.drain():
                passed = True
                assert isinstance(message.payload, Batch)
                with self._output.mint(message) as capability:
                    batch = self._turn(message.payload)
                    if len(batch):
                        self._output.send(capability, message.time, batch)
        return passed


def ingest(read: ReadRow, guard: Guard) -> Callable[[Batch], Batch]:
    """Return a function from records of a stream to updates; `guard` gets those without one."""

    def turn(batch: Batch) -> Batch:
        rows, found = list[int](), list[Row]()
        for row, value in enumerate(batch.values):
            try:
                found.append(_checked(read(value)))
            except failure() as error:
                guard.failed(batch, row, error)
            else:
                rows.append(row)
        columns = np.array(found, np.int64).reshape(-1, 3)
        keys, values, diffs = (np.ascontiguousarray(columns[:, n]) for n in range(3))
        return batch_of(batch.times[rows], keys, values, diffs)

    return turn


def _checked(row: object) -> Row:
    match row:
        case (int() as key, int() as value, int() as diff) if not any(
            isinstance(part, bool) or not -(1 << 63) <= part < 1 << 63 for part in row
        ):
            return key, value, diff
    raise ValueError(f"{row!r} is no key, value and diff, three integers of 64 bits")


def mapped(function: MapColumns) -> Callable[[Batch], Batch]:
    """Return a function from updates to updates."""

    def turn(batch: Batch) -> Batch:
        keys, values, diffs, rows = function(*columns_of(batch))
        return batch_of(batch.times[rows], keys, values, diffs)

    return turn


def unchanged(batch: Batch) -> Batch:
    """Return a batch as it is."""
    return batch


def changes(origin: int) -> Callable[[Batch], Batch]:
    """Return a function from updates to records `{"key", "value", "diff"}`. The place of a record
    in the total order follows from its key."""

    def turn(batch: Batch) -> Batch:
        keys, values, diffs = columns_of(batch)
        rows = zip(keys.tolist(), values.tolist(), diffs.tolist(), strict=True)
        records: list[object] = [
            {"key": key, "value": value, "diff": diff} for key, value, diff in rows
        ]
        partitions = hashes_of(keys).view(np.int64)
        origins = np.full(len(batch), origin, np.int64)
        return replace(
            batch, values=records, origins=origins, partitions=partitions, size=0, packed=None
        )

    return turn
