"""The join of two keyed streams by the own times of their records: it adds one stateful operator.

Guarantees that a join that cannot run raises SetupError as it is defined. The operator has a logic
of its own (`joins/logic.py`), so its records move, recover and deliver as any state does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meander.dataflow.api.joined import Joinable
from meander.dataflow.api.stream import KeyedOptions, KeyedStream, ProcessedStream
from meander.dataflow.joins.interval import interval_join
from meander.dataflow.operators.retries import OnError
from meander.dataflow.tables.logic import pair
from meander.schemas.errors import SetupError
from meander.state.encoding.codec import PlainCodec


def join_streams(
    left: Joinable[Any], right: object, within: object, late: object, how: object,
    step: Callable[[Any, Any], Any] | None, name: str, on_error: OnError, colocate: bool,
) -> ProcessedStream[Any, Any]:  # fmt: skip
    """Add the join of a stream with what a user gives."""
    if not isinstance(left, KeyedStream):
        raise SetupError(f"operator {name!r}", "it joins records without keys",
                         "call key_by before the join")  # fmt: skip
    if not isinstance(right, KeyedStream):
        raise SetupError(f"operator {name!r}", f"it is to join {right!r}",
                         "give it a stream behind key_by, or a table such as"
                         " flow.table(KafkaSource('customers'))")  # fmt: skip
    join = interval_join(name, within, late, how, step or pair)
    codec = PlainCodec.of(join.definition)
    options: KeyedOptions = "event", codec, on_error, colocate, None
    at = left._keyed(name, (left, right), join, options)
    return ProcessedStream(left._flow, at, join.side)
