"""The arrangements of a flow: which operator keeps each, and under which number.

Guarantees the numbers that the logics give (`operators/collection/logic.py`). An operator that
reads an arrangement of another operator keeps none in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meander.dataflow.api.nodes import (
    ArrangeNode,
    CountNode,
    JoinNode,
    Node,
    Output,
    ReduceNode,
    StatefulCollectionNode,
)
from meander.state.checkpoint.arrangements import KeptArrangement


def kept_arrangements(nodes: Iterable[Node]) -> Iterator[KeptArrangement]:
    """Yield the arrangements of each operator, in order of definition."""
    for node in nodes:
        match node:
            case ArrangeNode(name=name) | CountNode(name=name):
                yield KeptArrangement(name, "output", name, 0)
            case ReduceNode(name=name, upstream=upstream):
                yield KeptArrangement(name, "output", name, 0)
                yield _read(node, "input", upstream, 1)
            case JoinNode(upstreams=(left, right)):
                first = _read(node, "left", left, 0)
                yield first
                yield _read(node, "right", right, int(first.kept_by == node.name))


def _read(
    node: StatefulCollectionNode, name: str, upstream: Output, number: int
) -> KeptArrangement:
    """Return the arrangement of an input, which has the number where the node itself keeps it."""
    if isinstance(upstream.node, ArrangeNode):
        return KeptArrangement(node.name, name, upstream.node.name, 0)
    return KeptArrangement(node.name, name, node.name, number)
