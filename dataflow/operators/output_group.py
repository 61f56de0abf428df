"""The outputs of one operator, at all of which it holds the same rights.

Guarantees that a frontier that has passed a time at one output has passed it at all of them. Cost:
one capability per output and least time that is held, one with a single output in the outer scope.
"""

from __future__ import annotations

from collections.abc import Sequence

from meander.dataflow.operators.ports import Message, OutputPort
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time


class Outputs:
    """One operator's outputs on one worker."""

    def __init__(self, ports: Sequence[OutputPort]) -> None:
        self._ports = [(port, CapabilitySet()) for port in ports]

    @property
    def frontier(self) -> Antichain:
        """What may still leave, here or on any other worker."""
        return self._ports[0][0].frontier

    @property
    def blocked(self) -> bool:
        """Whether what was sent before by one of them still waits to be taken."""
        return any(port.blocked() for port, _ in self._ports)

    @property
    def least(self) -> tuple[Time, ...]:
        """The least times held."""
        return self._ports[0][1].least

    def open(self, time: Time) -> None:
        """Hold a right out of nothing: only in an operator's opening."""
        for port, held in self._ports:
            held.retain(port.open(time))

    def retain(self, message: Message) -> None:
        """Hold the right that a message brings, to be taken in the step that consumes it."""
        for port, held in self._ports:
            held.retain(port.mint(message))

    def keep(self, *least: Time) -> None:
        """Give up what is not needed to send at these times and later."""
        for _, held in self._ports:
            held.downgrade(*least)

    def send(self, time: Time, batch: Batch, number: int = 0) -> None:
        """Send by one of them. Raises CapabilityError if nothing is held that permits it."""
        port, held = self._ports[number]
        port.send(held.permitting(time), time, batch)
