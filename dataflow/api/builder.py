"""The definition of a flow: its nodes in order, each with a unique name."""

from __future__ import annotations

from meander.dataflow.api.nodes import ExchangeNode, Guarantee, Node, Output, group_of
from meander.dataflow.api.validation import check
from meander.dataflow.control.colocation import DEFAULT_GROUP
from meander.dataflow.operators.error_policy import OnError
from meander.schemas.errors import SetupError
from meander.state.keys.bins import BinSpace


class Definition:
    """A definition that streams add nodes to."""

    def __init__(self, name: str, space: BinSpace, delivery: Guarantee) -> None:
        self.name, self.space, self.delivery = name, space, delivery
        self.nodes: list[Node] = []

    def add(self, node: Node) -> Node:
        """Add a node to the flow; only streams call this. Raises SetupError for a node that cannot
        work."""
        check(node)
        self.nodes.append(node)
        return node

    def exchanged(self, at: Output, group: str, on_error: OnError) -> Output:
        """Return the output at which the owners of a group's bins have the records of a keyed
        stream. It is `at` itself or the output of a new exchange. Directly behind `key_by` the new
        exchange reads beside that of `key_by`, so no record travels twice."""
        if group_of(at.node) == group:
            return at
        if isinstance(at.node, ExchangeNode):
            at = at.node.upstream
        return self._behind_exchange(at, group, on_error)

    def placed(self, at: Output, on_error: OnError) -> Output:
        """Return the output at which the owners of partitions' bins have records without keys.
        These owners know which of their results are committed, independent of the reader of a
        partition."""
        return self._behind_exchange(at, DEFAULT_GROUP, on_error, keyless=True)

    def _behind_exchange(
        self, at: Output, group: str, on_error: OnError, *, keyless: bool = False
    ) -> Output:
        name = self.name_for(f"{at.node.name} exchange")
        return Output.of(self.add(ExchangeNode(name, at, on_error, group, keyless)))

    def name_for(self, wanted: str) -> str:
        """Return `wanted`, with a number behind it where another node has the name."""
        taken = {node.name for node in self.nodes}
        numbered = (f"{wanted}-{n}" for n in range(2, len(taken) + 3))
        return next(name for name in (wanted, *numbered) if name not in taken)

    def own_name(self, wanted: str) -> str:
        """Return a name for a state. Raises SetupError where another node has the name."""
        if wanted in {node.name for node in self.nodes}:
            raise SetupError(f"operator {wanted!r}", "another operator of the flow has its name",
                             "give each stateful operator a name of its own")  # fmt: skip
        return wanted
