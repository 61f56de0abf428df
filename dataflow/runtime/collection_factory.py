"""The operators of collections, built from their nodes. Only flows with collections load this."""

from __future__ import annotations

from collections.abc import Sequence

from meander.dataflow.api.nodes import (
    ChangesNode,
    CollectionNode,
    IngestNode,
    JoinNode,
    MapUpdatesNode,
    ReduceNode,
    scope_of,
)
from meander.dataflow.api.plan import Plan
from meander.dataflow.operators.collection.logic import ConsolidateLogic, JoinLogic, ReduceLogic
from meander.dataflow.operators.collection.operator import CollectionLogic, CollectionOperator
from meander.dataflow.operators.collection.stateless import (
    Pass,
    changes,
    ingest,
    mapped,
    unchanged,
)
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import InputPort, Operator, OutputPort


def collection_operator(
    node: CollectionNode | ChangesNode,
    context: OperatorContext,
    guard: Guard,
    inputs: Sequence[InputPort],
    output: OutputPort,
    plan: Plan,
) -> Operator:
    """Return the operator of a node on one worker."""
    match node:
        case IngestNode(read=read):
            return Pass(inputs, output, ingest(read, guard))
        case MapUpdatesNode(function=function):
            return Pass(inputs, output, unchanged if function is None else mapped(function))
        case ChangesNode():
            return Pass(inputs, output, changes(plan.origin(node)))
        case _:
            logic = _logic(node, scope_of(node).depth)
            return CollectionOperator(context, inputs, output, logic, scope_of(node).depth)


def _logic(node: JoinNode | ReduceNode, depth: int) -> CollectionLogic:
    if isinstance(node, JoinNode):
        return JoinLogic(node.function, depth)
    if node.function is None:
        return ConsolidateLogic(depth)
    return ReduceLogic(node.name, node.function, depth)
