"""Flow control for a part of a flow, built on timestamps and probes alone (Faucet, section 4).

Guarantees that at most `in_flight` batches of the part's input are in it on each worker. A part may
contain loops and other flow control, and may lie in either. Cost: rows wait until their time is
closed, and a batch until the progress broadcast has told that an earlier one is through.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from meander.dataflow.api.determinism import is_nondeterministic
from meander.dataflow.api.extensible import Extensible
from meander.dataflow.api.stream import Stream
from meander.dataflow.flow_control.batch_size import DEFAULT, BatchSize, Size, check_size
from meander.dataflow.flow_control.batcher import Batcher
from meander.dataflow.flow_control.expansion import Expand, Expansion, unexpanded
from meander.dataflow.flow_control.ready_rows import ReadyRows, Weigh, each_one
from meander.dataflow.operators.custom import OperatorServices
from meander.dataflow.operators.retries import OnError
from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_whole

T = TypeVar("T", bound=Extensible)


@contextmanager
def flow_control(
    stream: T,
    *,
    batch: Size = DEFAULT,
    in_flight: int = 4,
    expand: Expand | None = None,
    weigh: Weigh = each_one,
    on_error: OnError = "dead_letter",
    name: str = "flow_control",
) -> Iterator[T]:
    """Control how many rows of a stream or collection are in the part of the flow that the body
    defines. The streams of the body end with `leave()`, or in sinks.

    `batch` is the number of rows of a batch on each worker, or "auto" for one that adapts to the
    time per batch. `in_flight` batches of each worker may be in the part at once.

    `expand` turns a value of a stream into an iterator of values, as a `flat_map` does, but lazily:
    a batch takes no more outputs than it has room for, and the next one continues. The function has
    to give equal outputs for equal values. `on_error` decides about values that it cannot expand.

    `weigh` turns a batch into what each row counts, such as the rows that the part makes of it, in
    place of 1. A row beyond the size of a batch has a batch of its own.

    >>> from meander import Flow, flow_control
    >>> from meander.dataflow.simulation.in_memory import ListSink, ListSource
    >>> from meander.testing import TestFlow
    >>> flow, sink = Flow("pairs"), ListSink()
    >>> numbers = flow.source(ListSource([[(1, 3), (2, 4)]]))
    >>> with flow_control(numbers, batch=1, in_flight=1) as inner:
    ...     pairs = inner.flat_map(lambda n: [(n, m) for m in range(n)]).leave()
    >>> pairs.filter(lambda pair: sum(pair) > 4).sink(sink)
    >>> with TestFlow(flow, workers=2) as run:
    ...     run.run()
    >>> sorted(sink.values)
    [(3, 2), (4, 1), (4, 2), (4, 3)]
    """
    subject = f"flow control {name!r}"
    check_size(subject, batch)
    checked_whole(subject, "in_flight", in_flight, 1, unit="batches")
    entered = stream.enter(name)
    if expand is not None:
        entered = _packed(subject, entered, expand)

    def build(services: OperatorServices) -> Batcher:
        complete_each = services.input.latency.complete_each
        # Updates add up in any order; records of a stream have one.
        ready = ReadyRows(not isinstance(stream, Stream), complete_each, weigh)
        queue = ready if expand is None else Expansion(ready, expand, services.guard)
        return Batcher(services, BatchSize(batch), in_flight, queue)

    yield entered.operator(f"{name} batcher", build, on_error=on_error, sorts=True)


def _packed(subject: str, entered: T, expand: Expand) -> T:
    """Return the stream with its values as an expansion takes them. Raises SetupError where there
    is nothing to expand."""
    if not callable(expand):
        raise SetupError(subject, f"its expand is {expand!r}", "give it a function")
    if is_nondeterministic(expand):
        raise SetupError(subject, "its expand is declared nondeterministic, and a restart continues"
                         " in the middle of its outputs",
                         "draw what varies in a map before it")  # fmt: skip
    if not isinstance(entered, Stream):
        raise SetupError(subject, "it expands rows of a collection",
                         "leave out `expand`, and use flat_map in its body")  # fmt: skip
    return cast(T, entered.map(unexpanded))
