"""The expansion of sources of several topics: one source for each topic, merged behind them.

Guarantees that a partition has one name, that of its source and its number, whatever topics a flow
reads: "source:topic". So checkpoints, plans, handoffs and the status know sources of one topic
only. All members expand alike, as the driver names the sources. Cost: once per start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from meander.dataflow.api.nodes import LoopNode, MergeNode, Node, Output, SourceNode
from meander.dataflow.interfaces import CompositeSource, SourceSpec
from meander.schemas.errors import SetupError

SEPARATOR = ":"
"""Stands between the name of a source and that of its topic, which has no colon."""


def part_name(source: str, topic: str) -> str:
    """Return the name of the source of one topic.

    >>> part_name("orders", "orders-de")
    'orders:orders-de'
    """
    return f"{source}{SEPARATOR}{topic}"


def composites(nodes: Iterable[Node]) -> dict[str, CompositeSource]:
    """Return the sources that consist of others, by name."""
    return {
        node.name: node.spec
        for node in nodes
        if isinstance(node, SourceNode)
        and isinstance(node.spec, CompositeSource)
        and node.spec.is_composite
    }


def part_names(nodes: Iterable[Node], topics: Sequence[str]) -> list[str]:
    """Return the names of the sources of single topics, where `topics` are those that patterns may
    match."""
    return [
        part_name(name, topic)
        for name, spec in composites(nodes).items()
        for topic in spec.parts(topics)
    ]


def expanded(nodes: Sequence[Node], names: Sequence[str]) -> list[Node]:
    """Return the nodes of a flow with a source for each topic. `names` are the sources of a
    pattern's topics, as the driver has found them; a list of topics needs none.

    Raise SetupError for a source without topics.
    """
    specs = composites(nodes)
    if not specs:
        return [*nodes]
    found, own = dict[str, Node](), {node.name for node in nodes}
    for node in nodes:
        if node.name not in specs:
            found[node.name] = _rewired(node, found)
            continue
        parts = [SourceNode(*one) for one in _parts(node.name, specs[node.name], names).items()]
        for part in parts:
            if part.name in own:
                raise SetupError(f"operator {part.name!r}", f"source {node.name!r} has a source of"
                                 " this name for one of its topics", "give it another name"
                                 )  # fmt: skip
        found |= {part.name: part for part in parts}
        found[node.name] = MergeNode(node.name, tuple(map(Output.of, parts)))
    return [*found.values()]


def _parts(source: str, spec: CompositeSource, names: Sequence[str]) -> dict[str, SourceSpec]:
    head = f"{source}{SEPARATOR}"
    known = [name.removeprefix(head) for name in names if name.startswith(head)]
    parts: Mapping[str, SourceSpec] = spec.parts(known)
    if not parts:
        raise SetupError(f"source {source!r}", f"no topic matches its pattern {spec.pattern!r}",
                         "create one (meander topics create), or correct the pattern"
                         )  # fmt: skip
    return {part_name(source, topic): part for topic, part in parts.items()}


def _rewired(node: Node, found: Mapping[str, Node]) -> Node:
    """Return a node that reads from the expanded nodes."""
    changes: dict[str, Any] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        match value:
            case Output():
                changes[field.name] = _moved(value, found)
            case (Output(), *_):
                changes[field.name] = tuple(_moved(one, found) for one in value)
            case LoopNode():
                changes[field.name] = found[value.name]
    return replace(node, **changes)


def _moved(output: Output, found: Mapping[str, Node]) -> Output:
    return replace(output, node=found[output.node.name])
