"""The operators of collections, built from their nodes. Only flows with collections load this."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meander.dataflow.api.nodes import (
    ArrangeNode,
    ChangesNode,
    ConsolidateNode,
    IngestNode,
    JoinNode,
    MapUpdatesNode,
    ReduceNode,
    StatefulCollectionNode,
    scope_of,
    upstreams,
)
from meander.dataflow.api.plan import Plan
from meander.dataflow.collections.arrangement import Arrangement
from meander.dataflow.operators.collection.consolidation import Consolidation
from meander.dataflow.operators.collection.functions import ColumnFunction
from meander.dataflow.operators.collection.logic import ArrangeLogic, JoinLogic, ReduceLogic
from meander.dataflow.operators.collection.operator import CollectionOperator
from meander.dataflow.operators.collection.stateless import (
    Pass,
    Turn,
    changes,
    filtered,
    flat_mapped,
    ingest,
    mapped,
    negated,
    unchanged,
)
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import InputPort, Operator, OutputPort
from meander.state.store.store import Store


def stateful_collection(
    node: StatefulCollectionNode,
    context: OperatorContext,
    inputs: Sequence[InputPort],
    output: OutputPort,
    store: Store,
    max_handoff_bytes: int,
    arrangements: dict[str, Arrangement],
    passed: Callable[[], int],
) -> CollectionOperator:
    """Return the operator of a node with state on one worker. `arrangements` are those of earlier
    nodes, by name; a node that makes one adds it. `passed` returns the outer time that the operator
    and the readers of its arrangement have reached on all workers."""
    depth = scope_of(node).depth
    shared = [arrangements.get(one.node.name) for one in upstreams(node)]
    logic: ArrangeLogic | JoinLogic | ReduceLogic
    match node:
        case ArrangeNode():
            logic = ArrangeLogic(depth, passed)
            arrangements[node.name] = logic.arrangement
        case JoinNode(function=function):
            logic = JoinLogic(ColumnFunction(node.name, function).rows, depth, shared, passed)
        case ReduceNode(function=function):
            groups = ColumnFunction(node.name, function).groups
            logic = ReduceLogic(node.name, groups, depth, shared[0], passed)
    *data, unsent, handoffs = inputs
    return CollectionOperator(
        context, data, unsent, handoffs, output, logic, store, max_handoff_bytes, depth
    )


def stateless_collection(
    node: IngestNode | MapUpdatesNode | ConsolidateNode | ChangesNode,
    context: OperatorContext,
    guard: Guard,
    inputs: Sequence[InputPort],
    output: OutputPort,
    plan: Plan,
) -> Operator:
    """Return the operator of a node without state on one worker."""
    match node:
        case IngestNode(read=read):
            return Pass(inputs, output, ingest(read, guard))
        case MapUpdatesNode():
            return Pass(inputs, output, _turn(node))
        case ConsolidateNode():
            return Consolidation(context, inputs[0], output, scope_of(node).depth)
        case ChangesNode():
            return Pass(inputs, output, changes(plan.origin(node)))


def _turn(node: MapUpdatesNode) -> Turn:
    match node.kind:
        case "concat":
            return unchanged
        case "negate":
            return negated
    assert node.function is not None
    kinds = {"map": mapped, "filter": filtered, "flat_map": flat_mapped}
    return kinds[node.kind](ColumnFunction(node.name, node.function))
