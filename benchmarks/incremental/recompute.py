"""The same answers computed anew from all edges: numpy and scipy, and igraph.

Each round of an engine stands against this: an answer computed anew takes the same time for one
change as for many. Building the matrix or the graph of the edges counts, as edges change.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import igraph
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from benchmarks.incremental.engine_runs import sized
from benchmarks.incremental.found import Found, Tick
from benchmarks.incremental.graph import Graph
from benchmarks.incremental.scale import Scale
from meander.state.collections.columns import Int64s

RUNS = 3


def degrees(graph: Graph, sources: Int64s, _: Int64s) -> Int64s:
    """Return how many nodes have each number of edges, by numpy."""
    return np.bincount(np.bincount(sources, minlength=graph.nodes))


def distances(graph: Graph, sources: Int64s, targets: Int64s) -> Int64s:
    """Return the distance of each node from the nearest root, or -1, by scipy."""
    # One node more leads to all roots.
    roots, top = graph.roots.values, graph.nodes
    starts = np.concatenate([sources, np.full(len(roots), top)])
    ends = np.concatenate([targets, roots])
    ones = np.ones(len(starts), np.int8)
    matrix = csr_array((ones, (starts, ends)), shape=(top + 1, top + 1))
    order, before = breadth_first_order(matrix, top)
    place, found = np.empty(top + 1, np.int64), np.full(top + 1, -1, np.int64)
    place[order] = np.arange(len(order))
    parents = place[before[order[1:]]]
    # The search visits the nodes of a distance one after another.
    start, distance = 1, 0
    while start < len(order):
        end = 1 + int(np.searchsorted(parents, start))
        found[order[start:end]] = distance
        start, distance = end, distance + 1
    return found[:top]


def igraph_degrees(graph: Graph, sources: Int64s, targets: Int64s) -> Int64s:
    """Return how many nodes have each number of edges, by igraph."""
    made = igraph.Graph(graph.nodes, np.column_stack([sources, targets]), directed=True)
    return np.bincount(made.outdegree())


def igraph_distances(graph: Graph, sources: Int64s, targets: Int64s) -> Int64s:
    """Return the distance of each node from the nearest root, or -1, by igraph."""
    roots, top = graph.roots.values, graph.nodes
    starts = np.concatenate([sources, np.full(len(roots), top)])
    ends = np.concatenate([targets, roots])
    made = igraph.Graph(top + 1, np.column_stack([starts, ends]), directed=True)
    (found,) = made.distances(top, mode="out")
    reached = np.array(found[:top])
    return np.where(np.isinf(reached), -1, reached - 1).astype(np.int64)


WAYS: dict[str, Callable[[Graph, Int64s, Int64s], Int64s]] = {
    "numpy_degrees": degrees, "igraph_degrees": igraph_degrees,
    "scipy_bfs": distances, "igraph_bfs": igraph_distances,
}  # fmt: skip


def recompute(scale: Scale, tick: Tick, size: str) -> Found:
    """Time each way, after some changes."""
    graph = sized(size, scale)
    edges = graph.after(1_000)
    found = Found()
    for name, way in WAYS.items():
        took = list[float]()
        for _ in range(RUNS):
            began = perf_counter()
            way(graph, *edges)
            took.append(perf_counter() - began)
            tick(1)
        found.figures[f"{name}_s"] = float(np.median(took))
    return found
