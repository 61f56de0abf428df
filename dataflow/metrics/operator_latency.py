"""The operator latency: the time of records in an operator on a worker, from arrival to completion.

A stateful operator completes a record once it has applied it. An exchange and a loop entry complete
it once they have sent it. A sink completes it once its writer reports it durable. Any other
operator completes it at the end of the turn.

Each wait therefore counts: for the turn, credit, a frontier, the disk and the bin. Cost: one entry
per message or slice of records, and one pass in native code for many turns.
"""

from __future__ import annotations

import numpy as np

from meander.dataflow.metrics.histogram import Histogram
from meander.dataflow.records.batch import Int64s

MICROS = 1_000_000
"""Microseconds in a second."""

TURNS = 64
"""The number of turns per pass over records, as each pass takes some microseconds."""


class OperatorLatency:
    """A measurement of the latency of one operator on one worker.

    >>> latency = OperatorLatency()
    >>> latency.complete(1.0, records=2); latency.complete_each(np.array([0, 500_000]))
    >>> latency.end_turn(1.5)
    >>> sum(latency.durations.counts), latency.durations.seconds
    (4, 3.5)
    """

    def __init__(self) -> None:
        self._durations = Histogram()
        self._messages: list[tuple[float, int]] = []
        self._records: list[Int64s] = []
        self._turns: list[tuple[float, Int64s]] = []
        """Completed slices of records, and the time of completion."""

    @property
    def durations(self) -> Histogram:
        """Return the histogram of completed records up to the last finished turn."""
        self._count()
        return self._durations

    def complete(self, arrived_at: float, records: int) -> None:
        """Complete all records of a message that arrived at a time of the worker's clock, in
        seconds."""
        self._messages.append((arrived_at, records))

    def complete_each(self, arrived_at: Int64s) -> None:
        """Complete records that arrived at these times in microseconds, shape (n,)."""
        self._records.append(arrived_at)

    def end_turn(self, now: float) -> None:
        """Count the records that this turn has completed."""
        for arrived, records in self._messages:
            self._durations.observe(now - arrived, records)
        self._messages.clear()
        self._turns += [(now, arrived) for arrived in self._records]
        self._records.clear()
        if len(self._turns) >= TURNS:
            self._count()

    def _count(self) -> None:
        if self._turns:
            ended, arrived = zip(*self._turns, strict=True)
            until = np.repeat(ended, [*map(len, arrived)])
            self._durations.observe_each(until - np.concatenate(arrived) / MICROS)
            self._turns.clear()
