"""Each buffered row leaves once: with its bin, or with all (I2)."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from meander.dataflow.operators.collection.buffered_updates import BufferedUpdates
from meander.state.collections.kernels import hashes_of
from meander.state.collections.layer import Updates
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin
from tests.support.collections.columns import Row, rows_of

SPACE = BinSpace(3)


def bins_of(updates: Updates) -> set[int]:
    return {*SPACE.bins_of(hashes_of(updates.keys)).tolist()}


@pytest.mark.parametrize("seed", range(20))
def test_each_row_leaves_once_with_its_bin(seed: int) -> None:
    rng, buffered, waiting = random.Random(seed), BufferedUpdates(SPACE), Counter[Row]()
    for now in range(60):
        rows = [(rng.randrange(30), now, (now,), 1) for _ in range(rng.choice([1, 2, 20]))]
        buffered.add(Updates.of(rows))
        waiting.update(rows)
        some = [(bin, buffered.take(bin)) for bin in map(Bin, rng.sample(range(8), 2))]
        if len(buffered) and rng.random() < 0.1:
            some += buffered.take_all()
            assert not len(buffered)
        for bin, taken in some:
            assert bins_of(taken) <= {bin}
            waiting.subtract(rows_of([taken]))
        assert not any(bins_of(taken) & bins_of(Updates.of([row])) for _, taken in some
                       for row in +waiting)  # fmt: skip
        assert min(waiting.values()) >= 0
        assert len(buffered) == waiting.total()
