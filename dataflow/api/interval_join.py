"""The join of two keyed streams by the own times of their records: it adds one stateful operator.

Guarantees that a join that cannot run raises SetupError as it is defined. The operator has a logic
of its own (`joins/logic.py`), so its records move, recover and deliver as any state does.
"""

from __future__ import annotations

from typing import Any, TypeVar

from meander.dataflow.api.stream import KeyedOptions, KeyedStream, ProcessedStream
from meander.dataflow.joins.interval import IntervalJoin
from meander.dataflow.operators.retries import OnError
from meander.schemas.errors import SetupError
from meander.state.encoding.codec import PLAIN

K = TypeVar("K")


def joined(
    name: str,
    left: KeyedStream[Any, K],
    right: KeyedStream[Any, K],
    join: IntervalJoin,
    on_error: OnError,
    colocate: bool,
) -> ProcessedStream[K, Any]:
    """Return the stream of the results of a join."""
    if not isinstance(right, KeyedStream):
        raise SetupError(f"operator {name!r}", "its second stream has no keys",
                         "call key_by before the join")  # fmt: skip
    if right._flow is not left._flow:
        raise SetupError(f"operator {name!r}",
                         f"its second stream belongs to flow {right._flow.name!r}",
                         "join streams of one flow")  # fmt: skip
    options: KeyedOptions = "event", PLAIN, on_error, colocate, None
    at = left._keyed(name, (left, right), join, options)
    return ProcessedStream(left._flow, at, join.side)
