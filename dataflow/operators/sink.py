"""The sink operator: hands batches to a writer and holds their times until they are durable.

The frontier at its output is therefore the flow's probe: its passed times are durable outside.
While the writer is full, the sink takes no message, and earlier operators wait too (I6). Cost: one
capability per batch that is not yet durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from meander.dataflow.interfaces import SinkWriter
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import InFlight, InputPort, OutputPort
from meander.dataflow.progress.capability import Capability
from meander.dataflow.records.batch import Batch
from meander.schemas.row_error import RowError


class Sink:
    """A sink that writes results on one worker."""

    def __init__(
        self, source: InputPort, output: OutputPort, writer: SinkWriter, guard: Guard
    ) -> None:
        self._input, self._output, self._writer, self._guard = source, output, writer, guard
        self._under_way: deque[tuple[int, Capability, float, Batch]] = deque()
        """The ticket, the capability, the arrival time and the batch of each write."""

    def schedule(self) -> bool:
        """Write new batches, and release durable ones. Return whether the sink worked."""
        took = False
        messages = self._input.hold()
        while not self._writer.full and (message := next(messages, None)) is not None:
            took = True
            assert isinstance(message.payload, Batch)
            capability = self._output.mint(message)
            ticket = written(self._writer, self._guard, message.payload)
            self._under_way.append((ticket, capability, message.arrived, message.payload))
        return self._release() or took

    def wait_seconds(self) -> float | None:
        """Return a short time while writes are not durable."""
        return 0.001 if self._under_way else None

    def finished(self) -> bool:
        """Return whether all results are durable."""
        return not self._under_way

    def underway(self) -> Iterable[InFlight]:
        """Return the results that are not known to be durable."""
        at = self._input.location
        return [InFlight.held(at, right.time, batch) for _, right, _, batch in self._under_way]

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()

    def _release(self) -> bool:
        delivered = self._writer.delivered()
        released = False
        while self._under_way and self._under_way[0][0] <= delivered:
            _, capability, arrived, batch = self._under_way.popleft()
            capability.drop()
            self._input.stay.over(arrived, len(batch))
            released = True
        return released


def written(writer: SinkWriter, guard: Guard, batch: Batch) -> int:
    """Write all rows that can be written, and return the ticket. The error policy gets the
    others."""
    while True:
        try:
            ticket = writer.write(batch)
        except RowError as refused:
            for one in refused.all:
                guard.failed(batch, one.row, one)
            batch = without(batch, refused)
        else:
            guard.counters["written"] += len(batch)
            return ticket


def without(batch: Batch, refused: RowError) -> Batch:
    """Return the rows of a batch that were not refused."""
    return batch.take(np.setdiff1d(np.arange(len(batch)), [one.row for one in refused.all]))
