"""What streams and collections have in common: nested scopes, and operators of the user.

A library on top of the engine, such as flow control, uses these methods and `OperatorServices`
alone. Times in a nested scope have one more coordinate, which begins at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from meander.dataflow.api.builder import Definition
from meander.dataflow.api.nodes import (
    ArrangeNode,
    EnterNode,
    ExitNode,
    Node,
    OperatorNode,
    Output,
)
from meander.dataflow.graph.graph import ROOT
from meander.dataflow.operators.custom import BuildOperator
from meander.dataflow.operators.retries import OnError
from meander.schemas.errors import SetupError


class Extensible:
    """A stream or a collection at its place in a flow."""

    def __init__(self, flow: Definition, at: Output) -> None:
        self._flow, self._at = flow, at

    @property
    def is_nested(self) -> bool:
        """Return whether it lies in a loop, or in a part that `enter` has opened."""
        return self._at.scope != ROOT

    def enter(self, name: str) -> Self:
        """Enter a new nested scope, in which times have one more coordinate."""
        return self._behind(EnterNode(self._flow.name_for(name), self._at))

    def leave(self) -> Self:
        """Leave the nested scope, so that times lose their last coordinate. Raises SetupError
        outside of a scope that `enter` has opened."""
        scope = self._at.scope
        if scope.name not in {one.name for one in self._flow.nodes if isinstance(one, EnterNode)}:
            raise SetupError(f"operator {self._at.node.name!r}",
                             "leave needs a scope that enter or flow_control has opened",
                             "call leave inside of it; a loop returns its streams")  # fmt: skip
        return self._behind(ExitNode(self._flow.name_for(f"{scope.name} leave"), self._at))

    def operator(
        self,
        name: str,
        build: BuildOperator,
        *,
        on_error: OnError = "fail",
        sorts: bool = False,
        arrangements: Sequence[Extensible] = (),
    ) -> Self:
        """Add an operator of the user. `build` returns the operator of one worker. With `sorts` it
        holds records until their time is closed, and sends them in the total order.

        It reads `arrangements` by key, each of a collection outside of loops. Raises SetupError for
        any other one.
        """
        name = self._flow.name_for(name)
        read = tuple(one._at for one in arrangements)
        for at in read:
            if not isinstance(at.node, ArrangeNode) or at.scope != ROOT:
                raise SetupError(f"operator {name!r}",
                                 f"it reads {at.node.name!r}, no arrangement outside of loops",
                                 "give it collection.arrange(...)")  # fmt: skip
        return self._behind(OperatorNode(name, self._at, build, on_error, sorts, read))

    def _behind(self, node: Node) -> Self:
        """Add a node, and return the stream or collection behind it."""
        return type(self)(self._flow, Output.of(self._flow.add(node)))
