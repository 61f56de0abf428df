"""The two ends of a loop: the entry receives new and returned records, the feedback returns them.

Guarantees that no record iterates for ever: the error policy gets one that has had all its
iterations. Returned records precede new ones. They never wait for credit, as all operators on the
cycle would wait for each other. Past a bound they go to disk (I6), and leave it by time and
iteration, in slices. Invariant: waiting records have a capability (I1). The index begins at 0 in
each iteration, as a flat_map would soon use it up. The bytes of values order equal places. Cost:
one encoding of each returned value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn

import numpy as np

from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import BaseOperator, InFlight, InputPort, OutputPort, least_of
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import iterations_of
from meander.schemas.errors import MeanderError
from meander.state.encoding.value_columns import ValueColumns
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time

_ALL = Antichain()
"""The empty frontier, which has passed all times: returned records wait for no frontier."""


class TooManyIterationsError(Exception):
    """An error for a record that would exceed the iterations of its loop."""


class EndlessLoop(Guard):
    """A guard that ends the flow where a collection changes in more iterations than its loop has.
    Without some of its changes it would be another collection."""

    def failed(self, batch: Batch, row: int, error: BaseException) -> NoReturn:
        """Raise an error that names the loop and a key."""
        assert isinstance(batch.values, ValueColumns), "a collection has typed columns"
        key, *_ = batch.values[row]
        raise MeanderError(
            f"loop {self.operator!r}",
            f"its collection still changes, as at key {key}: {error}",
            "have its body come to an end, or raise max_iterations",
        )


class LoopEntry(BaseOperator):
    """A loop entry that sends new and returned records into one loop, on one worker."""

    def __init__(
        self, context: OperatorContext, entering: InputPort, back: InputPort, output: OutputPort
    ) -> None:
        self._entering, self._back, self._output = entering, back, output
        self.returned, self._max_waiting = context.buffer("records"), context.max_waiting
        self._capabilities = CapabilitySet()

    def schedule(self) -> bool:
        """Receive returned records, and send some unless earlier messages still wait. Return
        whether the entry worked."""
        worked = self._receive_returned()
        if not self._output.blocked():
            worked |= self._send_some()
        if worked:
            self._capabilities.downgrade(*least_of(*self.returned.pending_times))
        return worked

    def in_flight(self) -> Iterable[InFlight]:
        """Return the returned records."""
        at = self._back.location
        rows = self.returned.rows()
        return (InFlight(at, some.least_time, some.batch) for some in rows)

    def _receive_returned(self) -> bool:
        """Receive all returned records, as no sender can wait here, and spill those past the bound.
        Return whether there were any."""
        received = False
        for message in self._back.consume():
            received = True
            self._capabilities.retain(self._output.mint(message))
            assert isinstance(message.payload, Batch)
            iterations = iterations_of(message.time)
            self.returned.add(Rows.of(message.payload, 0, iterations, message.arrived_at))
        if received:
            self.returned.spill_past(self._max_waiting)
        return received

    def _send_some(self) -> bool:
        ready, more = self.returned.pop_passed(_ALL)
        for rows in ready:
            time = rows.least_time
            self._output.send(self._capabilities.capability_for(time), time, rows.batch)
            self._back.latency.complete_each(rows.arrivals)
        return self._enter() or bool(ready) or more

    def _enter(self) -> bool:
        """Send records from outside once no returned record waits. Return whether there were
        any."""
        entered = False
        for message in self._entering.drain() if self.returned.least is None else ():
            entered = True
            with self._output.mint(message) as capability:
                self._output.send(capability, message.time, message.payload)
        return entered


class Feedback(BaseOperator):
    """A feedback that returns records to the entry of their loop on one worker."""

    def __init__(
        self,
        source: InputPort,
        output: OutputPort,
        max_iterations: int,
        guard: Guard,
        keyless: bool,
    ) -> None:
        """With `keyless` the stream of the loop has no keys."""
        self._input, self._output, self._guard = source, output, guard
        self._max_iterations, self._keyless = max_iterations, keyless

    def schedule(self) -> bool:
        """Return records to the entry. Return whether there were any."""
        worked = False
        for message in self._input.drain():
            worked = True
            assert isinstance(message.payload, Batch)
            with self._output.mint(message) as capability:
                batch = self._next_iteration(message.payload, message.time)
                if len(batch):
                    self._output.send(capability, message.time, batch)
        return worked

    def _next_iteration(self, batch: Batch, time: Time) -> Batch:
        done = iterations_of(time)[-1] + 1
        if done < self._max_iterations:
            batch = batch.without_keys() if self._keyless else batch
            return replace(batch.measured(), indexes=np.zeros(len(batch), np.int64))
        error = TooManyIterationsError(
            f"it has had {done} iterations, and max_iterations is {self._max_iterations}"
        )
        for row in range(len(batch)):
            self._guard.failed(batch, row, error)
        return batch.take(np.array([], np.int64))
