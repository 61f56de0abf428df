"""The sink operator: hands batches to a writer and holds their times until they are delivered.

So the frontier at its output is the flow's probe: what it has passed is durable outside. While the
writer is full nothing is taken, and what is behind waits in its turn (I6). Cost: one capability per
batch under way.
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
from meander.schemas.refused import RowRefused


class Sink:
    """One sink on one worker."""

    def __init__(
        self, source: InputPort, output: OutputPort, writer: SinkWriter, guard: Guard
    ) -> None:
        self._input, self._output, self._writer, self._guard = source, output, writer, guard
        self._under_way: deque[tuple[int, Capability, float, Batch]] = deque()
        """Ticket, right, and when which records came."""

    def schedule(self) -> bool:
        """Write what has come, release what is delivered."""
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
        """Soon, while deliveries are awaited."""
        return 0.001 if self._under_way else None

    def finished(self) -> bool:
        """Whether everything is delivered."""
        return not self._under_way

    def underway(self) -> Iterable[InFlight]:
        """What is not known to be delivered."""
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
    """Write all rows that can be written; the others go the way of the error policy."""
    while True:
        try:
            ticket = writer.write(batch)
        except RowRefused as refused:
            for one in refused.all:
                guard.failed(batch, one.row, one)
            batch = without(batch, refused)
        else:
            guard.counters["written"] += len(batch)
            return ticket


def without(batch: Batch, refused: RowRefused) -> Batch:
    """The rows of a batch that were not refused."""
    return batch.take(np.setdiff1d(np.arange(len(batch)), [one.row for one in refused.all]))
