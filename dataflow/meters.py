"""What a worker counts of its own work, so that a running flow can be looked at.

Guarantees that every figure only ever grows, so that whoever reads them seldom misses nothing.
Cost: per message one addition, per operator and turn one reading of the clock; nothing per record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from dataflow.batch import Batch
from dataflow.graph import Edge, Graph
from dataflow.graph import Node as Ports
from dataflow.wire import Payload

BOUNDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Seconds up to which a bucket counts; one more counts all above."""


@dataclass(slots=True)
class Histogram:
    """How often something took how long.

    >>> seen = Histogram()
    >>> seen.observe(0.0001); seen.observe(0.002); seen.observe(60)
    >>> seen.counts, seen.seconds
    ([1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1], 60.0021)
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    """By bucket; not summed up."""
    seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Seconds within which so large a share stayed, to a bucket's precision; None where that is
    longer than all bounds. Of nothing it is the least bound.

    >>> quantile([2, 0, 1] + [0] * 10, 0.5), quantile([2, 0, 1] + [0] * 10, 0.99)
    (0.0001, 0.001)
    >>> quantile([0] * 12 + [1], 0.5)
    """
    bounds = zip(BOUNDS, accumulate(counts), strict=False)
    return next((bound for bound, upto in bounds if upto >= share * sum(counts)), None)


@dataclass(frozen=True, slots=True)
class Work:
    """What one operator on one worker has done."""

    received: int
    """Records that have come to its inputs."""
    sent: int
    """Records that have left its output; to several readers, each counts once."""
    turns: Histogram
    """How long each turn took in which it did anything."""


class Meters:
    """One worker's account, by edge and by operator."""

    def __init__(self, graph: Graph, operators: Sequence[Ports]) -> None:
        self._operators = operators
        self._received, self._sent = [0] * len(graph.edges), [0] * len(graph.edges)
        self._turns = [Histogram() for _ in operators]
        self._into = [
            [edge.id for edge in graph.edges if edge.target in ports.inputs] for ports in operators
        ]
        # What leaves by several edges is the same records on each.
        first = {edge.source: edge.id for edge in reversed(graph.edges)}
        self._out_of = [[first[at] for at in o.outputs if at in first] for o in operators]

    def sent(self, edge: Edge, payload: Payload) -> None:
        """A message leaves by an edge, to any worker."""
        if isinstance(payload, Batch):
            self._sent[edge.id] += len(payload)

    def received(self, edge: Edge, payload: Payload) -> None:
        """A message has come by an edge."""
        if isinstance(payload, Batch):
            self._received[edge.id] += len(payload)

    def turn(self, operator: int, seconds: float) -> None:
        """An operator, by its place among all, has done something in a turn."""
        self._turns[operator].observe(seconds)

    def work(self) -> dict[str, Work]:
        """What each operator has done so far, by name."""
        return {
            ports.name: Work(
                sum(self._received[edge] for edge in into),
                sum(self._sent[edge] for edge in out_of),
                turns,
            )
            for ports, into, out_of, turns in zip(
                self._operators, self._into, self._out_of, self._turns, strict=True
            )
        }
