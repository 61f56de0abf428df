"""The split: sends each record to the one output that a function names.

Guarantees that no record is lost in silence: the error policy gets one without a named output.
Cost: one call per record, one message per output and batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.adaptive_batch import AdaptiveBatch
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import BaseOperator, InputPort, Message, OutputPort
from meander.dataflow.operators.stateless import MAX_ROWS, apply_each
from meander.dataflow.records.batch import Batch


class Split(BaseOperator):
    """A split that sends each record to the output that a function names, on one worker."""

    def __init__(
        self,
        source: InputPort,
        outputs: Mapping[str, OutputPort],
        choose: Callable[[Any], object],
        guard: Guard,
        clock: Clock,
    ) -> None:
        self._input, self._outputs = source, [*outputs.values()]
        self._split = partial(split_rows, choose, [*outputs], guard)
        self._batch_size = AdaptiveBatch(clock, MAX_ROWS)

    def schedule(self) -> bool:
        """Process messages, unless earlier ones still wait. Return whether there were any."""
        if any(output.blocked() for output in self._outputs):
            return False
        worked, rows = False, self._batch_size.rows
        while rows > 0 and (message := self._input.pop(rows)) is not None:
            assert isinstance(message.payload, Batch)
            worked = True
            rows -= len(message.payload)
            with self._batch_size.measure(len(message.payload)):
                send_each(self._outputs, message, self._split(message.payload))
        return worked


def send_each(outputs: Sequence[OutputPort], message: Message, batches: Sequence[Batch]) -> None:
    """Send the records that follow from a consumed message: one batch per output."""
    for output, batch in zip(outputs, batches, strict=True):
        if len(batch):
            with output.mint(message) as capability:
                output.send(capability, message.time, batch)


def split_rows(
    choose: Callable[[Any], object], outputs: Sequence[str], guard: Guard, batch: Batch
) -> list[Batch]:
    """Return the records of each output that a function names."""

    def named(value: object) -> str:
        name = choose(value)
        if not isinstance(name, str) or name not in outputs:
            raise ValueError(f"{name!r} is none of its outputs {', '.join(outputs)}")
        return name

    rows, names = apply_each(named, batch, guard)
    chosen = ([row for row, one in enumerate(names) if one == name] for name in outputs)
    return [rows.take(np.array(some, np.int64)) for some in chosen]
