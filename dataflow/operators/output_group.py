"""The output group: the outputs of one operator, which holds equal capabilities at all of them.

Guarantees that a frontier that has passed a time at one output has passed it at all of them. Cost:
one capability per output and least held time, one with a single output in the outer scope.
"""

from __future__ import annotations

from collections.abc import Sequence

from meander.dataflow.operators.ports import Message, OutputPort
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time


class Outputs:
    """An output group that holds equal capabilities at all outputs of one operator on one
    worker."""

    def __init__(self, ports: Sequence[OutputPort], held: OutputPort | None = None) -> None:
        """At `held` the operator holds times for the wall clock."""
        self._ports = [(port, CapabilitySet()) for port in ports]
        self._held = None if held is None else (held, CapabilitySet())
        self._all = self._ports if self._held is None else [*self._ports, self._held]

    @property
    def frontier(self) -> Antichain:
        """Return the frontier of messages that may still leave, here or on any other worker."""
        return self._ports[0][0].frontier

    @property
    def blocked(self) -> bool:
        """Return whether earlier messages of an output still wait for their readers."""
        return any(port.blocked() for port, _ in self._ports)

    @property
    def least(self) -> tuple[Time, ...]:
        """Return the least held times."""
        return self._ports[0][1].least

    def open(self, time: Time) -> None:
        """Create and hold a capability at each output, as only the opening of an operator may."""
        for port, capabilities in self._all:
            capabilities.retain(port.open(time))

    def retain(self, message: Message) -> None:
        """Hold the capability of a message, in the step that consumes the message."""
        for port, capabilities in self._all:
            capabilities.retain(port.mint(message))

    @property
    def held(self) -> tuple[Time, ...]:
        """Return the least times that are held for the wall clock."""
        return () if self._held is None else self._held[1].least

    def downgrade_held(self, *least: Time) -> None:
        """Downgrade what is held for the wall clock to these times and later."""
        if self._held is not None:
            self._held[1].downgrade(*least)

    def call_at(self, time: Time) -> None:
        """Hold a capability at each output for a time that is held for the wall clock."""
        assert self._held is not None, "the operator has alarms"
        self._held[1].capability_for(time).check(time)
        for port, capabilities in self._ports:
            capabilities.retain(port.open(time))

    def downgrade(self, *least: Time) -> None:
        """Downgrade to the capabilities for sending at these times and later."""
        for _, capabilities in self._ports:
            capabilities.downgrade(*least)

    def send(self, time: Time, batch: Batch, number: int = 0) -> None:
        """Send by one output. Raises CapabilityError if no held capability permits it."""
        port, capabilities = self._ports[number]
        port.send(capabilities.capability_for(time), time, batch)
