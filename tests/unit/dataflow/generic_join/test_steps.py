"""Each step does to prefixes what a search of all edges says, by the relation of their choice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from meander.dataflow.generic_join.prefixes import Prefixes, proposals_of
from meander.dataflow.generic_join.query import Relation
from meander.dataflow.generic_join.steps import Count, Intersect, Propose, Relations
from meander.dataflow.records.batch import Batch
from meander.state.collections import merge
from meander.state.collections.cursor import Cursor
from tests.support.collections.edge_arrangements import (
    CHUNK_ROWS,
    SHAPES,
    EdgeArrangement,
    Shape,
    random_edges,
    random_keys,
    random_limits,
)

NODES, UPDATES, ROWS, WIDTH = 12, 120, 60, 2
RELATIONS: Sequence[Relation | None] = [
    Relation(0, False, False), Relation(1, True, True), None, Relation(0, True, False),
    Relation(2, False, True), Relation(1, False, False),
]  # fmt: skip
"""The relation of each choice: three queries with two choices each."""
FOLLOWING = [Relation(choice % 3, False, False) for choice in range(len(RELATIONS))]
Row = tuple[int, ...]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "CHUNK_ROWS", CHUNK_ROWS)


class Case:
    """Edges in both directions, and prefixes of three nodes."""

    def __init__(self, shape: Shape, seed: int) -> None:
        rng = random.Random(seed)
        self.edges = [random_edges(rng, shape, NODES, UPDATES) for _ in range(2)]
        self.prefixes = Prefixes(
            # A prefix is not looked up at times that the arrangements join.
            random_limits(rng, shape, ROWS),
            np.array([rng.randrange(len(RELATIONS)) for _ in range(ROWS)]),
            (*(random_keys(rng, shape, NODES, ROWS) for _ in range(3)),),
            np.array([rng.choice([1, -1, 2]) for _ in range(ROWS)]),
        )

    @property
    def cursors(self) -> list[Cursor]:
        return [one.cursor for one in self.edges]

    def edges_of(self, relation: Relation) -> EdgeArrangement:
        return self.edges[relation.backward]


def batch_of(prefixes: Prefixes) -> Batch:
    """Return prefixes as a step of `RELATIONS` gets them."""
    return prefixes.batch(Relations.of(RELATIONS).keys(prefixes))


def rows_of(prefixes: Prefixes) -> list[Row]:
    """Return time, choice, nodes and diff of each prefix."""
    columns = prefixes.times, prefixes.choices, *prefixes.nodes, prefixes.diffs
    return [*zip(*(column.tolist() for column in columns), strict=True)]


def summed(rows: Sequence[Row]) -> Counter[Row]:
    """Return the sum of the diffs of equal prefixes."""
    sums = Counter[Row]()
    for *prefix, diff in rows:
        sums[tuple(prefix)] += diff
    return Counter({prefix: diff for prefix, diff in sums.items() if diff})


def keys_of(batch: Batch) -> list[int]:
    return [values[0] for values in batch.values]  # type: ignore[index]


@pytest.fixture(params=[(shape, seed) for shape in SHAPES for seed in range(5)], ids=str)
def case(request: pytest.FixtureRequest, small_chunks: None) -> Case:
    return Case(*request.param)


@pytest.mark.parametrize("distinct", [True, False])
def test_a_proposal_extends_a_prefix_by_each_value_of_its_key(case: Case, distinct: bool) -> None:
    step = Propose(Relations.of(RELATIONS), Relations.of(FOLLOWING), distinct)
    counted = batch_of(_with_proposals(case.prefixes, 1))
    found = Prefixes.of(step(counted, case.cursors).batch, counted=False)
    expected = list[Row]()
    for time, choice, *nodes, diff in rows_of(case.prefixes):
        if (one := RELATIONS[choice]) is None:
            continue
        values = case.edges_of(one).values(nodes[one.place], time + 1 - one.before)
        for value, count in values.items():
            if value not in nodes or not distinct:
                expected.append((time, choice, *nodes, value, diff * count))
    assert summed(rows_of(found)) == summed(expected)
    assert len(found)


def test_an_intersection_keeps_what_its_relation_supports(case: Case) -> None:
    step = Intersect(Relations.of(RELATIONS), Relations.of(FOLLOWING))
    found = Prefixes.of(step(batch_of(case.prefixes), case.cursors).batch, counted=False)
    expected = list[Row]()
    for time, choice, *nodes, diff in rows_of(case.prefixes):
        one, support = RELATIONS[choice], 1
        if one is not None:
            values = case.edges_of(one).values(nodes[one.place], time + 1 - one.before)
            support = values[nodes[-1]]
        if support:
            expected.append((time, choice, *nodes, diff * support))
    assert rows_of(found) == expected, "prefixes keep their order"
    assert 0 < len(expected) < ROWS


def test_the_relation_with_the_fewest_updates_before_its_limit_proposes(case: Case) -> None:
    others: list[Relation | None] = [RELATIONS[-1 - choice] for choice in range(len(RELATIONS))]
    counts = [RELATIONS, others]
    batch = batch_of(case.prefixes)
    behind = Relations.of(others), Relations.of(FOLLOWING)
    for number, (some, after) in enumerate(zip(counts, behind, strict=True)):
        step = Count(number, WIDTH, Relations.of(some), after)
        batch = step(batch, case.cursors).batch
    expected = list[tuple[int, Row]]()
    for time, choice, *nodes, diff in rows_of(case.prefixes):
        found = list[tuple[int, int]]()
        for number, some in enumerate(counts):
            # The first count may choose another relation of the same query.
            if (one := some[_chosen(choice, found)]) is not None:
                held = case.edges_of(one).held(nodes[one.place], time + 1 - one.before)
                found.append((held, number))
        if all(count for count, _ in found):
            row = time, _chosen(choice, found), *nodes, diff
            expected.append((min(found)[0] if found else np.iinfo(np.int64).max, row))
    assert [*zip(proposals_of(batch).tolist(), rows_of(Prefixes.of(batch, True)), strict=True)] == (
        expected
    )


def _chosen(choice: int, found: Sequence[tuple[int, int]]) -> int:
    """Return the choice of a prefix after some counts."""
    return choice - choice % WIDTH + min(found)[1] if found else choice


def _with_proposals(prefixes: Prefixes, count: int) -> Prefixes:
    columns = prefixes.times, prefixes.choices, prefixes.nodes, prefixes.diffs
    return Prefixes(*columns, np.full(len(prefixes), count))


def test_a_step_names_the_row_of_each_result() -> None:
    case = Case(SHAPES[0], 0)
    step = Propose(Relations.of(RELATIONS), Relations.of(FOLLOWING), distinct=False)
    found = step(batch_of(_with_proposals(case.prefixes, 1)), case.cursors)
    results, given = Prefixes.of(found.batch, counted=False), case.prefixes.take(found.rows)
    assert len(results)
    for result, one in zip(results.nodes, given.nodes, strict=False):
        assert result.tolist() == one.tolist()


def test_a_step_gives_each_prefix_the_key_of_the_step_behind_it() -> None:
    case = Case(SHAPES[0], 0)
    step = Propose(Relations.of(RELATIONS), Relations.of(FOLLOWING), distinct=False)
    batch = step(batch_of(_with_proposals(case.prefixes, 1)), case.cursors).batch
    rows = rows_of(Prefixes.of(batch, counted=False))
    assert keys_of(batch) == [nodes[choice % 3] for _, choice, *nodes, _ in rows]


def test_the_first_count_of_an_extension_forgets_the_choice_of_the_one_before() -> None:
    case = Case(SHAPES[0], 0)
    same = Relations.of([Relation(0, False, False)] * len(RELATIONS))
    step = Count(0, WIDTH, same, same)
    found = Prefixes.of(step(batch_of(case.prefixes), case.cursors).batch, True)
    assert set((found.choices % WIDTH).tolist()) == {0}
    assert (case.prefixes.choices % WIDTH).any()
