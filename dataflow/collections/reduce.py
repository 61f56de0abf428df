"""Reductions: a function of all values of a key, kept up to date over a trace.

Guarantees that the output, accumulated at any time before the input frontier, is the function of
the input accumulated at that time, also for times in a partial order. A step takes all updates of
an interval of times in one pass. Invariant: `pending` holds each (key, time) at which two changes
join and whose time may still get input. Cost: per touched key its rows, times the times at which it
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, starmap

import numpy as np

from meander.dataflow.collections import kernels
from meander.dataflow.collections.arrangement import Arrangement, ArrangementReader
from meander.schemas.errors import MeanderError
from meander.state.collections.columns import Bools, Int64s, UInt64s
from meander.state.collections.cursor import CursorRows
from meander.state.collections.frontiers import columns_of
from meander.state.collections.kernels import by_query, by_value, hashes_of, keys_of
from meander.state.collections.layer import Layer, Updates
from meander.state.collections.merge import layer_of
from meander.state.encoding.object_column import ObjectColumn
from meander.state.times.antichain import Antichain
from meander.state.times.time import to_millis

PIECE_KEYS = 1 << 12
"""The most keys that one piece of a step takes."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Values with their counts, grouped; group n has the places `starts[n]` to `starts[n + 1]`.

    Shapes: `starts` (groups + 1,), `values` and `counts` (n,), ascending by value in a group.
    Python values are an `ObjectColumn`, in an order of no meaning; `ranks` has the one of Python.
    """

    starts: Int64s
    values: Int64s
    counts: Int64s

    def ascending_by(self, ranks: Int64s) -> Groups:
        """Return the same groups, each in the order of the ranks of its values, shape (n,)."""
        places = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        order = np.lexsort((ranks, places))
        return replace(self, values=self.values[order], counts=self.counts[order])

    def between(self, first: int, end: int) -> Groups:
        """Return the groups from `first` to before `end`.

        >>> groups = Groups(np.array([0, 2, 3]), np.array([5, 9, 4]), np.array([1, 1, 2]))
        >>> groups.between(1, 2)
        Groups(starts=array([0, 1]), values=array([4]), counts=array([2]))
        """
        starts = self.starts[first : end + 1]
        rows = slice(starts[0], starts[-1])
        return Groups(starts - starts[0], self.values[rows], self.counts[rows])


Function = Callable[[Int64s, Groups], Groups]
"""From the keys of groups (groups,) and their values to the values of the output."""
Shown = Callable[[int, int], tuple[object, object]]
"""From a key and a value to those that a user knows."""


def minimum(keys: Int64s, groups: Groups) -> Groups:
    """Return the least value of each group, once."""
    groups, some = _ascending(groups), np.flatnonzero(np.diff(groups.starts))
    starts = np.zeros(len(keys) + 1, np.int64)
    starts[1:] = np.cumsum(np.diff(groups.starts) > 0)
    return Groups(starts, groups.values[groups.starts[some]], np.ones(len(some), np.int64))


def count(keys: Int64s, groups: Groups) -> Groups:
    """Return the number of values of each group, as its value."""
    sums = np.concatenate([[0], np.cumsum(groups.counts)])
    totals = np.diff(sums[groups.starts])
    some = totals != 0
    starts = np.concatenate([[0], np.cumsum(some)])
    return Groups(starts, totals[some], np.ones(int(some.sum()), np.int64))


def distinct(keys: Int64s, groups: Groups) -> Groups:
    """Return each value of a group once."""
    return Groups(groups.starts, groups.values, np.ones(len(groups.values), np.int64))


def top(most: int) -> Function:
    """Return a function that gives the `most` least values of each group, with their counts."""

    def function(keys: Int64s, groups: Groups) -> Groups:
        groups = _ascending(groups)
        places = np.arange(len(groups.values)) - np.repeat(
            groups.starts[:-1], np.diff(groups.starts)
        )
        kept = places < most
        starts = np.concatenate([[0], np.cumsum(kept)])[groups.starts]
        return Groups(starts, groups.values[kept], groups.counts[kept])

    return function


def _ascending(groups: Groups) -> Groups:
    """Return groups whose values ascend, also where they are Python values."""
    values: Int64s | ObjectColumn = groups.values
    return groups.ascending_by(values.ranks) if isinstance(values, ObjectColumn) else groups


_REMEDY = "send each removal once, and not before its addition"


class NegativeCount(MeanderError):
    """An error for a value that was removed more often than it was added."""

    @staticmethod
    def of(
        operator: str, key: object, value: object, time: tuple[int, ...], count: int
    ) -> NegativeCount:
        """Return the error for a value of a key."""
        at, *iterations = time
        inside = f", iteration {', '.join(map(str, iterations))}" * bool(iterations)
        return NegativeCount(
            f"key {key!r} of operator {operator!r}",
            f"its value {value!r} has count {count} at time {at} ({to_millis(at)} ms){inside}",
            _REMEDY,
        )

    @staticmethod
    def of_key(operator: str, key: object, time: int, count: int) -> NegativeCount:
        """Return the error for a key from which more was removed than was added."""
        return NegativeCount(
            f"key {key!r} of operator {operator!r}",
            f"it has {count} values at time {time} ({to_millis(time)} ms)",
            _REMEDY,
        )


class Reduction:
    """The output of a function over one arrangement, on one worker."""

    def __init__(
        self, name: str, arranged: ArrangementReader, function: Function, depth: int,
        shown: Shown = lambda key, value: (key, value),
    ) -> None:  # fmt: skip
        self._shown = shown
        self._name, self._function, self._depth, self._arranged = name, function, depth, arranged
        self.output = Arrangement(depth)
        self.previous = self.output.reader(depth)
        """The output of the steps so far."""
        self._pending = _Moments(np.empty(0, np.uint64), np.empty((0, depth), np.int64))

    @property
    def pending(self) -> tuple[Int64s, Int64s]:
        """Return keys (n,) and the times (n, depth) at which they change, whatever input comes."""
        return keys_of(self._pending.hashes), self._pending.times

    @property
    def has_pending(self) -> bool:
        """Return whether any key is pending."""
        return len(self._pending.hashes) > 0

    def add_pending(self, keys: Int64s, times: Int64s) -> None:
        """Add keys and times of `pending` of an earlier reduction."""
        self._pending = _Moments.concat([self._pending, _Moments(hashes_of(keys), times)])

    def step(self, batch: Layer) -> Iterator[Updates]:
        """Yield the output's updates before the upper frontier of a batch, which the arrangement
        has already. The output trace holds them once all are taken."""
        upper = batch.description.upper
        frontier = columns_of(upper, self._depth)
        fresh = _Moments.concat([self._pending, *map(_Moments.of, batch.updates())])
        due, self._pending = fresh.split(frontier)
        made: list[Updates] = []
        for some in due.by_keys(PIECE_KEYS):
            piece = self._reduced(some.keys, some, upper)
            made.append(piece)
            if len(piece):
                yield piece
        output = Updates.concat([Updates.of([], self._depth), *made])
        self.output.insert(layer_of(output, batch.description))
        self._arranged.advance(upper)
        self.previous.advance(upper)

    def _reduced(self, hashes: UInt64s, due: _Moments, upper: Antichain) -> Updates:
        count = len(hashes)
        into, out = (reader.gather(hashes, upper) for reader in (self._arranged, self.previous))
        query = np.searchsorted(hashes, due.hashes)
        history = np.concatenate([into.query, out.query])
        times = np.concatenate([into.times, out.times])
        f_order, f_offsets = by_query(query, count)
        h_order, h_offsets = by_query(history, count)
        moments, ready = kernels.interesting(
            f_order, f_offsets, due.times, h_order, h_offsets, times,
            columns_of(upper, self._depth),
        )  # fmt: skip
        if not ready.all():
            late = _Moments(hashes[moments[~ready, 0]], moments[~ready, 1:])
            self._pending = _Moments.concat([self._pending, late]).distinct()
            moments = moments[ready]
        at, when = _columns(moments, 1)
        groups = self._accumulated(at, when, into, count)
        keys = keys_of(hashes)
        self._check(keys[at], when, groups)
        wanted = self._function(keys[at], groups)
        order, offsets = by_value(out.query, out.values, count)
        rows = kernels.corrections(
            at, when, wanted.starts, wanted.values, wanted.counts,
            order, offsets, out.values, out.times, out.diffs,
        )  # fmt: skip
        place, values, diffs, when = _columns(rows, 3)
        return Updates(keys[place], values, when, diffs)

    def _accumulated(self, query: Int64s, times: Int64s, rows: CursorRows, count: int) -> Groups:
        order, offsets = by_value(rows.query, rows.values, count)
        columns = rows.values, rows.times, rows.diffs
        return Groups(*kernels.accumulate(query, times, order, offsets, *columns))

    def _check(self, keys: Int64s, times: Int64s, groups: Groups) -> None:
        if (groups.counts < 0).any():
            place = int(np.argmax(groups.counts < 0))
            group = int(np.searchsorted(groups.starts, place, side="right")) - 1
            time = tuple(times[group].tolist())
            key, value = self._shown(int(keys[group]), int(groups.values[place]))
            raise NegativeCount.of(self._name, key, value, time, int(groups.counts[place]))


def _columns(rows: Int64s, single: int) -> tuple[Int64s, ...]:
    """Return the first columns of rows one by one, and the times behind them."""
    columns = (np.ascontiguousarray(rows[:, n]) for n in range(single))
    return (*columns, np.ascontiguousarray(rows[:, single:]))


def first_rows(hashes: UInt64s) -> Bools:
    """Return which rows of sorted hashes are the first of a hash."""
    firsts = np.ones(len(hashes), np.bool_)
    np.not_equal(hashes[1:], hashes[:-1], out=firsts[1:])
    return firsts


def slices_by_keys(hashes: UInt64s, most: int) -> Iterator[slice]:
    """Yield slices of sorted hashes. Each slice has at most `most` keys, with all rows of each.

    >>> [*slices_by_keys(np.array([3, 3, 5, 8], np.uint64), 2)]
    [slice(0, 3, None), slice(3, 4, None)]
    """
    bounds = [*np.flatnonzero(first_rows(hashes))[::most].tolist(), len(hashes)]
    return starmap(slice, pairwise(bounds))


@dataclass(frozen=True, slots=True)
class _Moments:
    """Times at which keys may change; `hashes` (n,), `times` (n, depth)."""

    hashes: UInt64s
    times: Int64s

    @staticmethod
    def of(updates: Updates) -> _Moments:
        return _Moments(hashes_of(updates.keys), updates.times)

    @staticmethod
    def concat(many: list[_Moments]) -> _Moments:
        return _Moments(
            np.concatenate([one.hashes for one in many]),
            np.concatenate([one.times for one in many]),
        )

    @property
    def keys(self) -> UInt64s:
        """Return the hashes of sorted moments, each once."""
        return self.hashes[first_rows(self.hashes)]

    def distinct(self) -> _Moments:
        """Return each once."""
        columns = np.column_stack([self.hashes.view(np.int64), self.times])
        _, rows = np.unique(columns, axis=0, return_index=True)
        return _Moments(self.hashes[rows], self.times[rows])

    def by_keys(self, most: int) -> Iterator[_Moments]:
        """Yield all in pieces of at most so many keys."""
        order = np.argsort(self.hashes, kind="stable")
        hashes, times = self.hashes[order], self.times[order]
        for some in slices_by_keys(hashes, most):
            yield _Moments(hashes[some], times[some])

    def split(self, frontier: Int64s) -> tuple[_Moments, _Moments]:
        """Return those before a frontier, and the others."""
        later = np.all(self.times[:, None, :] >= frontier[None, :, :], axis=2)
        after = np.any(later, axis=1)
        return (
            _Moments(self.hashes[~after], self.times[~after]),
            _Moments(self.hashes[after], self.times[after]),
        )
