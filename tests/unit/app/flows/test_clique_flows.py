"""The shipped flows of cliques answer for JSON records as networkx does, and set others aside."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any, cast

import pytest

from benchmarks.incremental.debian import installed_list, reached_from
from meander import Flow
from meander.app.flows.cliques import four_cliques_flow, triangles_flow
from meander.state.times.time import to_millis
from meander.testing import TestFlow
from tests.support.collections.clique_flows import Rows, expected_counts, expected_requested

FLOWS = {flow.name: (flow, size) for flow, size in ((triangles_flow, 3), (four_cliques_flow, 4))}
EDGES = [*combinations(range(1, 6), 2), (7, 6), (8, 6), (8, 7), (1, 6)]


def rows(run: TestFlow, topic: str, until: int) -> Rows:
    """Sum up the changes of an answer up to a time in milliseconds."""
    found = Rows()
    for result in run.results(topic):
        if to_millis(result.time) <= until:
            node, other, diff = cast(dict[str, Any], result.value).values()
            found[node, tuple(other) if isinstance(other, list) else other] += diff
    return Rows({row: count for row, count in found.items() if count})


def feed_edge(run: TestFlow, edge: tuple[int, int], diff: int = 1, ms: int = 1000) -> None:
    run.feed("edges", {"edge": edge, "diff": diff}, ms=ms)


@pytest.mark.parametrize(("flow", "size"), FLOWS.values(), ids=FLOWS)
def test_a_shipped_flow_follows_edges_and_requests(flow: Flow, size: int) -> None:
    with TestFlow(flow, workers=2, seed=5, partitions=1) as run:
        for n, edge in enumerate(EDGES):
            feed_edge(run, edge, ms=1000 + n)
        run.feed("requests", *({"node": node, "diff": 1} for node in (2, 6, 2)), ms=1005)
        feed_edge(run, (2, 3), -1, ms=2000)
        run.feed("requests", {"node": 6, "diff": -1}, ms=3000)
        run.run()
        edges, requests = Counter(EDGES), Counter([(2, 0), (6, 0)])
        for until, edges_then, requests_then in (
            (1999, edges, requests),
            (2999, edges - Counter([(2, 3)]), requests),
            (3000, edges - Counter([(2, 3)]), Counter([(2, 0)])),
        ):
            given = edges_then, requests_then
            assert rows(run, flow.name, until) == expected_counts(size)(*given)
            found = rows(run, f"{flow.name}-requested", until)
            assert found == expected_requested(size)(*given)
            assert found


def test_an_edge_counts_once_until_all_its_additions_are_removed() -> None:
    with TestFlow(triangles_flow, seed=1, partitions=1) as run:
        for edge in (1, 2), (2, 3), (1, 3), (2, 1):
            feed_edge(run, edge)
        feed_edge(run, (1, 2), -1, ms=2000)
        feed_edge(run, (2, 1), -1, ms=3000)
        run.run()
        every = {(node, 1) for node in (1, 2, 3, None)}
        for until in 1000, 2000:
            assert {*rows(run, "triangles", until)} == every
        assert rows(run, "triangles", 3000) == {}


def test_cliques_that_no_request_names_do_not_leave() -> None:
    with TestFlow(triangles_flow, seed=1, partitions=1) as run:
        for edge in EDGES:
            feed_edge(run, edge)
        run.run()
        assert run.values("triangles") != []
        assert run.values("triangles-requested") == []


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"edge": [1, 2]}, 'it is no edge between two different integers, such as {"edge": [1, 2]'),
        ({"edge": [3, 3], "diff": 1}, "it is no edge between two different integers"),
        ({"edge": ["a", 2], "diff": 1}, "it is no edge between two different integers"),
        ({"edge": [1, 2], "diff": 2}, "with a diff of 1 or -1"),
        ({"node": 1, "diff": 1}, "it is no edge"),
        ({"edge": [2, 1 << 63], "diff": 1}, "its value is 9223372036854775808"),
        ({"edge": [True, 2], "diff": 1}, "its key is True"),
    ],
)
def test_a_record_that_is_no_edge_becomes_a_dead_letter(record: object, reason: str) -> None:
    with TestFlow(triangles_flow, seed=1) as run:
        run.feed("edges", record)
        run.run()
        (letter,) = run.dead_letters
        assert (letter.operator, letter.value) == ("read edges", record)
        assert reason in letter.reason


@pytest.mark.parametrize("record", [{"node": "a", "diff": 1}, {"node": 1}, {"edge": [1, 2]}])
def test_a_record_that_is_no_request_becomes_a_dead_letter(record: object) -> None:
    with TestFlow(triangles_flow, seed=1) as run:
        run.feed("requests", record)
        run.run()
        (letter,) = run.dead_letters
        assert (letter.operator, letter.value) == ("read requests", record)


@pytest.mark.parametrize(("flow", "size"), FLOWS.values(), ids=FLOWS)
def test_the_cliques_of_the_dependencies_of_a_package_are_those_of_its_graph(
    flow: Flow, size: int
) -> None:
    listed = reached_from(installed_list(), "gimp")
    if not listed:
        pytest.skip("apt-cache lists no packages")
    numbers = {name: n for n, name in enumerate(sorted({name for one in listed for name in one}))}
    edges = [(numbers[one], numbers[other]) for one, other in listed if one != other]
    with TestFlow(flow, workers=2, seed=2, partitions=1) as run:
        for edge in edges:
            feed_edge(run, edge)
        run.feed("requests", {"node": numbers["libc6"], "diff": 1}, ms=1000)
        run.run()
        given = Counter(edges), Counter([(numbers["libc6"], 0)])
        assert rows(run, flow.name, 1000) == expected_counts(size)(*given)
        assert rows(run, f"{flow.name}-requested", 1000) == expected_requested(size)(*given)
