"""Updates as batches on edges: the values of a batch are the columns key, value and diff.

Guarantees that a batch holds updates of one combination of iterations. The place of an update in
the total order has no meaning, as a collection is a multiset. Cost: a copy of the columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import Iterations, iterations_of, nested_time
from meander.state.collections.columns import Int64s, UInt64s
from meander.state.collections.kernels import hashes_of
from meander.state.collections.layer import Updates
from meander.state.encoding.value_columns import ValueColumns
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin
from meander.state.times.time import Time


def batch_of(times: Int64s, keys: Int64s, values: Int64s, diffs: Int64s) -> Batch:
    """Return updates as a batch; `times` are outer times, all columns have the shape (n,)."""
    none = np.zeros(len(times), np.int64)
    return Batch(times, none, none, none, none, ValueColumns((keys, values, diffs)))


def updates_of(batch: Batch, iterations: Iterations) -> Updates:
    """Return the updates of a batch that a message of some iterations carries.

    >>> batch = batch_of(*(np.array([n]) for n in (5, 7, 8, 1)))
    >>> updates_of(batch, (2,)).times.tolist()
    [[5, 2]]
    """
    keys, values, diffs = columns_of(batch)
    times = np.empty((len(batch), 1 + len(iterations)), np.int64)
    times[:, 0] = batch.times
    times[:, 1:] = iterations
    return Updates(keys, values, times, diffs)


def columns_of(batch: Batch) -> tuple[Int64s, Int64s, Int64s]:
    """Return the columns key, value and diff of a batch of updates."""
    assert isinstance(batch.values, ValueColumns), "a collection has typed columns"
    # Columns from the wire cannot be written. Compiled loops would compile once more for them.
    keys, values, diffs = (np.require(one, requirements=["C", "W"]) for one in batch.values.columns)
    return keys, values, diffs


def key_hashes(batch: Batch) -> UInt64s:
    """Return the hashes of the keys of updates, whose top bits are the bins."""
    return hashes_of(columns_of(batch)[0])


def bin_of(space: BinSpace, key: bytes) -> Bin:
    """Return the bin of a key of a notification, eight bytes."""
    hashes = hashes_of(np.frombuffer(key, ">i8").astype(np.int64))
    return Bin(int(space.bins_of(hashes)[0]))


def batches_of(updates: Updates) -> Iterator[tuple[Time, Batch]]:
    """Yield updates as batches, each with a lower bound of its times.

    >>> some = Updates.of([(7, 8, (5, 2), 1), (7, 9, (6, 2), 1), (7, 8, (5, 3), -1)], depth=2)
    >>> [(time, list(batch.values)) for time, batch in batches_of(some)]
    [((5, 2), [(7, 8, 1), (7, 9, 1)]), ((5, 3), [(7, 8, -1)])]
    """
    for iterations, rows in _by_iterations(updates.times[:, 1:]):
        some = updates.take(rows)
        times = np.ascontiguousarray(some.times[:, 0])
        time = nested_time(int(times.min()), iterations)
        yield time, batch_of(times, some.keys, some.values, some.diffs)


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
