"""The two ends of a loop: the loop entry takes new and returned records, the feedback sends them
back.

Guarantees that no record iterates for ever: the error policy gets one that has had all its
iterations. Returned records come before new ones. They never wait for credit, as all operators on
the cycle would wait for each other. Past a bound they go to disk (I6), and leave it by time and
iteration, in slices. Invariant: waiting records have a capability (I1). The index begins at 0 in
each iteration, as a flat_map would soon use it up. The bytes of values order equal places. Cost:
one encoding of each returned value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import BaseOperator, InFlight, InputPort, OutputPort, least_of
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import rounds_of
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time

_ALL = Antichain()
"""The empty frontier, which has passed all times: returned records wait for no frontier."""


class TooManyRounds(Exception):
    """An error for a record that would exceed the iterations of its loop."""


class LoopEntry(BaseOperator):
    """A loop entry that starts one loop on one worker."""

    def __init__(
        self, context: OperatorContext, entering: InputPort, back: InputPort, output: OutputPort
    ) -> None:
        self._entering, self._back, self._output = entering, back, output
        self.waiting, self._most = context.buffer("records"), context.max_waiting
        self._held = CapabilitySet()

    def schedule(self) -> bool:
        """Pass messages on, unless earlier ones still wait. Return whether the entry worked."""
        worked = self._take_back()
        if not self._output.blocked():
            worked |= self._go_on()
        if worked:
            self._held.downgrade(*least_of(*self.waiting.owed))
        return worked

    def underway(self) -> Iterable[InFlight]:
        """Return the records that have come back."""
        at = self._back.location
        rows = self.waiting.rows()
        return (InFlight(at, some.least_time, some.batch) for some in rows)

    def _take_back(self) -> bool:
        """Take all returned records, as no sender can wait here, and spill those past the bound.
        Return whether there were any."""
        taken = False
        for message in self._back.hold():
            taken = True
            self._held.retain(self._output.mint(message))
            assert isinstance(message.payload, Batch)
            rounds = rounds_of(message.time)
            self.waiting.add(Rows.of(message.payload, 0, rounds, message.arrived))
        over = self.waiting.size - self._most if taken else 0
        while over > 0 and (moved := self.waiting.shed()):
            over -= moved
        return taken

    def _go_on(self) -> bool:
        ready, more = self.waiting.passed(_ALL)
        for rows in ready:
            time = rows.least_time
            self._output.send(self._held.permitting(time), time, rows.batch)
            self._back.stay.over_each(rows.arrived)
        return self._enter() or bool(ready) or more

    def _enter(self) -> bool:
        """Take records from outside once no returned record waits. Return whether there were
        any."""
        entered = False
        for message in self._entering.drain() if self.waiting.least is None else ():
            entered = True
            with self._output.mint(message) as capability:
                self._output.send(capability, message.time, message.payload)
        return entered


class Again(BaseOperator):
    """A feedback that sends records back to the entry of their loop on one worker."""

    def __init__(
        self, source: InputPort, output: OutputPort, most: int, guard: Guard, keyless: bool
    ) -> None:
        """Take ports and the most iterations. `keyless` tells that the stream of the loop has no
        keys."""
        self._input, self._output, self._most, self._guard = source, output, most, guard
        self._keyless = keyless

    def schedule(self) -> bool:
        """Send records back. Return whether there were any."""
        worked = False
        for message in self._input.drain():
            worked = True
            assert isinstance(message.payload, Batch)
            with self._output.mint(message) as capability:
                batch = self._admitted(message.payload, message.time)
                if len(batch):
                    self._output.send(capability, message.time, batch)
        return worked

    def _admitted(self, batch: Batch, time: Time) -> Batch:
        done = rounds_of(time)[-1] + 1
        if done < self._most:
            batch = batch.without_keys() if self._keyless else batch
            return replace(batch.measured(), indexes=np.zeros(len(batch), np.int64))
        error = TooManyRounds(f"it has had {done} rounds, and max_rounds is {self._most}")
        for row in range(len(batch)):
            self._guard.failed(batch, row, error)
        return batch.take(np.array([], np.int64))
