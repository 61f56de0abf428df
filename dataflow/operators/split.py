"""The split: sends each record to the one output that a function names.

Guarantees that no record is lost in silence: the error policy gets one without a named output.
Cost: one call per record, one message per output and batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        self._input, self._outputs, self._choose, self._guard = source, outputs, choose, guard
        self._batch_size = AdaptiveBatch(clock, MAX_ROWS)

    def schedule(self) -> bool:
        """Process messages, unless earlier ones still wait. Return whether there were any."""
        if any(output.blocked() for output in self._outputs.values()):
            return False
        worked, rows = False, self._batch_size.rows
        while rows > 0 and (message := self._input.pop(rows)) is not None:
            assert isinstance(message.payload, Batch)
            worked = True
            rows -= len(message.payload)
            with self._batch_size.measure(len(message.payload)):
                self._split(message, message.payload)
        return worked

    def _split(self, message: Message, batch: Batch) -> None:
        batch, names = apply_each(self._choose_output, batch, self._guard)
        for name, output in self._outputs.items():
            chosen = [row for row, named in enumerate(names) if named == name]
            if chosen:
                with output.mint(message) as capability:
                    output.send(capability, message.time, batch.take(np.array(chosen, np.int64)))

    def _choose_output(self, value: object) -> str:
        name = self._choose(value)
        if not isinstance(name, str) or name not in self._outputs:
            raise ValueError(f"{name!r} is none of its outputs {', '.join(self._outputs)}")
        return name
