"""The steps of collections that need no state: ingest, map, concat, and changes.

Guarantees that each update passes in the turn of its arrival, at its own time. Functions of a user
take whole columns, except those that read the records of a stream. Small messages of equal
iterations pass as one. Cost: one call per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, cast

import numpy as np

from meander.dataflow.operators.collection.functions import ColumnFunction
from meander.dataflow.operators.collection.row_type import RowType, is_word
from meander.dataflow.operators.collection.updates import (
    UpdateCoding,
    batch_of,
    columns_of,
    key_hashes,
)
from meander.dataflow.operators.error_policy import Guard, failure, safe_repr
from meander.dataflow.operators.ports import BaseOperator, InputPort, Message, OutputPort
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import iterations_of, outer_time
from meander.state.collections.columns import Int64s
from meander.state.encoding.object_column import ObjectColumn
from meander.state.encoding.value_columns import Column, ValueColumns

Row = tuple[Any, Any, int]
"""A key, a value and a diff."""
ReadRow = Callable[[Any], Row]
"""From a record of a stream to its update. It raises an error for a record that has none."""
Turn = Callable[[Batch], Batch]
"""From a batch that an operator receives to one that it sends."""
_ROWS = {tuple, list}
JOINED_ROWS = 1 << 14
"""The most rows of several messages that pass as one. A call for more is cheap beside its rows."""


class Pass(BaseOperator):
    """An operator that sends each batch on as a function turns it."""

    def __init__(self, inputs: Sequence[InputPort], output: OutputPort, turn: Turn) -> None:
        self._inputs, self._output, self._turn = inputs, output, turn

    def schedule(self) -> bool:
        """Pass batches on, unless earlier ones still wait. Return whether any passed."""
        passed = False
        for port in self._inputs if not self._output.blocked() else ():
            for run in _runs(port.drain()):
                passed = True
                least = min(run, key=_outer_time)
                with self._output.mint(least) as capability:
                    batch = self._turn(Batch.concat([cast(Batch, one.payload) for one in run]))
                    if len(batch):
                        self._output.send(capability, least.time, batch)
        return passed


def _runs(messages: Iterator[Message]) -> Iterator[list[Message]]:
    """Yield messages in runs of equal iterations, with up to `JOINED_ROWS` rows or one message."""
    run, rows = list[Message](), 0
    for message in messages:
        assert isinstance(message.payload, Batch)
        rows += len(message.payload)
        same = not run or iterations_of(run[0].time) == iterations_of(message.time)
        if run and (rows > JOINED_ROWS or not same):
            yield run
            run, rows = [], len(message.payload)
        run.append(message)
    if run:
        yield run


def _outer_time(message: Message) -> int:
    return outer_time(message.time)


def ingest(read: ReadRow, row_type: RowType, guard: Guard) -> Turn:
    """Return a function from records of a stream to updates; `guard` gets those without one."""
    integers = not (row_type.has_object_keys or row_type.has_object_values)

    def turn(batch: Batch) -> Batch:
        failed, found = list[int](), list[object]()
        for row, value in enumerate(batch.values):
            try:
                found.append(read(value))
            except failure() as error:
                guard.failed(batch, row, error)
                failed.append(row)
        rows = np.delete(np.arange(len(batch)), np.array(failed, np.int64))
        columns = _as_columns(found) if integers else None
        if columns is not None:
            keys, values, diffs = (np.ascontiguousarray(columns[:, n]) for n in range(3))
            return batch_of(batch.times[rows], keys, values, diffs)
        faults = [_fault(one, row_type) for one in found]
        for row, fault in zip(rows.tolist(), faults, strict=True):
            if fault is not None:
                guard.failed(batch, row, ValueError(fault))
        rows = rows[np.array([fault is None for fault in faults], np.bool_)]
        good = [cast(Row, one) for one, fault in zip(found, faults, strict=True) if fault is None]
        return batch_of(
            batch.times[rows],
            _column([key for key, _, _ in good], row_type.has_object_keys),
            _column([value for _, value, _ in good], row_type.has_object_values),
            np.array([diff for *_, diff in good], np.int64),
        )

    return turn


def _as_columns(found: Sequence[object]) -> Int64s | None:
    """Return good rows as columns, shape (n, 3), or None where a row has a fault.

    A check of all types at once takes a tenth of a look at each row.
    """
    rows = cast(list[Row], found)
    if not ({*map(type, found)} <= _ROWS and {*map(len, rows)} <= {3}):
        return None
    if not {*map(type, chain.from_iterable(rows))} <= {int}:
        return None
    try:
        # One sequence of numbers takes half the time of a sequence of rows.
        numbers = np.fromiter(chain.from_iterable(rows), np.int64, 3 * len(rows))
    except OverflowError:
        return None
    columns = numbers.reshape(-1, 3)
    return columns if columns[:, 2].all() else None


def _column(values: list[Any], is_object: bool) -> Column:
    return ObjectColumn.of(values) if is_object else np.array(values, np.int64)


def _fault(row: object, row_type: RowType) -> str | None:
    """Return the fault of a row, or None for a good one."""
    if not isinstance(row, tuple | list) or len(row) != 3:
        return f"{safe_repr(row)} is no key, value and diff"
    key, value, diff = row
    if fault := row_type.fault(key, value):
        return fault
    if not is_word(diff):
        return f"its diff is {safe_repr(diff)}, no integer of 64 bits"
    return None if diff else "its diff is 0, which changes nothing"


def mapped(function: ColumnFunction, before: UpdateCoding) -> Turn:
    """Return a function from updates to an update each."""

    def turn(batch: Batch) -> Batch:
        keys, values, diffs = before.columns_of(batch)
        return function.result.batch_of(batch.times, *function.rows(keys, values), diffs)

    return turn


def filtered(function: ColumnFunction, before: UpdateCoding) -> Turn:
    """Return a function from updates to those of some keys and values."""

    def turn(batch: Batch) -> Batch:
        keys, values, _ = before.columns_of(batch)
        return batch.take(np.flatnonzero(function.mask(keys, values)))

    return turn


def flat_mapped(function: ColumnFunction, before: UpdateCoding) -> Turn:
    """Return a function from updates to any number of updates each."""

    def turn(batch: Batch) -> Batch:
        keys, values, diffs = before.columns_of(batch)
        keys, values, rows = function.flat_rows(keys, values)
        return function.result.batch_of(batch.times[rows], keys, values, diffs[rows])

    return turn


def negated(batch: Batch) -> Batch:
    """Return additions as removals, and removals as additions."""
    keys, values, diffs = columns_of(batch)
    return batch_of(batch.times, keys, values, -diffs)


def unchanged(batch: Batch) -> Batch:
    """Return a batch as it is."""
    return batch


def changes(origin: int, fields: Sequence[str]) -> Turn:
    """Return a function from updates to records of the last columns, by name, and the diff. The
    place of a record in the total order follows from its key."""
    names = *fields, "diff"
    template = dict[str, object].fromkeys(names)

    def turn(batch: Batch) -> Batch:
        assert isinstance(batch.values, ValueColumns), "a collection has typed columns"
        # Copies of one dict, filled by column, take a third of the time of a dict from each row.
        records = [template.copy() for _ in range(len(batch))]
        for name, column in zip(names, batch.values.columns[-len(names) :], strict=True):
            for record, value in zip(records, column.tolist(), strict=True):
                record[name] = value
        partitions = key_hashes(batch).view(np.int64)
        origins = np.full(len(batch), origin, np.int64)
        return replace(
            batch, values=[*records], origins=origins, partitions=partitions, size=0, packed=None
        )

    return turn
