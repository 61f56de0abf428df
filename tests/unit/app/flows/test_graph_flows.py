"""The shipped flows of graphs answer for JSON records as networkx does, and set others aside."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from meander import Flow
from meander.app.flows.graphs import bfs_flow, components_flow, degrees_flow
from meander.state.times.time import to_millis
from meander.testing import TestFlow
from tests.support.collections.graph_flows import GRAPH_FLOWS, Answer

EDGES = [(1, 2), (2, 3), (3, 1), (4, 5), (1, 5)]
FLOWS = {flow.name: flow for flow in (degrees_flow, bfs_flow, components_flow)}


def answer(run: TestFlow, topic: str, until: int) -> Answer:
    """Sum up the changes of an answer up to a time in milliseconds."""
    found = Answer()
    for result in run.results(topic):
        if to_millis(result.time) <= until:
            change = cast(dict[str, int], result.value)
            found[change["key"], change["value"]] += change["diff"]
    return Answer({row: count for row, count in found.items() if count})


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_a_shipped_flow_follows_edges_and_roots(flow: Flow) -> None:
    graph = GRAPH_FLOWS[flow.name]
    with TestFlow(flow, seed=3, partitions=1) as run:
        for n, edge in enumerate(EDGES):
            run.feed("edges", {"edge": edge, "diff": 1}, ms=1000 + n)
        run.feed("edges", {"edge": [2, 3], "diff": -1}, ms=2000)
        if flow is bfs_flow:
            run.feed("roots", {"root": 1, "diff": 1}, ms=1002)
        run.run()
        edges, roots = Counter(EDGES), Counter([(1, 0)])
        assert answer(run, flow.name, 1999) == graph.expected(edges, roots)
        assert answer(run, flow.name, 2000) == graph.expected(edges - Counter([(2, 3)]), roots)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"edge": [1, 2]}, 'it is no edge, such as {"edge": [1, 2], "diff": 1}'),
        ({"edge": [1, 2, 3], "diff": 1}, "it is no edge"),
        ({"edge": "12", "diff": 1}, "it is no edge"),
        ({"edge": [1, 2], "diff": 2}, "with a diff of 1 or -1"),
        ({"root": 1, "diff": 1}, "it is no edge"),
        ([1, 2], "it is no edge"),
        ({"edge": ["a", 2], "diff": 1}, "its key is 'a', no integer of 64 bits"),
        ({"edge": [1, 1 << 63], "diff": 1}, "its value is 9223372036854775808"),
        ({"edge": [1, 2], "diff": True}, "its diff is True"),
    ],
)
def test_a_record_of_another_shape_becomes_a_dead_letter(record: object, reason: str) -> None:
    with TestFlow(degrees_flow, seed=1) as run:
        run.feed("edges", record, {"edge": [1, 2], "diff": 1})
        run.run()
        (letter,) = run.dead_letters
        assert (letter.operator, letter.value) == ("read edges", record)
        assert reason in letter.reason
        assert run.values("degrees") == [{"key": 1, "value": 1, "diff": 1}]


def test_a_record_that_is_no_root_becomes_a_dead_letter() -> None:
    with TestFlow(bfs_flow, seed=1) as run:
        run.feed("roots", {"root": 1, "diff": 0}, {"root": 1, "diff": 1})
        run.run()
        assert [letter.operator for letter in run.dead_letters] == ["read roots"]
        assert run.values("bfs") == [{"key": 1, "value": 0, "diff": 1}]
