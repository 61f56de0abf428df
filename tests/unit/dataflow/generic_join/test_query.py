"""Queries: what a pattern says, which texts are refused, and what the changes of an edge meet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meander.dataflow.generic_join.query import DeltaQuery, PatternEdge, Relation, parse
from meander.schemas.errors import SetupError

TRIANGLE, DIAMOND, TWO_WAY = "a->b, b->c, a->c", "a->b, a->c, b->d, c->d", "a->b, b->a, b->c"
PATTERNS = [
    "a->b", "a->b, c->b", TRIANGLE, DIAMOND, TWO_WAY, "a->b, b->c, c->a",
    "a->b, b->c, c->d, d->e, e->a", "a->b, a->c, a->d, b->c, b->d, c->d",
    "a->b, b->a, b->c, c->b, a->c, c->a",
]  # fmt: skip


def test_nodes_are_named_in_the_order_of_the_text() -> None:
    query = parse(" b ->a,_1->b ,\n a->x_2")
    assert query.names == ("b", "a", "_1", "x_2")
    assert query.edges == (PatternEdge(0, 1), PatternEdge(2, 0), PatternEdge(1, 3))


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        ("", "'' is no edge", 'write edges as "a->b, b->c"'),
        ("a->b,", "'' is no edge", 'write edges as "a->b, b->c"'),
        ("a->b; b->c", "'a->b; b->c' is no edge", 'write edges as "a->b, b->c"'),
        ("a->b->c", "'a->b->c' is no edge", 'write edges as "a->b, b->c"'),
        ("a->b, b<-c", "'b<-c' is no edge", 'write edges as "a->b, b->c"'),
        ("a->1", "'a->1' is no edge", 'write edges as "a->b, b->c"'),
        (
            "a->b, b->b", "its edge b->b leads from a node to itself",
            "name two nodes, and filter the edges before the pattern",
        ),
        ("a->b, b->c, a -> b", "it has the edge a -> b twice", "name it once"),
        (
            "a->b, c->d", "no path leads from node a to node c",
            "connect all nodes, or use two patterns",
        ),
        (
            "a->b, c->d, b->a, e->c", "no path leads from node a to node c",
            "connect all nodes, or use two patterns",
        ),
    ],
)  # fmt: skip
def test_a_wrong_text_is_refused_with_its_cause_and_a_remedy(
    text: str, cause: str, remedy: str
) -> None:
    with pytest.raises(SetupError) as raised:
        parse(text)
    found = raised.value.subject, raised.value.cause, raised.value.remedy
    assert found == (f"pattern {text!r}", cause, remedy)


def test_a_path_in_any_direction_connects_nodes() -> None:
    assert parse("a->b, c->d, c->b").names == ("a", "b", "c", "d")


def test_an_order_begins_with_the_seed_and_prefers_nodes_with_many_relations() -> None:
    orders = [one.order for one in parse("a->b, b->c, b->d, c->d, a->d").deltas()]
    assert orders == [(0, 1, 3, 2), (1, 2, 3, 0), (1, 3, 0, 2), (2, 3, 1, 0), (0, 3, 1, 2)]


def test_antiparallel_edges_check_the_seed_of_each_other() -> None:
    forth, back, last = parse(TWO_WAY).deltas()
    assert forth.checks == (Relation(place=0, backward=True, before=True),)
    assert back.checks == (Relation(place=0, backward=True, before=False),)
    assert last.checks == ()
    assert last.extensions == (
        (Relation(place=0, backward=True, before=False),
         Relation(place=0, backward=False, before=False)),
    )  # fmt: skip


def relations_of(query: DeltaQuery) -> Iterator[tuple[PatternEdge, bool]]:
    """Yield the edge of each relation, and whether only changes from before count."""
    steps = [(1, query.checks), *enumerate(query.extensions, 2)]
    for place, relations in steps:
        for one in relations:
            assert one.place < place, "a relation leads to a bound node"
            bound, node = query.order[one.place], query.order[place]
            ends = (node, bound) if one.backward else (bound, node)
            yield PatternEdge(*ends), one.before


@pytest.mark.parametrize("text", PATTERNS)
def test_each_query_has_its_seed_and_each_other_edge_once(text: str) -> None:
    query = parse(text)
    for seed, one in zip(query.edges, query.deltas(), strict=True):
        assert one.order[:2] == (seed.start, seed.end)
        assert sorted(one.order) == [*range(len(query.names))]
        found = sorted((query.edges.index(edge), before) for edge, before in relations_of(one))
        number = query.edges.index(seed)
        others = [other for other in range(len(query.edges)) if other != number]
        assert found == [(other, other > number) for other in others]
        assert all(one.extensions), "each extension has a relation that proposes"
