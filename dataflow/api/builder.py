"""The nodes of a flow that is being defined, in order, each with a name of its own."""

from __future__ import annotations

from meander.dataflow.api.nodes import ExchangeNode, Guarantee, Node, Output, group_of
from meander.dataflow.api.validation import check
from meander.dataflow.control.colocation import DEFAULT_GROUP
from meander.dataflow.operators.error_policy import OnError
from meander.schemas.errors import SetupError
from meander.state.keys.bins import BinSpace


class Definition:
    """What streams add to."""

    def __init__(self, name: str, space: BinSpace, delivery: Guarantee) -> None:
        self.name, self.space, self.delivery = name, space, delivery
        self.nodes: list[Node] = []

    def add(self, node: Node) -> Node:
        """Take a node into the flow; streams do this. Raises SetupError for what cannot work."""
        check(node)
        self.nodes.append(node)
        return node

    def exchanged(self, at: Output, group: str, on_error: OnError) -> Output:
        """Where the records of a keyed stream are with the owners of a group's bins: there, or
        behind an exchange. Behind `key_by` nothing has to travel twice, so it is beside that one's.
        """
        if group_of(at.node) == group:
            return at
        if isinstance(at.node, ExchangeNode):
            at = at.node.upstream
        return self._behind_exchange(at, group, on_error)

    def placed(self, at: Output, on_error: OnError) -> Output:
        """Where records without keys are with the owners of their partitions' bins: what has been
        committed of them is told by these, whoever reads a partition."""
        return self._behind_exchange(at, DEFAULT_GROUP, on_error, keyless=True)

    def _behind_exchange(
        self, at: Output, group: str, on_error: OnError, *, keyless: bool = False
    ) -> Output:
        name = self.name_for(f"{at.node.name} exchange")
        return Output.of(self.add(ExchangeNode(name, at, on_error, group, keyless)))

    def name_for(self, wanted: str) -> str:
        """`wanted`, or with a number behind it where that is taken."""
        taken = {node.name for node in self.nodes}
        numbered = (f"{wanted}-{n}" for n in range(2, len(taken) + 3))
        return next(name for name in (wanted, *numbered) if name not in taken)

    def own_name(self, wanted: str) -> str:
        """A name that state is kept under. Raises SetupError where it is taken."""
        if wanted in {node.name for node in self.nodes}:
            raise SetupError(f"operator {wanted!r}", "another operator of the flow has its name",
                             "give each stateful operator a name of its own")  # fmt: skip
        return wanted
