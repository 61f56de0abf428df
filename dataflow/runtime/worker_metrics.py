"""Metrics of a worker's own work.

Guarantees that every figure only grows, so a rare reader misses nothing. Cost: per message one
addition, per operator and turn one reading of the clock, and that of `OperatorLatency`.
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
class OperatorWork:
    """The work of one operator on one worker."""

    received: int
    """The records that arrived at its inputs."""
    sent: int
    """The records that left its output; a record with several readers counts once."""
    busy: float
    """The seconds of turns in which it did anything."""
    durations: Histogram
    """The time of each record from its arrival until the operator was done with it
    (`dataflow.metrics.operator_latency`)."""


@dataclass(frozen=True, slots=True)
class StateSize:
    """The size of one operator's keyed state on one worker."""

    keys: int
    """About the number of keys (`Store.keys`)."""
    bytes: int
    """The bytes of its layers on the state topic."""
    forgotten: int
    """The number of keys that it has forgotten."""


class WorkerMetrics:
    """The metrics of one worker by edge and by operator."""

    def __init__(self, graph: Graph, operators: Sequence[Ports]) -> None:
        self._operators = operators
        self.names = [ports.name for ports in operators]
        """The names of the operators, by place."""
        self._received, self._sent = [0] * len(graph.edges), [0] * len(graph.edges)
        self._busy = [0.0] * len(operators)
        self._latencies = [OperatorLatency() for _ in operators]
        self.latencies = {
            at: latency
            for ports, latency in zip(operators, self._latencies, strict=True)
            for at in ports.inputs
        }
        """The operator latency by input."""
        self._into = [
            [edge.id for edge in graph.edges if edge.target in ports.inputs] for ports in operators
        ]
        # The edges of one output carry the same records.
        first = {edge.source: edge.id for edge in reversed(graph.edges)}
        self._out_of = [[first[at] for at in o.outputs if at in first] for o in operators]

    def sent(self, edge: Edge, payload: Payload) -> None:
        """Count a message that leaves by an edge, to any worker."""
        if isinstance(payload, Batch):
            self._sent[edge.id] += len(payload)

    def received(self, edge: Edge, payload: Payload) -> None:
        """Count a message that has arrived by an edge."""
        if isinstance(payload, Batch):
            self._received[edge.id] += len(payload)

    def turn(self, operator: int, started: float, ended: float) -> None:
        """Count a turn of an operator, by its place, between two times of the clock in seconds."""
        self._busy[operator] += ended - started
        self._latencies[operator].end_turn(ended)

    def work(self) -> dict[str, OperatorWork]:
        """Return the work of each operator so far, by name."""
        return {
            ports.name: OperatorWork(
                sum(self._received[edge] for edge in into),
                sum(self._sent[edge] for edge in out_of),
                busy,
                latency.durations,
            )
            for ports, into, out_of, busy, latency in zip(
                self._operators, self._into, self._out_of, self._busy, self._latencies, strict=True
            )
        }
