"""The flows that are measured: the distribution of degrees, distances from roots, and the packages
that one needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.incremental.debian import ROOT
from benchmarks.incremental.members import NOTHING
from meander import Flow
from meander.app.flows.graphs import bfs
from meander.dataflow.api.collection import Collection
from meander.dataflow.interfaces import SinkSpec, SourceSpec
from meander.dataflow.simulation.in_memory import ListSink

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

    return bfs(edges, roots)


def packages(changes: Collection) -> Collection:
    """Return each package that a root needs, with its distance."""
    edges = changes.filter(lambda keys, _: keys != ROOT, "edges")
    roots = changes.filter(lambda keys, _: keys == ROOT, "roots").map(
        lambda _, names: (names, np.zeros(len(names), np.int64)), value=int
    )
    return bfs(edges, roots)


BUILDS: dict[str, tuple[Build, type]] = {
    "degrees": (degrees, int), "bfs": (distances, int), "packages": (packages, str),
}  # fmt: skip
"""The flows, and the type of their keys and values."""


def flow_of(name: str, source: SourceSpec[Any], sink: SinkSpec) -> Flow:
    """Return a flow of `BUILDS` between a source of rows and a sink."""
    flow, (build, kind) = Flow("bench"), BUILDS[name]
    build(flow.source(source).collection(_row, key=kind, value=kind)).changes().sink(sink)
    return flow


def fed(name: str) -> Flow:
    """Return a flow of `BUILDS` whose records a process gives itself."""
    return flow_of(name, NOTHING, ListSink())


def _row(row: Any) -> Any:  # noqa: ANN401 - of any collection
    return row
