"""The flows that are measured: the distribution of degrees, and distances from roots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.incremental.graph import Row
from meander import Flow
from meander.dataflow.api.collection import Collection
from meander.dataflow.interfaces import SinkSpec, SourceSpec

Build = Callable[[Collection], Collection]


def degrees(edges: Collection) -> Collection:
    """Return how many nodes have each number of edges. Which nodes makes no difference, so the
    rows of a number add up to one."""
    degrees = edges.count("degree").map(lambda _, counts: (counts, np.zeros_like(counts)))
    return degrees.count("nodes")


def distances(changes: Collection) -> Collection:
    """Return each node that a root reaches, with its distance."""
    edges = changes.filter(lambda keys, _: keys >= 0, "edges")
    roots = changes.filter(lambda keys, _: keys < 0, "roots").map(
        lambda _, nodes: (nodes, np.zeros_like(nodes))
    )

    def body(nodes: Collection) -> Collection:
        further = nodes.join("further", edges, lambda _, distance, to: (to, distance + 1))
        return further.concat(roots).minimum("least")

    return roots.iterate("search", body)


BUILDS: dict[str, Build] = {"degrees": degrees, "bfs": distances}


def flow_of(name: str, source: SourceSpec[Any], sink: SinkSpec) -> Flow:
    """Return a flow of `BUILDS` between a source of rows and a sink."""
    flow = Flow("bench")
    BUILDS[name](flow.source(source).collection(_row)).changes().sink(sink)
    return flow


def _row(row: Row) -> Row:
    return row
