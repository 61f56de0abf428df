"""What a flow is made of before it runs: one frozen record per operator, in order of definition.

A node reads from an `Output`: one of the outputs of an earlier node, in the scope it leaves in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dataflow.operators.columns import ColumnFold
from dataflow.operators.errors import OnError
from dataflow.operators.keyed import Order
from dataflow.operators.logic import OnTimer, OnValue
from dataflow.operators.steps import Step
from dataflow.protocols import SinkSpec, SourceSpec
from state.codec import StateCodec


@dataclass(frozen=True, slots=True)
class Output:
    """Where records leave a node, by the number of its output."""

    node: Node
    number: int = 0


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


@dataclass(frozen=True, slots=True)
class FoldLogic:
    """`init` and `(state, value) -> (state, result)`."""

    init: Callable[[], object]
    step: Callable[[Any, Any], tuple[object, object]]


@dataclass(frozen=True, slots=True)
class ProcessLogic:
    """`init`, one `(context, state, value) -> state` per input, and perhaps a timer function.

    `side` names the outputs beside the first."""

    init: Callable[[], object]
    on_values: tuple[OnValue, ...]
    on_timer: OnTimer | None
    side: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeyedNode:
    """A stateful operator; its name is the name of its state."""

    name: str
    upstreams: tuple[Output, ...]
    logic: FoldLogic | ProcessLogic | ColumnFold
    order: Order
    codec: StateCodec
    on_error: OnError


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


Node = SourceNode | StepsNode | SplitNode | ExchangeNode | KeyedNode | SinkNode | ProbeNode


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
