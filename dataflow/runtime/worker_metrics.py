"""What a worker counts of its own work, so that a running flow can be looked at.

Guarantees that every figure only ever grows, so that whoever reads them seldom misses nothing.
Cost: per message one addition, per operator and turn one reading of the clock, and that of
`OperatorLatency`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meander.dataflow.graph.graph import Edge, Graph
from meander.dataflow.graph.graph import Node as Ports
from meander.dataflow.metrics.histogram import Histogram
from meander.dataflow.metrics.operator_latency import OperatorLatency
from meander.dataflow.records.batch import Batch
from meander.dataflow.wire import Payload


@dataclass(frozen=True, slots=True)
class Work:
    """What one operator on one worker has done."""

    received: int
    """Records that have come to its inputs."""
    sent: int
    """Records that have left its output; to several readers, each counts once."""
    busy: float
    """Seconds of the turns in which it did anything."""
    took: Histogram
    """How long each record was in it, from its coming to an input until the operator was through
    with it (`dataflow.metrics.operator_latency`)."""


class Meters:
    """One worker's account, by edge and by operator."""

    def __init__(self, graph: Graph, operators: Sequence[Ports]) -> None:
        self._operators = operators
        self.names = [ports.name for ports in operators]
        """Of the operators, by place."""
        self._received, self._sent = [0] * len(graph.edges), [0] * len(graph.edges)
        self._busy = [0.0] * len(operators)
        self._stays = [OperatorLatency() for _ in operators]
        self.stays = {
            at: stay
            for ports, stay in zip(operators, self._stays, strict=True)
            for at in ports.inputs
        }
        """By input."""
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

    def turn(self, operator: int, began: float, ended: float) -> None:
        """An operator, by its place among all, has done something in a turn, between these times of
        the worker's clock, seconds."""
        self._busy[operator] += ended - began
        self._stays[operator].end_turn(ended)

    def work(self) -> dict[str, Work]:
        """What each operator has done so far, by name."""
        return {
            ports.name: Work(
                sum(self._received[edge] for edge in into),
                sum(self._sent[edge] for edge in out_of),
                busy,
                stay.took,
            )
            for ports, into, out_of, busy, stay in zip(
                self._operators, self._into, self._out_of, self._busy, self._stays, strict=True
            )
        }
