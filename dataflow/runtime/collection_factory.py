"""The operators of collections, built from their nodes. Only flows with collections load this."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meander.dataflow.api.nodes import (
    ArrangeNode,
    ChangesNode,
    ConsolidateNode,
    CountNode,
    IngestNode,
    JoinNode,
    MapUpdatesNode,
    Node,
    ReduceNode,
    StatefulCollectionNode,
    row_type_of,
    scope_of,
    upstreams,
)
from meander.dataflow.api.plan import Plan
from meander.dataflow.collections.arrangement import Arrangement
from meander.dataflow.collections.dictionary import Dictionary
from meander.dataflow.operators.collection.consolidation import Consolidation
from meander.dataflow.operators.collection.functions import ColumnFunction
from meander.dataflow.operators.collection.logic import (
    ArrangeLogic,
    CountLogic,
    JoinLogic,
    ReduceLogic,
)
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
from meander.dataflow.operators.collection.updates import Codings, UpdateCoding
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import InputPort, Operator, OutputPort
from meander.state.checkpoint.arrangements import UnreadRows
from meander.state.store.store import Store


def stateful_collection(
    node: StatefulCollectionNode,
    context: OperatorContext,
    inputs: Sequence[InputPort],
    output: OutputPort,
    store: Store,
    max_handoff_bytes: int,
    arrangements: dict[str, Arrangement],
    dictionary: Dictionary,
    passed: Callable[[], int],
    unread: Sequence[UnreadRows],
) -> CollectionOperator:
    """Return the operator of a node with state on one worker. `arrangements` are those of earlier
    nodes, by name; a node that makes one adds it. `passed` returns the outer time that the operator
    and the readers of its arrangement have reached on all workers. `unread` are the rows that the
    operator had not read at the checkpoint."""
    depth, reads = scope_of(node).depth, [one.node for one in upstreams(node)]
    shared = [arrangements.get(one.name) for one in reads]
    before, after = [_coding(dictionary, one) for one in reads], _coding(dictionary, node)
    kept = [coding for coding, arranged in zip(before, shared, strict=True) if arranged is None]
    logic: ArrangeLogic | CountLogic | JoinLogic | ReduceLogic
    given: tuple[bool, ...]
    match node:
        case ArrangeNode():
            logic = ArrangeLogic(depth, passed)
            arrangements[node.name] = logic.arrangement
        case JoinNode(function=function):
            given = before[0].key, before[0].value, before[1].value
            rows = ColumnFunction(node.name, function, given, after).rows
            logic = JoinLogic(rows, depth, shared, passed)
        case CountNode():
            logic, kept = CountLogic(node.name, before[0].shown, passed), [after]
        case ReduceNode(function=function):
            given = before[0].key, before[0].value
            groups = ColumnFunction(node.name, function, given, after).groups
            logic = ReduceLogic(node.name, groups, depth, shared[0], before[0].shown, passed)
            kept = [after, *kept]
    *data, unsent, handoffs = inputs
    return CollectionOperator(
        context, data, unsent, handoffs, output, logic, store, max_handoff_bytes, depth,
        Codings(before, after, kept), unread,
    )  # fmt: skip


def stateless_collection(
    node: IngestNode | MapUpdatesNode | ConsolidateNode | ChangesNode,
    context: OperatorContext,
    guard: Guard,
    inputs: Sequence[InputPort],
    output: OutputPort,
    plan: Plan,
    dictionary: Dictionary,
) -> Operator:
    """Return the operator of a node without state on one worker."""
    match node:
        case IngestNode(read=read, row_type=row_type):
            return Pass(inputs, output, ingest(read, row_type, guard))
        case MapUpdatesNode():
            return Pass(inputs, output, _turn(node, dictionary))
        case ConsolidateNode():
            coding = _coding(dictionary, node)
            return Consolidation(context, inputs[0], output, scope_of(node).depth, coding)
        case ChangesNode(fields=fields):
            return Pass(inputs, output, changes(plan.origin(node), fields))


def _turn(node: MapUpdatesNode, dictionary: Dictionary) -> Turn:
    match node.kind:
        case "concat":
            return unchanged
        case "negate":
            return negated
    assert node.function is not None
    before, after = _coding(dictionary, node.upstreams[0].node), _coding(dictionary, node)
    function = ColumnFunction(node.name, node.function, (before.key, before.value), after)
    kinds = {"map": mapped, "filter": filtered, "flat_map": flat_mapped}
    return kinds[node.kind](function, before)


def _coding(dictionary: Dictionary, node: Node) -> UpdateCoding:
    """Return the coding of the updates that a node gives."""
    row_type = row_type_of(node)
    return UpdateCoding(dictionary, row_type.has_object_keys, row_type.has_object_values)
