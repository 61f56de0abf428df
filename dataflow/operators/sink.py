"""The sink operator: hands batches to a writer and holds their times until they are durable.

The frontier at its output is therefore the flow's probe: results before it are durable outside.
While the writer is full, the sink consumes no message, and earlier operators wait too (I6). Cost:
one capability per batch that is not durable yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from meander.dataflow.errors import WritesDropped
from meander.dataflow.interfaces import SinkWriter
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import InFlight, InputPort, OutputPort
from meander.dataflow.progress.capability import Capability
from meander.dataflow.records.batch import Batch
from meander.schemas.row_error import RowError


class SinkOperator:
    """A sink that writes results on one worker."""

    def __init__(
        self, source: InputPort, output: OutputPort, writer: SinkWriter, guard: Guard
    ) -> None:
        self._input, self._output, self._writer, self._guard = source, output, writer, guard
        self._undelivered: deque[tuple[int, Capability, float, Batch]] = deque()
        """The ticket, the capability, the arrival time and the written rows of each write."""

    def schedule(self) -> bool:
        """Write new batches, and drop durable ones. Return whether the sink worked."""
        received = False
        messages = self._input.consume()
        while not self._writer.full and (message := next(messages, None)) is not None:
            received = True
            assert isinstance(message.payload, Batch)
            self._write(message.payload, self._output.mint(message), message.arrived_at)
        return self._release() or received

    def wait_seconds(self) -> float | None:
        """Return a short time while writes are not durable."""
        return 0.001 if self._undelivered else None

    def finished(self) -> bool:
        """Return whether all results are durable."""
        return not self._undelivered

    def in_flight(self) -> Iterable[InFlight]:
        """Return the results that may not be durable yet."""
        at = self._input.location
        return [
            InFlight.isolated(at, capability.time, batch)
            for _, capability, _, batch in self._undelivered
            if len(batch)
        ]

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()

    def _write(self, batch: Batch, capability: Capability, arrived: float) -> None:
        ticket, written = write_valid(self._writer, self._guard, batch)
        self._input.latency.complete(arrived, len(batch) - len(written))
        self._undelivered.append((ticket, capability, arrived, written))

    def _write_again(self) -> None:
        """Write all results that are not durable again, in their order."""
        undelivered, self._undelivered = self._undelivered, deque()
        for _, capability, arrived, batch in undelivered:
            self._guard.counters["written"] -= len(batch)
            self._write(batch, capability, arrived)

    def _release(self) -> bool:
        try:
            delivered = self._writer.delivered()
        except WritesDropped:
            self._write_again()
            return True
        released = False
        while self._undelivered and self._undelivered[0][0] <= delivered:
            _, capability, arrived, batch = self._undelivered.popleft()
            capability.drop()
            self._input.latency.complete(arrived, len(batch))
            released = True
        return released


def write_valid(writer: SinkWriter, guard: Guard, batch: Batch) -> tuple[int, Batch]:
    """Write the rows that the writer accepts; return the ticket and these rows. The error policy
    gets the others."""
    while True:
        try:
            ticket = writer.write(batch)
        except RowError as refused:
            for one in refused.all:
                guard.failed(batch, one.row, one)
            batch = without_refused(batch, refused)
        else:
            guard.counters["written"] += len(batch)
            return ticket, batch


def without_refused(batch: Batch, refused: RowError) -> Batch:
    """Return the rows of a batch that were not refused."""
    return batch.take(np.setdiff1d(np.arange(len(batch)), [one.row for one in refused.all]))
