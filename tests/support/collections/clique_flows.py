"""The answers of the shipped flows of cliques, computed from all edges by networkx."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import networkx as nx
import numpy as np

from meander import Collection
from meander.app.flows.cliques import Nodes, counts, requested

Rows = Counter[tuple[Any, Any]]
Expected = Callable[[Counter[tuple[int, int]], Counter[tuple[int, int]]], Rows]


def cliques(edges: Counter[tuple[int, int]], size: int) -> list[tuple[int, ...]]:
    """Return the cliques of a size, each with its nodes in ascending order."""
    graph = nx.Graph(one for one in edges if one[0] != one[1])
    found = takewhile(lambda one: len(one) <= size, nx.enumerate_all_cliques(graph))
    return [tuple(sorted(one)) for one in found if len(one) == size]


def expected_counts(size: int) -> Expected:
    """Return the computation of the number of cliques of each node, and of all under None."""

    def expected(edges: Counter[tuple[int, int]], _: Counter[tuple[int, int]]) -> Rows:
        found = cliques(edges, size)
        of_nodes = Counter[int | None](node for one in found for node in one)
        return Counter((of_nodes | Counter({None: len(found)})).items())

    return expected


def expected_requested(size: int) -> Expected:
    """Return the computation of the cliques of requested nodes."""

    def expected(edges: Counter[tuple[int, int]], requests: Counter[tuple[int, int]]) -> Rows:
        nodes = {node for node, _ in requests}
        return Counter((node, one) for one in cliques(edges, size) for node in nodes & {*one})

    return expected


ALL, DIGIT = -1, 100
"""The key of the number of all cliques, and the factor between the nodes of a clique in a value."""


def answers(size: int) -> Callable[[Collection, Collection], Collection]:
    """Return a flow of both answers over directed edges, as rows of numbers."""

    def build(edges: Collection, requests: Collection) -> Collection:
        different = edges.filter(lambda starts, ends: starts != ends)
        once = different.map(_ascending).distinct("once").arrange("edges")
        nodes, every = counts(once, size)
        found = requested(once, requests.distinct("requests"), size).collection(
            lambda one: (one["node"], _number(one["clique"]), one["diff"])
        )
        return nodes.concat(every.map(lambda zeros, counts: (zeros + ALL, counts)), found)

    return build


def expected_answers(size: int) -> Callable[..., Counter[tuple[int, int]]]:
    """Return the computation of both answers as rows of numbers."""

    def expected(
        edges: Counter[tuple[int, int]], requests: Counter[tuple[int, int]]
    ) -> Counter[tuple[int, int]]:
        counted = expected_counts(size)(edges, requests)
        found = expected_requested(size)(edges, requests)
        return Counter(
            [(ALL if node is None else node, count) for node, count in counted]
            + [(node, _number(one)) for node, one in found]
        )

    return expected


def _ascending(starts: Nodes, ends: Nodes) -> tuple[Nodes, Nodes]:
    return np.minimum(starts, ends), np.maximum(starts, ends)


def _number(nodes: tuple[int, ...]) -> int:
    """Return the nodes of a clique as one number, greater than any count."""
    number = DIGIT
    for node in nodes:
        number = number * DIGIT + node
    return number
