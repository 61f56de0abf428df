"""Rows of updates as Python values and as sums, for the references of collections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from unittest import mock

import numpy as np

from meander.state.collections.columns import Int64s, UInt64s
from meander.state.collections.kernels import hashes_of, keys_of
from meander.state.collections.layer import Updates
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time

KEYS, VALUES = 6, 4
"""How many there are of each."""
INNER = 4
"""The inner coordinates of times are below that."""
Row = tuple[int, int, tuple[int, ...], int]
"""Key, value, time and diff."""
Sums = Int64s
"""The count of each value of each key at some times; shape (times, KEYS, VALUES)."""


def time_of(coordinates: Iterable[int]) -> Time:
    time = tuple(coordinates)
    return time[0] if len(time) == 1 else time


def frontier(outer: int, inner: Sequence[int], alone: bool) -> Antichain:
    """The frontier of one time, before which all others lie, or only those of its outer time."""
    steps = [(outer, *inner)] if alone else [(outer, *inner), (outer + 1, *[0] * len(inner))]
    return Antichain.of(*map(time_of, steps))


def next_frontier(lower: Antichain, wanted: Antichain) -> Antichain:
    """A frontier after another: the wanted one, else that of one outer time later."""
    if lower.dominates(wanted) and wanted != lower:
        return wanted
    times = [(time,) if isinstance(time, int) else time for time in lower]
    return Antichain.of(*(time_of((outer + 1, *inner)) for outer, *inner in times))


def outer_of(some: Antichain) -> int:
    """The least outer time of a frontier."""
    return min(time if isinstance(time, int) else time[0] for time in some)


def box(first: int, last: int, depth: int) -> list[tuple[int, ...]]:
    """All times from one outer coordinate to another, and their inner ones a little beyond."""
    return [*product(range(first, last + 1), *[range(INNER + 1)] * (depth - 1))]


def sums(updates: Updates, times: Sequence[tuple[int, ...]], values: int = VALUES) -> Sums:
    """The accumulations of updates at some times."""
    at = np.array(times, np.int64).reshape(len(times), updates.depth)
    before = np.all(updates.times[None] <= at[:, None], axis=2).astype(np.int64)
    places = np.zeros((len(updates), KEYS * values), np.int64)
    places[np.arange(len(updates)), updates.keys * values + updates.values] = updates.diffs
    counts: Sums = (before @ places).reshape(len(at), KEYS, values)
    return counts


def rows_of(many: Iterable[Updates]) -> Iterator[Row]:
    for updates in many:
        columns = updates.keys, updates.values, updates.times, updates.diffs
        for key, value, time, diff in zip(*(c.tolist() for c in columns), strict=True):
            yield key, value, tuple(time), diff


def joined(many: Iterable[Updates], depth: int) -> Updates:
    return Updates.concat([Updates.of([], depth), *many])


def all_keys() -> tuple[Int64s, UInt64s]:
    """All keys in the order of their hashes, and these."""
    hashes = np.sort(hashes_of(np.arange(KEYS)))
    return keys_of(hashes), hashes


@contextmanager
def patched(constants: Iterable[tuple[object, str, int]]) -> Iterator[None]:
    """Give constants of modules other values meanwhile."""
    with ExitStack() as opened:
        for module, name, value in constants:
            opened.enter_context(mock.patch.object(module, name, value))
        yield
