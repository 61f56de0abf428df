"""Runs of keys find in an arrangement what a search of all its updates finds."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from meander.dataflow.generic_join import key_runs
from meander.dataflow.generic_join.key_runs import KeyRuns, Proposals
from meander.state.collections import merge
from meander.state.collections.columns import Int64s
from tests.support.collections.edge_arrangements import (
    CHUNK_ROWS,
    SHAPES,
    STEP,
    WIDE,
    EdgeArrangement,
    Row,
    Shape,
    arranged,
    random_edges,
    random_keys,
    random_limits,
)

NODES, UPDATES, ROWS = 12, 120, 60
SEEDS = range(4)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "CHUNK_ROWS", CHUNK_ROWS)


def sums_of(found: Proposals) -> Counter[tuple[int, int]]:
    """Return the sum of the diffs of each row with each value."""
    sums = Counter[tuple[int, int]]()
    columns = found.rows.tolist(), found.values.tolist(), found.diffs.tolist()
    for row, value, diff in zip(*columns, strict=True):
        assert diff, "a proposal changes a count"
        sums[row, value] += diff
    return Counter({place: diff for place, diff in sums.items() if diff})


def expected_sums(edges: EdgeArrangement, keys: Int64s, limits: Int64s) -> Counter[tuple[int, int]]:
    pairs = enumerate(zip(keys.tolist(), limits.tolist(), strict=True))
    sums = Counter[tuple[int, int]]()
    for row, (key, limit) in pairs:
        sums.update({(row, value): diff for value, diff in edges.values(key, limit).items()})
    return sums


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_proposals_are_the_values_of_each_key_before_the_limit_of_its_row(
    shape: Shape, seed: int
) -> None:
    rng = random.Random(seed)
    edges = random_edges(rng, shape, NODES, UPDATES)
    keys, limits = random_keys(rng, shape, NODES, ROWS), random_limits(rng, shape, ROWS)
    found = KeyRuns.of(keys).proposals(edges.cursor, limits)
    assert sums_of(found) == expected_sums(edges, keys, limits)
    assert len(found.rows), "the keys propose"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_support_is_the_sum_of_the_diffs_of_the_wanted_value(shape: Shape, seed: int) -> None:
    rng = random.Random(seed)
    edges = random_edges(rng, shape, NODES, UPDATES)
    keys, limits = random_keys(rng, shape, NODES, 4 * ROWS), random_limits(rng, shape, 4 * ROWS)
    wanted = random_keys(rng, shape, NODES, 4 * ROWS)[rng.sample(range(4 * ROWS), 4 * ROWS)]
    support = KeyRuns.of(keys).support(edges.cursor, limits, wanted)
    columns = zip(keys.tolist(), limits.tolist(), wanted.tolist(), strict=True)
    assert support.tolist() == [edges.values(key, limit)[value] for key, limit, value in columns]
    assert support.any() and not support.all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_counts_are_those_of_updates_before_the_limit_of_a_row_and_bound_its_proposals(
    shape: Shape, seed: int
) -> None:
    rng = random.Random(seed)
    edges = random_edges(rng, shape, NODES, UPDATES)
    keys, limits = random_keys(rng, shape, NODES, ROWS), random_limits(rng, shape, ROWS)
    runs = KeyRuns.of(keys)
    counts = runs.counts(edges.cursor, limits)
    pairs = zip(keys.tolist(), limits.tolist(), strict=True)
    assert counts.tolist() == [edges.held(*pair) for pair in pairs]
    proposed = np.bincount(runs.proposals(edges.cursor, limits).rows, minlength=ROWS)
    assert (proposed <= counts).all()


def test_a_count_compares_the_times_of_some_updates_and_takes_all_others_as_earlier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_runs, "COUNTED", 3)
    edges = arranged([[(7, value, value, 1) for value in range(5)]])
    limits = np.array([0, 1, 2, 2, 4, 9])
    counts = KeyRuns.of(np.full(6, 7)).counts(edges.cursor, limits)
    assert counts.tolist() == [2, 3, 4, 4, 5, 5]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_arrangements_have_what_the_lookups_must_tell_apart(shape: Shape) -> None:
    """The tests above would not see faults in parts without rows."""
    edges = random_edges(random.Random(0), shape, NODES, UPDATES)
    chunks = edges.arrangement.chunks
    assert len(chunks) >= shape.layers or shape.since
    assert any(len(chunk.dynamic) for chunk in chunks)
    assert any(len(chunk.static) for chunk in chunks) or not shape.since
    widths = {chunk.dynamic.values.dtype for chunk in chunks if len(chunk.dynamic)}
    assert (np.dtype(np.int64) in widths) == shape.wide


@pytest.mark.parametrize(
    "layers", [[[(7, 1, 3, 1), (7, 1, 7, -1)]], [[(7, 1, 3, 1)], [(7, 1, 13, -1)]]]
)
def test_a_removed_edge_is_there_between_its_two_times(layers: list[list[Row]]) -> None:
    edges, removed = arranged(layers), layers[-1][-1][2]
    limits = np.array([3, 4, removed, removed + 1])
    runs = KeyRuns.of(np.full(4, 7))
    assert sums_of(runs.proposals(edges.cursor, limits)) == {(1, 1): 1, (2, 1): 1}
    assert runs.support(edges.cursor, limits, np.ones(4, np.int64)).tolist() == [0, 1, 1, 0]


def test_keys_without_edges_propose_and_support_nothing() -> None:
    edges = random_edges(random.Random(0), SHAPES[2], NODES, UPDATES)
    runs, limits = KeyRuns.of(np.array([5, WIDE + 1, 5])), np.full(3, 10 * STEP)
    assert runs.counts(edges.cursor, limits).tolist() == [0, 0, 0]
    assert not len(runs.proposals(edges.cursor, limits).rows)
    assert not runs.support(edges.cursor, limits, np.array([0, WIDE, 1])).any()
