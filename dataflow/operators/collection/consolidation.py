"""The consolidation: each row of a collection once per time, with the sum of its diffs.

Guarantees that the updates of a time leave once no other can come, so the order of their arrival
does not matter. Invariant: a capability covers the updates that wait. It keeps no state. Cost: one
sort of the updates of a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain

from meander.dataflow.operators.collection.pending import PendingUpdates
from meander.dataflow.operators.collection.updates import UpdateCoding
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.ports import BaseOperator, InFlight, InputPort, OutputPort
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import iterations_of
from meander.state.collections.columns import Int64s
from meander.state.collections.description import LayerDescription
from meander.state.collections.merge import layer_of
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME, Time


class Consolidation(BaseOperator):
    """A consolidation on one worker."""

    def __init__(
        self, context: OperatorContext, source: InputPort, output: OutputPort, depth: int,
        coding: UpdateCoding,
    ) -> None:  # fmt: skip
        self._coding = coding
        coding.dictionary.add_holder(self._codes)
        self._control, self._input, self._output = context.control, source, output
        self._pending, self._unsent = PendingUpdates(depth), deque[tuple[Time, Batch]]()
        self._capabilities = CapabilitySet()
        self._upper = Antichain.of((MIN_TIME,) * depth if depth > 1 else MIN_TIME)

    def schedule(self) -> bool:
        """Receive updates, consolidate passed ones, and send. Return whether the operator
        worked."""
        worked = self._receive()
        upper = self._control().meet(self._input.frontier)
        if upper != self._upper:
            worked |= self._consolidate(upper)
        while self._unsent and not self._output.blocked():
            time, batch = self._unsent.popleft()
            self._output.send(self._capabilities.capability_for(time), time, batch)
            worked = True
        if worked:
            unsent = (time for time, _ in self._unsent)
            self._capabilities.downgrade(*unsent, *self._pending.least_times)
        return worked

    def in_flight(self) -> Iterator[InFlight]:
        """Return the updates that wait for their time or for the output."""
        waiting = chain(self._unsent, self._coding.batches_of(self._pending.all()))
        return (InFlight(self._input.location, time, batch) for time, batch in waiting)

    def _receive(self) -> bool:
        received = False
        for message in self._input.drain():
            received = True
            assert isinstance(message.payload, Batch)
            self._capabilities.retain(self._output.mint(message))
            iterations = iterations_of(message.time)
            self._pending.add(self._coding.updates_of(message.payload, iterations), iterations)
        return received

    def _codes(self) -> Iterator[Int64s]:
        """Return the codes of the updates that wait."""
        return self._coding.codes(self._pending.all())

    def _consolidate(self, upper: Antichain) -> bool:
        ready = self._pending.take(upper)
        description = LayerDescription(self._upper, upper, self._upper)
        self._upper = upper
        if len(ready):
            for some in layer_of(ready, description).updates():
                self._unsent += self._coding.batches_of(some)
        return len(ready) > 0
