"""Counts outside of loops: they keep no values, and equal those of a reduction."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import numpy as np
import pytest

from meander.dataflow.collections.count import TotalCount
from meander.dataflow.collections.reduce import NegativeCount
from meander.state.collections.description import LayerDescription
from meander.state.collections.kernels import hashes_of
from meander.state.collections.layer import Updates
from meander.state.times.antichain import Antichain
from meander.state.times.time import from_millis

Row = tuple[int, int, tuple[int, ...], int]


class Counted:
    """A count, and the frontier of its steps."""

    def __init__(self) -> None:
        self.count = TotalCount("number", lambda key, value: (f"key {key}", value))
        self._lower = self.count.output.upper

    def step(self, rows: list[Row], upper: int) -> list[Row]:
        return sorted(self.raw_step(rows, upper), key=lambda row: (row[2], row[0], row[3]))

    def raw_step(self, rows: list[Row], upper: int) -> list[Row]:
        """Return the changes in their order."""
        frontier = Antichain.of(upper)
        description = LayerDescription(self._lower, frontier, self._lower)
        self._lower = frontier
        pieces = self.count.step(Updates.of(rows), description)
        return [change for piece in pieces for change in _rows(piece)]


def _rows(updates: Updates) -> list[Row]:
    times = map(tuple, updates.times.tolist())
    columns = updates.keys.tolist(), updates.values.tolist(), times, updates.diffs.tolist()
    return list(zip(*columns, strict=True))


def test_each_time_of_a_step_has_its_own_count() -> None:
    counted = Counted()
    some: list[Row] = [(7, 1, (3,), 1), (7, 2, (3,), 1), (7, 3, (5,), 1), (8, 1, (4,), 1)]
    first = [(7, 2, (3,), 1), (8, 1, (4,), 1), (7, 2, (5,), -1), (7, 3, (5,), 1)]
    assert counted.step(some, 6) == first
    assert counted.step([(7, 1, (8,), -1), (7, 9, (8,), 1)], 9) == [], "the number is the same"
    assert counted.step([(8, 1, (9,), -1)], 10) == [(8, 1, (9,), -1)], "no row is left of a key"


def test_keys_of_many_pieces_are_counted_once() -> None:
    keys = np.arange(10_000).tolist()
    counted = Counted()
    assert len(counted.step([(key, 0, (1,), 1) for key in keys], 2)) == len(keys)
    changes = counted.step([(key, 1, (2,), 1) for key in keys], 3)
    assert {(value, diff) for _, value, _, diff in changes} == {(1, -1), (2, 1)}
    assert len(changes) == 2 * len(keys)


def test_a_step_gives_the_count_of_each_time_in_the_order_of_a_layer() -> None:
    rng, counted, counts = np.random.default_rng(3), Counted(), Counter[int]()
    for step in range(20):
        times = rng.integers(10 * step, 10 * step + 10, 300).tolist()
        keys = rng.integers(0, 12, 300).tolist()
        diffs = [1 if counts[key] < 40 or n % 3 else -1 for n, key in enumerate(keys)]
        some = sorted(zip(times, keys, diffs, strict=True))
        wanted = list[Row]()
        for (time, key), changes in groupby(some, lambda one: one[:2]):
            before = counts[key]
            counts[key] += sum(diff for *_, diff in changes)
            if counts[key] != before:
                wanted += [(key, before, (time,), -1)] if before else []
                wanted += [(key, counts[key], (time,), 1)] if counts[key] else []
        given = [(key, n, (time,), diff) for n, (time, key, diff) in enumerate(some)]
        found = counted.raw_step([given[n] for n in rng.permutation(300)], 10 * step + 10)
        assert sorted(found) == sorted(wanted)
        hashes = hashes_of(np.array([key for key, *_ in found])).tolist()
        places = [(at, *row[1:3]) for at, row in zip(hashes, found, strict=True)]
        assert places == sorted(places)


def test_a_key_with_fewer_than_no_values_is_an_error() -> None:
    counted, at = Counted(), from_millis(7, sequence=3)
    counted.step([(8, 5, (0,), 1)], 1)
    with pytest.raises(NegativeCount) as error:
        counted.step([(8, 6, (at,), -3)], at + 1)
    assert str(error.value) == (
        "key 'key 8' of operator 'number': it has -2 values at time 7340035 (7 ms);"
        " send each removal once, and not before its addition."
    )
