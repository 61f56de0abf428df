"""A flow with each kind of arrangement, and their rows, from all input and from checkpoints."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp

from meander import Collection
from meander.app.flows.graphs import bfs
from meander.dataflow.operators.collection.checkpointed_rows import CollectionRows
from meander.dataflow.simulation.simulator import DurableWorld
from meander.state.checkpoint.bin_reader import BinReader
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.store.store import Database
from tests.support.collections.graph_flows import (
    Answer,
    Edge,
    GraphFlow,
    History,
    expected_bfs,
    input_at,
)

ARRANGEMENTS = (
    ("edges", "output"), ("once", "output"), ("once", "input"), ("degree", "output"),
    ("further", "left"), ("further", "right"), ("nearest", "output"), ("nearest", "input"),
    ("both", "left"), ("both", "right"),
)  # fmt: skip
"""The operators of the flow, and the names of their arrangements."""


def viewed(edges: Collection, roots: Collection) -> Collection:
    """Return each reached node with its distance and the number of its edges."""
    arranged = edges.arrange("edges")
    degree = arranged.distinct("once").count("degree")
    return bfs(arranged, roots).join("both", degree, lambda node, far, many: (node, far + many))


VIEWED = GraphFlow(viewed, expected_bfs)
"""The flow; nothing compares its answer."""


def expected_rows(history: History, operator: str, name: str, millis: int) -> Answer:
    """Compute the rows of an arrangement at a time from all input."""
    edges, roots = input_at(history, millis)
    distances = expected_bfs(edges, roots)
    match operator, name:
        case ("edges", "output") | ("once", _) | ("further", "right"):
            return edges
        case ("degree", "output") | ("both", "right"):
            return _degrees(edges)
        case ("nearest", "input"):
            return _steps(edges, distances) + roots
    return distances


def _degrees(edges: Counter[Edge]) -> Answer:
    return Counter(Counter(node for node, _ in edges.elements()).items())


def _steps(edges: Counter[Edge], distances: Answer) -> Answer:
    far = {node: distance for node, distance in distances}  # noqa: C416
    return Counter((to, far[node] + 1) for node, to in edges.elements() if node in far)


def stored_bins(
    world: DurableWorld, checkpoint: Checkpoint, operator: str, folder: Path
) -> list[list[tuple[bytes, bytes]]]:
    """Return the entries of each bin of an operator in a checkpoint."""
    fresh = mkdtemp(dir=folder)
    with closing(Database(fresh, 8 << 20)) as database:
        # Tables name the store of the simulated worker that wrote them.
        store = database.store(f"0/{operator}")
        reader = BinReader(checkpoint, operator, store, world.state, world.in_flight, lambda: None)
        return [*reader.entries()]


def answer(rows: CollectionRows) -> Answer:
    """Return rows as their counts by key and value."""
    columns = rows.keys.tolist(), rows.values.tolist(), rows.counts.tolist()
    return Counter({(key, value): count for key, value, count in zip(*columns, strict=True)})
