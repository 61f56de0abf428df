"""The operator that keeps a collection up to date: it steps from frontier to frontier.

Guarantees that a step takes all updates between two frontiers of its inputs in one pass, however
many distinct times they have, and that the output has each time's own differences (the differential
dataflow status report, "Poor scaling with small updates"). Times stay in the product order, so
different outer times iterate beside each other. The output of a step leaves in pieces. Invariant:
capabilities cover the waiting updates and the moments at which an output may still change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from meander.dataflow.operators.collection.pending import PendingUpdates, not_before
from meander.dataflow.operators.collection.updates import batches_of, least_times, updates_of
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.ports import BaseOperator, InFlight, InputPort, OutputPort
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import iterations_of
from meander.state.collections.columns import Int64s
from meander.state.collections.description import Description
from meander.state.collections.layer import Layer, Updates
from meander.state.collections.merge import layer_of
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME

IDLE_FUEL = 1 << 14
"""The rows that a turn without input merges."""


class CollectionLogic(Protocol):
    """A logic that turns the next layers of its inputs into updates of its output."""

    @property
    def pending(self) -> Int64s:
        """Return the times at which its output may change without input, shape (n, depth)."""

    def step(self, layers: Sequence[Layer]) -> Iterator[Updates]:
        """Yield the updates of the output before the upper frontier of the layers."""

    def compact(self, fuel: int) -> bool:
        """Merge up to `fuel` rows; return whether there were any."""


class CollectionOperator(BaseOperator):
    """An operator with one logic over collections, on one worker."""

    def __init__(
        self,
        context: OperatorContext,
        inputs: Sequence[InputPort],
        output: OutputPort,
        logic: CollectionLogic,
        depth: int,
    ) -> None:
        """Take the coordinates of a time in the scope of the operator."""
        self.name, self._control, self._depth = context.name, context.control, depth
        self._inputs, self._output, self._logic = inputs, output, logic
        self._pending = [PendingUpdates(depth) for _ in inputs]
        self._capabilities = CapabilitySet()
        self._upper = Antichain.of((MIN_TIME,) * depth if depth > 1 else MIN_TIME)
        self._running: Iterator[Updates] | None = None

    def schedule(self) -> bool:
        """Receive updates, and begin or continue a step; merge where there is none. Return whether
        the operator worked."""
        worked = self._receive()
        if self._running is None:
            self._begin()
        if self._running is not None:
            return self._proceed() or worked
        return worked or self._logic.compact(IDLE_FUEL)

    def finished(self) -> bool:
        """Return whether no step is under way."""
        return self._running is None

    def in_flight(self) -> Iterator[InFlight]:
        """Return the waiting updates."""
        for port, pending in zip(self._inputs, self._pending, strict=True):
            for time, batch in batches_of(pending.all()):
                yield InFlight(port.location, time, batch)

    def _receive(self) -> bool:
        received = False
        for port, pending in zip(self._inputs, self._pending, strict=True):
            for message in port.drain():
                received = True
                assert isinstance(message.payload, Batch)
                self._capabilities.retain(self._output.mint(message))
                pending.add(updates_of(message.payload, iterations_of(message.time)))
        return received

    def _begin(self) -> None:
        """Begin a step where the inputs' frontier has passed something that waits."""
        upper = self._control()
        for port in self._inputs:
            upper = upper.meet(port.frontier)
        if upper == self._upper:
            return
        ready = [pending.take(upper) for pending in self._pending]
        if not any(map(len, ready)) and not_before(self._logic.pending, upper).all():
            return
        lower, self._upper = self._upper, upper
        description = Description(lower, upper, lower)
        self._running = self._logic.step([layer_of(one, description) for one in ready])

    def _proceed(self) -> bool:
        """Send the next piece of a step, or end it. Return whether the output was not blocked."""
        assert self._running is not None
        if self._output.blocked():
            return False
        piece = next(self._running, None)
        if piece is not None:
            for time, batch in batches_of(piece):
                self._output.send(self._capabilities.capability_for(time), time, batch)
            return True
        self._running = None
        times = [self._logic.pending, *(pending.times for pending in self._pending)]
        self._capabilities.downgrade(*least_times(np.concatenate(times)))
        return True
