"""Prefixes that wait at an operator: until their time is complete, and then until it takes them.

Invariant: a capability covers all prefixes that wait. Those of incomplete times beyond
`max_waiting` bytes wait on disk (I6). Cost: none per prefix while they wait in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain

from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.custom import OperatorServices
from meander.dataflow.operators.ports import BaseOperator, InFlight, least_of
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import iterations_of


class WaitingOperator(BaseOperator):
    """An operator at which prefixes wait, on one worker."""

    def __init__(self, services: OperatorServices) -> None:
        context = services.context
        self._input, self._output = services.input, services.output
        self._max_waiting = context.max_waiting
        self._waiting, self._ready = context.buffer("prefixes"), deque[Rows]()
        self._capabilities = CapabilitySet()

    def in_flight(self) -> Iterable[InFlight]:
        """Return the prefixes that wait as of the call."""
        at, rows = self._input.location, chain([*self._ready], self._waiting.rows())
        return (InFlight.isolated(at, some.least_time, some.batch) for some in rows)

    def _receive(self) -> bool:
        """Receive all messages. Return whether there were any."""
        received = False
        for message in self._input.drain():
            received = True
            assert isinstance(message.payload, Batch)
            self._capabilities.retain(self._output.mint(message))
            self._waiting.add(Rows.of(message.payload, 0, iterations_of(message.time)))
        if received:
            self._waiting.spill_past(self._max_waiting)
        return received

    def _downgrade(self) -> None:
        """Give up all times but those of prefixes that wait."""
        ready = (rows.least_time for rows in self._ready)
        self._capabilities.downgrade(*least_of(*self._waiting.pending_times, *ready))
