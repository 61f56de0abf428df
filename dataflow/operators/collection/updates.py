"""Updates as batches on edges: the values of a batch are the columns key, value and diff.

Guarantees that a batch holds updates of one combination of iterations, and the values of its codes.
The place of an update in the total order has no meaning, as a collection is a multiset. Cost: a
copy of the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np

from meander.dataflow.collections.dictionary import Dictionary
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import Iterations, iterations_of, nested_time
from meander.state.collections.columns import Int64s, UInt64s
from meander.state.collections.kernels import hashes_of, keys_of
from meander.state.collections.layer import UpdateChunk, Updates
from meander.state.encoding.object_column import ObjectColumn
from meander.state.encoding.value_columns import Column, ValueColumns
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin
from meander.state.times.time import Time


@dataclass(frozen=True, slots=True)
class UpdateCoding:
    """Which columns of some updates hold codes of Python values, and the dictionary of these.

    >>> coding = UpdateCoding(Dictionary(), key=True, value=False)
    >>> batch = batch_of(np.array([5]), ObjectColumn.of(["Rome"]), np.array([7]), np.array([1]))
    >>> updates = coding.updates_of(batch, (2,))
    >>> updates.times.tolist(), [[*some.values] for _, some in coding.batches_of(updates)]
    ([[5, 2]], [[('Rome', 7, 1)]])
    """

    dictionary: Dictionary
    key: bool
    value: bool

    def columns_of(self, batch: Batch) -> tuple[Int64s, Int64s, Int64s]:
        """Return the columns key, value and diff of a batch, with codes in place of values."""
        keys, values, diffs = columns_of(batch)
        keys, values = self.dictionary.codes(keys), self.dictionary.codes(values)
        return owned(keys), owned(values), owned(diffs)

    def updates_of(self, batch: Batch, iterations: Iterations) -> Updates:
        """Return the updates of a batch that a message of some iterations carries."""
        keys, values, diffs = self.columns_of(batch)
        times = np.empty((len(batch), 1 + len(iterations)), np.int64)
        times[:, 0] = batch.times
        times[:, 1:] = iterations
        return Updates(keys, values, times, diffs)

    def batch_of(self, times: Int64s, keys: Int64s, values: Int64s, diffs: Int64s) -> Batch:
        """Return updates as a batch; `times` are outer times, all columns have the shape (n,)."""
        return batch_of(times, *self.columns(keys, values), diffs)

    def batches_of(self, updates: Updates) -> Iterator[tuple[Time, Batch]]:
        """Yield updates as batches, each with a lower bound of its times.

        >>> some = Updates.of([(7, 8, (5, 2), 1), (7, 9, (6, 2), 1), (7, 8, (5, 3), -1)], depth=2)
        >>> numbers = UpdateCoding(Dictionary(), key=False, value=False)
        >>> [(time, list(batch.values)) for time, batch in numbers.batches_of(some)]
        [((5, 2), [(7, 8, 1), (7, 9, 1)]), ((5, 3), [(7, 8, -1)])]
        """
        for iterations, rows in _by_iterations(updates.times[:, 1:]):
            some = updates.take(rows)
            times = np.ascontiguousarray(some.times[:, 0])
            time = nested_time(int(times.min()), iterations)
            yield time, self.batch_of(times, some.keys, some.values, some.diffs)

    def columns(self, keys: Int64s, values: Int64s) -> tuple[Column, Column]:
        """Return keys and values, as objects where they are codes."""
        column = self.dictionary.column
        return column(keys) if self.key else keys, column(values) if self.value else values

    def codes(self, updates: Updates) -> Iterator[Int64s]:
        """Yield the codes of updates."""
        if self.key:
            yield updates.keys
        if self.value:
            yield updates.values

    def shown(self, key: int, value: int) -> tuple[object, object]:
        """Return the key and the value of a row."""
        of = self.dictionary.value
        return of(key) if self.key else key, of(value) if self.value else value

    def codes_of(self, chunks: Sequence[UpdateChunk]) -> Iterator[Int64s]:
        """Yield the codes of chunks."""
        for part in chain.from_iterable((chunk.static, chunk.dynamic) for chunk in chunks):
            if self.key:
                yield keys_of(part.hashes)
            if self.value:
                yield part.values.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Codings:
    """The codings of an operator's inputs, of its output, and of the arrangements that it keeps, by
    number."""

    inputs: Sequence[UpdateCoding]
    output: UpdateCoding
    kept: Sequence[UpdateCoding]


def batch_of(times: Int64s, *columns: Column) -> Batch:
    """Return updates of some columns as a batch; `times` are outer times, and all have the shape
    (n,). An update of a collection has the columns key, value and diff."""
    none = np.zeros(len(times), np.int64)
    return Batch(times, none, none, none, none, ValueColumns(columns))


def columns_of(batch: Batch) -> tuple[Column, Column, Int64s]:
    """Return the columns key, value and diff of a batch of updates."""
    assert isinstance(batch.values, ValueColumns), "a collection has typed columns"
    keys, values, diffs = batch.values.columns
    return keys, values, cast(Int64s, diffs)


def owned(column: Int64s) -> Int64s:
    """Return a column as compiled loops know columns: contiguous and writable."""
    # Columns from the wire cannot be written. Compiled loops would compile once more for them.
    flags = column.flags
    if flags.c_contiguous and flags.writeable:
        return column
    return np.require(column, requirements=["C", "W"])


def key_hashes(batch: Batch) -> UInt64s:
    """Return the hashes of the keys of updates, whose top bits are the bins."""
    assert isinstance(batch.values, ValueColumns), "a collection has typed columns"
    keys = batch.values.columns[0]
    return hashes_of(owned(keys.codes if isinstance(keys, ObjectColumn) else keys))


def bin_of(space: BinSpace, key: bytes) -> Bin:
    """Return the bin of a key of a notification, eight bytes."""
    hashes = hashes_of(np.frombuffer(key, ">i8").astype(np.int64))
    return Bin(int(space.bins_of(hashes)[0]))


def least_times(times: Int64s) -> list[Time]:
    """Return the least outer time of each combination of iterations; `times` is (n, depth).

    >>> least_times(np.array([[5, 2], [4, 2], [9, 0]]))
    [(9, 0), (4, 2)]
    """
    return [
        nested_time(int(times[rows, 0].min()), iterations)
        for iterations, rows in _by_iterations(times[:, 1:])
    ]


def _by_iterations(columns: Int64s) -> Iterator[tuple[Iterations, Int64s | slice]]:
    """Yield each row of `columns` that occurs, with the places at which it does."""
    if not len(columns):
        return
    if not columns.shape[1] or (columns == columns[0]).all():
        yield iterations_of((0, *columns[0].tolist())), slice(None)
        return
    distinct, place = np.unique(columns, axis=0, return_inverse=True)
    for number, one in enumerate(distinct.tolist()):
        yield tuple(one), np.flatnonzero(place.ravel() == number)
