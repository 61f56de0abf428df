"""The definition of a flow: its nodes in order, each with a unique name."""

from __future__ import annotations

from collections.abc import Callable

from meander.dataflow.api.nodes import (
    ExchangeNode,
    Guarantee,
    Node,
    Output,
    SinkNode,
    SourceNode,
    group_of,
)
from meander.dataflow.api.validation import check, check_upstreams
from meander.dataflow.control.colocation import DEFAULT_GROUP
from meander.dataflow.operators.retries import OnError, fallback
from meander.schemas.errors import SetupError
from meander.state.keys.bins import BinSpace


class Definition:
    """A definition to which streams add nodes."""

    def __init__(self, name: str, space: BinSpace, delivery: Guarantee) -> None:
        self.name, self.space, self.delivery = name, space, delivery
        self.nodes: list[Node] = []
        self.wrap: Callable[[Node], Node] = lambda node: node
        """Wraps the functions of a node whose logic has changed, as tests do."""

    def add(self, node: Node) -> Node:
        """Add a node to the flow; only streams call this. Raises SetupError for a node that cannot
        work."""
        check(node)
        check_upstreams(node, self.nodes)
        self.nodes.append(node)
        return node

    def exchange_for(self, at: Output, group: str, on_error: OnError) -> Output:
        """Return the output at which the owners of a group's bins have the records of a keyed
        stream: `at` itself, or the output of a new exchange.

        Directly behind `key_by` the new exchange replaces that of `key_by` on this path, so no
        record travels twice.
        """
        if group_of(at.node) == group:
            return at
        if isinstance(at.node, ExchangeNode):
            at = at.node.upstream
        return self._behind_exchange(at, group, on_error)

    def exchange_by_partition(self, at: Output, on_error: OnError) -> Output:
        """Return the output at which the owners of partitions' bins have records without keys.
        These owners know which results are committed, whichever worker reads the partition."""
        return self._behind_exchange(at, DEFAULT_GROUP, on_error, keyless=True)

    def _behind_exchange(
        self, at: Output, group: str, on_error: OnError, *, keyless: bool = False
    ) -> Output:
        name = self.name_for(f"{at.node.name} exchange")
        return Output.of(self.add(ExchangeNode(name, at, fallback(on_error), group, keyless)))

    def name_for(self, base: str) -> str:
        """Return `base`, with a number behind it where another node has the name."""
        used = {node.name for node in self.nodes}
        numbered = (f"{base}-{n}" for n in range(2, len(used) + 3))
        return next(name for name in (base, *numbered) if name not in used)

    def unused_name(self, name: str) -> str:
        """Return the name of a state. Raises SetupError where another node has it."""
        for node in self.nodes:
            if node.name == name:
                raise SetupError(
                    f"operator {name!r}", f"{_kind(node)} {name!r} of the flow has its name",
                    "sources, operators and sinks share their names: give one of the two another",
                )  # fmt: skip
        return name


def _kind(node: Node) -> str:
    """Return what users call a node."""
    match node:
        case SourceNode():
            return "source"
        case SinkNode():
            return "sink"
    return "another operator"
