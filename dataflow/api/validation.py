"""The checks of an operator at its definition, before any worker starts.

Guarantees that functions are callable, that those of collections take columns, and that policies,
orders and codecs exist. Guarantees that a loop holds no operator that cannot work in a loop, and
that no operator reads from another flow.
Cost: once per operator, O(operators).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import get_args

from meander.dataflow.api.determinism import is_nondeterministic
from meander.dataflow.api.nodes import (
    FUNCTION_KINDS,
    AsyncMapNode,
    ChangesNode,
    ExchangeNode,
    FeedbackNode,
    FoldLogic,
    IngestNode,
    JoinNode,
    KeyedNode,
    Logic,
    MapUpdatesNode,
    Node,
    OperatorNode,
    ProcessLogic,
    ReduceNode,
    SinkNode,
    SourceNode,
    SplitNode,
    StepsNode,
    TableJoinLogic,
    scope_of,
    upstreams,
)
from meander.dataflow.graph.graph import ROOT
from meander.dataflow.joins.interval import IntervalJoin
from meander.dataflow.logic.changeable import ChangeableLogic
from meander.dataflow.operators.async_map import ResultOrder
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.operators.keyed.operator import Order
from meander.dataflow.operators.retries import Fallback, OnError, Retry
from meander.dataflow.tables.row_functions import RowFunction
from meander.dataflow.windows.columnar import ColumnarWindows
from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_choice, checked_number, checked_whole


def check(node: Node) -> None:
    """Raise SetupError for an operator that cannot work."""
    for role, function in functions_of(node):
        if isinstance(function, ChangeableLogic):
            expect_functions(node.name, function, ("__call__",))
        if not callable(function):
            raise SetupError(
                f"operator {node.name!r}", f"its {role} is {function!r}", "give it a function"
            )
    match node:
        case SourceNode() | SinkNode():
            _check_end(node)
        case KeyedNode():
            _check_keyed(node)
        case AsyncMapNode():
            _check_async_map(node)
        case IngestNode() | ChangesNode():
            _check_outside_loops(node)
        case MapUpdatesNode() | JoinNode() | ReduceNode():
            _check_deterministic(node)
            _check_takes_columns(node)
    for policy in _policies(node):
        _check_policy(node, policy)


def check_upstreams(node: Node, nodes: Sequence[Node]) -> None:
    """Raise SetupError for an operator that reads from any other node than those before it in its
    flow."""
    for output in upstreams(node):
        if not any(output.node is one for one in nodes):
            raise SetupError(
                f"operator {node.name!r}",
                f"it reads {output.node.name!r} of another flow",
                "connect operators of one flow",
            )


def expect_functions(name: str, logic: ChangeableLogic, functions: Iterable[str]) -> None:
    """Raise SetupError, about the operator of this name, where its logic lacks a function."""
    for function in functions:
        if not callable(getattr(logic, function, None)):
            raise SetupError(
                f"operator {name!r}", f"its logic {type(logic).__name__} has no {function}",
                f"give the class a method {function}",
            )  # fmt: skip


def functions_of(node: Node) -> Iterator[tuple[str, object]]:
    """Yield the user's functions of a node, each with its role."""
    match node:
        case StepsNode():
            for step in node.steps:
                yield "function", step.function
                if isinstance(step.function, RowFunction):
                    yield "function", step.function.inner
        case SplitNode():
            yield "function", node.choose
        case AsyncMapNode():
            yield "function", node.function
        case IngestNode():
            yield "function", node.read
        case JoinNode() | ReduceNode():
            yield "function", node.function
        case MapUpdatesNode() if node.kind in FUNCTION_KINDS:
            yield "function", node.function
        case KeyedNode():
            yield from _functions_of_logic(node.logic)


def _functions_of_logic(logic: Logic) -> Iterator[tuple[str, object]]:
    match logic:
        case FoldLogic(init, step):
            yield from (("init", init), ("step", step))
        case ColumnFold() | ColumnarWindows():
            yield from logic.functions
        case IntervalJoin(step=step):
            yield "step", step
        case TableJoinLogic(step=step, on=on):
            yield "step", step
            if on is not None:
                yield "on", on
        case ProcessLogic():
            yield "init", logic.init
            yield from (("step", function) for function in logic.on_values)
            back = (
                ("on_timer", logic.on_timer), ("on_notify", logic.on_notify),
                ("on_alarm", logic.on_alarm),
            )  # fmt: skip
            yield from ((role, function) for role, function in back if function is not None)
            yield from logic.inner


def _policies(node: Node) -> Iterator[OnError]:
    match node:
        case StepsNode():
            yield from (step.on_error for step in node.steps)
        case SplitNode() | ExchangeNode() | KeyedNode() | FeedbackNode() | SinkNode():
            yield node.on_error
        case IngestNode() | OperatorNode() | AsyncMapNode():
            yield node.on_error


def _check_policy(node: Node, policy: OnError) -> None:
    if not isinstance(policy, Retry):
        if policy not in get_args(Fallback):
            raise SetupError(
                f"operator {node.name!r}", f"its on_error is {policy!r}",
                "give 'dead_letter', 'skip', 'fail' or a Retry",
            )  # fmt: skip
        return
    match node:
        case SinkNode() | FeedbackNode():
            cause = "it rejects a record for its form, which another call does not change"
        case OperatorNode():
            cause = "it calls functions by itself"
        case KeyedNode(logic=ColumnFold() | ColumnarWindows()):
            cause = "its function takes the records of many keys at once"
        case _:
            return
    raise SetupError(
        f"operator {node.name!r}", f"its on_error is {policy!r}, and {cause}",
        f"give it {policy.then!r}, and a Retry to a step before it",
    )  # fmt: skip


def _check_end(node: SourceNode | SinkNode) -> None:
    end = "Source" if isinstance(node, SourceNode) else "Sink"
    if not callable(getattr(node.spec, "open", None)):
        raise SetupError(
            f"{end.lower()} {node.name!r}", f"it is {node.spec!r}",
            f"give it such as Kafka{end}('topic')",
        )  # fmt: skip


def _check_keyed(node: KeyedNode) -> None:
    checked_choice(f"operator {node.name!r}", "order", node.order, get_args(Order))
    checked_choice(f"operator {node.name!r}", "colocate", node.colocate, (True, False))
    if not all(hasattr(node.codec, name) for name in ("name", "encode", "decode")):
        raise SetupError(
            f"operator {node.name!r}",
            f"its codec is {node.codec!r}",
            "give it an object with a name, encode and decode",
        )
    if (scope := scope_of(node)) == ROOT:
        return
    if node.order == "processing":
        raise SetupError(
            f"operator {node.name!r}",
            f"order='processing' has no meaning in scope {scope.name!r}: records of one partition"
            " overtake each other there",
            "leave out the order, or the loop or flow control around it",
        )
    logic = node.logic
    timers, alarms = isinstance(logic, ColumnarWindows | IntervalJoin), False
    if isinstance(logic, ProcessLogic):
        timers, alarms = logic.on_timer is not None, logic.on_alarm is not None
    if timers or alarms:
        kind = "a timer" if timers else "an alarm"
        raise SetupError(
            f"operator {node.name!r}",
            f"it sets {kind.split()[-1]}s in scope {scope.name!r}, and {kind} has a time of the"
            " flow, without the iteration or the batch",
            "set them before or behind the loop or flow control",
        )


def _check_async_map(node: AsyncMapNode) -> None:
    function = node.function
    called = getattr(function, "__call__", None)  # noqa: B004 (an object may be called)
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)):
        raise SetupError(
            f"operator {node.name!r}", f"its function {function!r} is no coroutine function",
            "define it with async def, or give a plain function to map",
        )  # fmt: skip
    checked_whole(f"operator {node.name!r}", "concurrency", node.concurrency, 1)
    checked_number(f"operator {node.name!r}", "timeout", node.timeout, above=0)
    checked_choice(f"operator {node.name!r}", "order", node.order, get_args(ResultOrder))


def _check_outside_loops(node: IngestNode | ChangesNode) -> None:
    if scope_of(node) != ROOT:
        raise SetupError(
            f"operator {node.name!r}",
            f"it lies in scope {scope_of(node).name!r}, and records of a stream carry changes of a"
            " collection outside of nested scopes alone",
            "read the collection before the loop or flow control, and take its changes behind it",
        )


def _check_deterministic(node: MapUpdatesNode | JoinNode | ReduceNode) -> None:
    if any(is_nondeterministic(function) for _, function in functions_of(node)):
        raise SetupError(
            f"operator {node.name!r}",
            "its function is declared nondeterministic, so a removal might not meet its addition",
            "have the function of stream.collection(...) give what varies, as a key or a value",
        )


def _check_takes_columns(node: MapUpdatesNode | JoinNode | ReduceNode) -> None:
    """Raise SetupError for a function that takes another number of arguments: often one that is
    written for a single record."""
    for _, function in functions_of(node):
        assert callable(function)
        expect_columns(node.name, function, _columns_of(node))


def expect_columns(name: str, function: Callable[..., object], columns: Sequence[str]) -> None:
    """Raise SetupError unless the function of an operator takes these columns."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # Some functions of compiled modules tell no signature.
        return
    try:
        signature.bind(*columns)
    except TypeError:
        raise SetupError(
            f"operator {name!r}",
            f"its function takes {signature}, and gets {len(columns)} arguments",
            f"give it a function of {', '.join(columns[:-1])} and {columns[-1]}; one of records"
            " belongs behind .changes()",
        ) from None


def _columns_of(node: MapUpdatesNode | JoinNode | ReduceNode) -> Sequence[str]:
    match node:
        case MapUpdatesNode():
            return "a column of keys", "one of values"
        case JoinNode():
            return "a column of keys", "one of own values", "one of other values"
        case ReduceNode():
            return "a column of keys", "Groups of their values"
