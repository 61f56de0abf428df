"""How long records stay in an operator on a worker: from their coming to an input of it until the
operator is through with them.

A stateful operator is through with a record once it has applied it, an exchange once it has sent it
on, as is a loop's beginning with what comes back, a sink once its writer says that it is durable,
every other operator by the end of the turn in which it takes it. So whatever a record waits for
counts: its turn, credit, a frontier, on disk too, and its bin. Cost: one entry per message or slice
of records, one pass in native code over those of many turns.
"""

from __future__ import annotations

import numpy as np

from meander.dataflow.metrics.histogram import Histogram
from meander.dataflow.records.batch import Int64s

MICROS = 1_000_000
"""In a second."""

TURNS = 64
"""Whose records are counted at once: a pass takes some microseconds, however few there are."""


class OperatorLatency:
    """One operator's on one worker.

    >>> stay = OperatorLatency()
    >>> stay.over(1.0, records=2); stay.over_each(np.array([0, 500_000])); stay.end_turn(1.5)
    >>> sum(stay.took.counts), stay.took.seconds
    (4, 3.5)
    """

    def __init__(self) -> None:
        self._took = Histogram()
        self._messages: list[tuple[float, int]] = []
        self._records: list[Int64s] = []
        self._turns: list[tuple[float, Int64s]] = []
        """Slices of records that are over, and when."""

    @property
    def took(self) -> Histogram:
        """Of each record it is through with, up to the last turn that has ended."""
        self._count()
        return self._took

    def over(self, arrived: float, records: int) -> None:
        """It is through with all records of a message that arrived at a time of the worker's clock,
        seconds."""
        self._messages.append((arrived, records))

    def over_each(self, arrived: Int64s) -> None:
        """It is through with records that arrived at these times, microseconds, shape (n,)."""
        self._records.append(arrived)

    def end_turn(self, now: float) -> None:
        """Count what it has got through with in this turn."""
        for arrived, records in self._messages:
            self._took.observe(now - arrived, records)
        self._messages.clear()
        self._turns += [(now, arrived) for arrived in self._records]
        self._records.clear()
        if len(self._turns) >= TURNS:
            self._count()

    def _count(self) -> None:
        if self._turns:
            ended, arrived = zip(*self._turns, strict=True)
            until = np.repeat(ended, [*map(len, arrived)])
            self._took.observe_each(until - np.concatenate(arrived) / MICROS)
            self._turns.clear()
