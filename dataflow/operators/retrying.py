"""An operator whose function is called again where it fails: a stateless step, or a split.

Guarantees that records keep their order: those from the failing record on stay at the input, and
nothing waits but they. So progress tracking, credit and checkpoints know them as any others. Cost:
that of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.adaptive_batch import BYTES, AdaptiveBatch
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import BaseOperator, InputPort, OutputPort
from meander.dataflow.operators.split import send_each
from meander.dataflow.operators.stateless import MAX_ROWS
from meander.dataflow.records.batch import Batch


class RetryingOperator(BaseOperator):
    """An operator that applies one function to each record, with retries, on one worker."""

    def __init__(
        self,
        source: InputPort,
        outputs: Sequence[OutputPort],
        apply: Callable[[Batch], Sequence[Batch]],
        guard: Guard,
        clock: Clock,
    ) -> None:
        """`apply` returns one batch per output for the first records of a batch, up to the record
        at which `guard` stops it."""
        self._input, self._outputs, self._apply, self._guard = source, outputs, apply, guard
        self._batch_size = AdaptiveBatch(clock, MAX_ROWS)

    def schedule(self) -> bool:
        """Process records, unless earlier ones still wait. Return whether there were any."""
        worked, rows, size = False, self._batch_size.rows, BYTES
        while rows > 0 and size > 0 and not self._rests:
            message = self._input.peek(rows)
            if message is None:
                break
            assert isinstance(message.payload, Batch)
            worked, batch = True, message.payload
            with self._batch_size.measure(len(batch)):
                batches = self._apply(batch)
                done = self._guard.end_pass(len(batch))
                output_bytes = max(one.estimated_weight for one in batches)
                self._batch_size.count_output(output_bytes)
            if done and (message := self._input.pop(done)) is not None:
                send_each(self._outputs, message, batches)
            rows, size = rows - len(batch), size - output_bytes
        return worked

    @property
    def _rests(self) -> bool:
        return self._guard.waiting or any(output.blocked() for output in self._outputs)

    def wait_seconds(self) -> float | None:
        """Return the seconds until the next call, where a record waits for one."""
        return None if self._guard.retries is None else self._guard.retries.wait_seconds()
