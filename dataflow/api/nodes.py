"""What a flow is made of before it runs: one frozen record per operator, in order of definition.

A node reads from an `Output`: one of the outputs of an earlier node. A loop is a nested scope: a
`LoopNode` enters it, its body follows, an `FeedbackNode` leads back, a `LoopExitNode` out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from meander.dataflow.control.colocation import DEFAULT_GROUP
from meander.dataflow.graph.graph import ROOT, Scope
from meander.dataflow.interfaces import SinkSpec, SourceSpec
from meander.dataflow.operators.error_policy import OnError
from meander.dataflow.operators.keyed.columns import ColumnFold
from meander.dataflow.operators.keyed.logic import OnTimer, OnValue
from meander.dataflow.operators.keyed.operator import Order
from meander.dataflow.operators.stateless import KeyBy, Step
from meander.state.encoding.codec import PLAIN, StateCodec
from meander.state.encoding.columns import ColumnLayout

Guarantee = Literal["at_least_once", "exactly_once"]
"""How often a result leaves a flow whose workers are lost and begin anew."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where records leave a node, by the number of its output."""

    node: Node
    number: int
    scope: Scope

    @staticmethod
    def of(node: Node, number: int = 0) -> Output:
        """An output of a node that has been defined."""
        return Output(node, number, scope_of(node))


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Where data comes in."""

    name: str
    spec: SourceSpec


@dataclass(frozen=True, slots=True)
class StepsNode:
    """A chain of stateless steps."""

    name: str
    upstream: Output
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class SplitNode:
    """Each record leaves by the output that a function names."""

    name: str
    upstream: Output
    choose: Callable[[Any], object]
    outputs: tuple[str, ...]
    on_error: OnError


@dataclass(frozen=True, slots=True)
class ExchangeNode:
    """Every record travels to the owner of its key's bin."""

    name: str
    upstream: Output
    on_error: OnError
    group: str = DEFAULT_GROUP
    """The operators whose bins are meant."""
    keyless: bool = False
    """Whether its records have no keys: they travel to the owner of their partition's bin."""


@dataclass(frozen=True, slots=True)
class FoldLogic:
    """`init` and `(state, value) -> (state, result)`."""

    init: Callable[[], object]
    step: Callable[[Any, Any], tuple[object, object]]


@dataclass(frozen=True, slots=True)
class ProcessLogic:
    """`init`, one `(context, state, value) -> state` per input, and perhaps functions for timers
    and notices. `side` names the outputs beside the first."""

    init: Callable[[], object]
    on_values: tuple[OnValue, ...]
    on_timer: OnTimer | None
    on_notify: OnTimer | None
    side: tuple[str, ...]


Logic = FoldLogic | ProcessLogic | ColumnFold


@dataclass(frozen=True, slots=True)
class KeyedNode:
    """A stateful operator; its name is the name of its state."""

    name: str
    upstreams: tuple[Output, ...]
    logic: Logic
    order: Order
    codec: StateCodec
    on_error: OnError
    colocate: bool
    """Whether its bins move with those of all others that do, or for themselves."""

    @property
    def group(self) -> str:
        """The operators whose bins move with its own."""
        return DEFAULT_GROUP if self.colocate else self.name

    @property
    def layout(self) -> ColumnLayout | None:
        """The columns of its states, where these are mere numbers."""
        if not isinstance(self.logic, ColumnFold) or self.codec.name != PLAIN.name:
            return None
        layout = self.logic.layout
        return layout if layout.numbers else None


@dataclass(frozen=True, slots=True)
class LoopNode:
    """Where records enter a loop, and where those that go round come back."""

    name: str
    upstream: Output


@dataclass(frozen=True, slots=True)
class FeedbackNode:
    """What goes round again, a round later, for so many rounds at most."""

    name: str
    upstream: Output
    loop: LoopNode
    most: int
    on_error: OnError


@dataclass(frozen=True, slots=True)
class LoopExitNode:
    """Where records leave a loop."""

    name: str
    upstream: Output


@dataclass(frozen=True, slots=True)
class SinkNode:
    """Where results go out."""

    name: str
    upstream: Output
    spec: SinkSpec
    on_error: OnError


@dataclass(frozen=True, slots=True)
class ProbeNode:
    """Where the frontier can be read."""

    name: str
    upstream: Output


Node = (
    SourceNode
    | StepsNode
    | SplitNode
    | ExchangeNode
    | KeyedNode
    | LoopNode
    | FeedbackNode
    | LoopExitNode
    | SinkNode
    | ProbeNode
)


def scope_of(node: Node) -> Scope:
    """The scope that a node's records leave in: of all that it reads from, the deepest one."""
    match node:
        case SourceNode():
            return ROOT
        case LoopNode():
            return Scope(node.name, node.upstream.scope)
        case LoopExitNode():
            assert node.upstream.scope.around is not None
            return node.upstream.scope.around
        case _:
            return max((o.scope for o in upstreams(node)), key=lambda scope: scope.depth)


def group_of(node: Node) -> str:
    """Whose bins' owners have a node's keyed records; before the first exchange any worker may."""
    while not isinstance(node, ExchangeNode | KeyedNode):
        before = upstreams(node)
        if not before:
            return DEFAULT_GROUP
        node = before[0].node
    return node.group


def has_keys(output: Output) -> bool:
    """Whether the records that leave there have keys: all of them have, or none."""
    match output.node:
        case SourceNode():
            return False
        case KeyedNode():
            return True
        case ExchangeNode(keyless=keyless):
            return not keyless
        case StepsNode(steps=steps) if any(isinstance(step, KeyBy) for step in steps):
            return True
        case FeedbackNode(loop=loop):
            # What goes round joins the loop's stream, which is what its first records are.
            return has_keys(loop.upstream)
        case node:
            (upstream,) = upstreams(node)
            return has_keys(upstream)


def outputs(node: Node) -> int:
    """How many outputs a node has."""
    match node:
        case SplitNode():
            return len(node.outputs)
        case KeyedNode(logic=ProcessLogic(side=side)):
            return 1 + len(side)
        case _:
            return 1


def upstreams(node: Node) -> tuple[Output, ...]:
    """What a node reads from."""
    match node:
        case SourceNode():
            return ()
        case KeyedNode():
            return node.upstreams
        case _:
            return (node.upstream,)
