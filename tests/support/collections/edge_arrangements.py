"""Arrangements with random updates in several layers and chunks, and what their keys hold."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from meander.dataflow.collections.arrangement import Arrangement
from meander.state.collections.columns import Int64s
from meander.state.collections.cursor import Cursor
from meander.state.collections.description import LayerDescription
from meander.state.collections.layer import Updates
from meander.state.collections.merge import UNBOUNDED, layer_of
from meander.state.times.antichain import Antichain

CHUNK_ROWS = 8
"""The most rows of a part of a chunk, for tests that patch it."""
WIDE = (1 << 40) + 1
"""Nodes are multiples of it where they do not fit into 32 bits."""
ABSENT = 3
"""The nodes without any update."""
Row = tuple[int, int, int, int]
"""Key, value, time and diff."""


class EdgeArrangement(NamedTuple):
    """An arrangement, and all updates that it has got."""

    arrangement: Arrangement
    rows: Sequence[Row]

    @property
    def cursor(self) -> Cursor:
        return self.arrangement.whole_cursor()

    def held(self, key: int, before: int) -> int:
        """Return the number of updates of a key in all chunks, of times below another."""
        found = (chunk.updates() for chunk in self.arrangement.chunks)
        return sum(int(((one.keys == key) & (one.times[:, 0] < before)).sum()) for one in found)

    def values(self, key: int, before: int) -> Counter[int]:
        """Return the sum of the diffs of each value of a key, of times below another."""
        values = Counter[int]()
        for one, value, time, diff in self.rows:
            values[value] += diff if one == key and time < before else 0
        return Counter({value: diff for value, diff in values.items() if diff})


class Shape(NamedTuple):
    """How updates lie in an arrangement."""

    layers: int
    wide: bool
    since: int
    """The time up to which a compaction joins times; 0 for none."""


STEP = 10
"""The times of a layer."""
SHAPES = [
    Shape(layers=1, wide=False, since=0), Shape(layers=4, wide=False, since=0),
    Shape(layers=4, wide=True, since=0), Shape(layers=4, wide=False, since=2 * STEP),
    Shape(layers=4, wide=True, since=2 * STEP), Shape(layers=3, wide=False, since=3 * STEP),
]  # fmt: skip


def arranged(layers: Sequence[Sequence[Row]], since: int = 0) -> EdgeArrangement:
    """Return an arrangement with a layer for each `STEP` of times, compacted up to a time."""
    arrangement = Arrangement(depth=1)
    reader = arrangement.reader(1)
    for number, rows in enumerate(layers, 1):
        updates = Updates.of([(key, value, (time,), diff) for key, value, time, diff in rows])
        upper = Antichain.of(number * STEP)
        bounds = LayerDescription(arrangement.upper, upper, arrangement.trace.since)
        arrangement.insert(layer_of(updates, bounds))
        if since:
            reader.advance(Antichain.of(min(number * STEP, since)))
    while since and arrangement.compact(UNBOUNDED):
        pass
    return EdgeArrangement(arrangement, [*chain(*layers)])


def random_edges(rng: random.Random, shape: Shape, nodes: int, rows: int) -> EdgeArrangement:
    """Return an arrangement of updates between nodes; many of them cancel later."""
    scale, layers = WIDE if shape.wide else 1, list[list[Row]]()
    for number in range(shape.layers):
        layers.append([])
        for _ in range(rows // shape.layers):
            time = rng.randrange(number * STEP, (number + 1) * STEP)
            if (earlier := [*chain(*layers)]) and rng.random() < 0.4:
                key, value, _, diff = rng.choice(earlier)
                layers[-1].append((key, value, time, -diff))
            else:
                key, value = (scale * (rng.randrange(nodes) - nodes // 2) for _ in "12")
                layers[-1].append((key, value, time, rng.choice([1, 1, 1, 2])))
    return arranged(layers, shape.since)


def random_keys(rng: random.Random, shape: Shape, nodes: int, count: int) -> Int64s:
    """Return keys in runs, of which some come again, and some have no edges."""
    scale, keys = WIDE if shape.wide else 1, list[int]()
    while len(keys) < count:
        node = rng.randrange(nodes + ABSENT) - nodes // 2
        keys += [scale * node] * rng.randint(1, 4)
    return np.array(keys[:count], np.int64)


def random_limits(rng: random.Random, shape: Shape, count: int) -> Int64s:
    """Return limits of times on both sides of all that the arrangement tells apart."""
    last = shape.layers * STEP + 1
    return np.array([rng.randint(shape.since + 1, last) for _ in range(count)], np.int64)
