"""Frontier blockers: the locations whose least pointstamps hold a frontier back.

Guarantees that among several locations at one least time the most upstream one is named, as the
others may wait for it. Cost: per query one look-up for each location that reaches the frontier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meander.dataflow.api.nodes import Node, SinkNode, SourceNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.graph.graph import Location
from meander.dataflow.progress.progress import Progress
from meander.dataflow.records.loop_times import outer_time

Kind = Literal["source", "operator", "sink", "input", "migration", "partition_move", "commands"]
"""The kind of a blocker: partitions of a source; times of an operator's capabilities; undelivered
results of a sink; messages on their way to an operator; states of moving bins; a partition on its
way to another worker; or times still open for commands."""


@dataclass(frozen=True, slots=True)
class FrontierBlocker:
    """A location, and the time that it holds back."""

    kind: Kind
    name: str
    """The source or operator; '' for commands and partition orders."""
    time: int


class FrontierBlockers:
    """A finder of frontier blockers that knows the names of all locations of a flow."""

    def __init__(self, plan: Plan) -> None:
        self._reach = plan.graph.reach
        self._places: dict[Location, tuple[Kind, str]] = {}
        for node in plan.nodes:
            ports = plan.ports[node.name]
            self._places |= dict.fromkeys(ports.inputs, ("input", node.name))
            self._places |= dict.fromkeys(ports.outputs, (_kind(node), node.name))
            if ports.held is not None:
                self._places[ports.held] = ("operator", node.name)
        commands = (*plan.control.outputs, *plan.migrator.inputs)
        self._places |= dict.fromkeys(commands, ("commands", ""))
        for at, keyed in zip(plan.migrator.outputs, plan.stateful, strict=True):
            self._places[at] = self._places[plan.handoff_input(keyed)] = ("migration", keyed.name)
        self._places[plan.partition_migrator.inputs[0]] = ("partition_move", "")
        for at, source in zip(plan.partition_migrator.outputs, plan.sources, strict=True):
            handoffs = plan.ports[source.name].inputs[0]
            self._places[at] = self._places[handoffs] = ("partition_move", source.name)

    def of(self, progress: Progress, location: Location) -> FrontierBlocker | None:
        """Return the blocker of the frontier at a location; None where nothing can arrive any
        more."""
        found = [(outer_time(time), at) for time, at in progress.bounding(location)]
        if not found:
            return None
        least = min(time for time, _ in found)
        at = [place for time, place in found if time == least]
        first = next((p for p in at if not any(self._leads(q, p) for q in at)), at[0])
        return FrontierBlocker(*self._places[first], least)

    def _leads(self, place: Location, other: Location) -> bool:
        """Return whether one location lies upstream of another; on a common loop neither does."""
        return place in self._reach[other] and other not in self._reach[place]


def _kind(node: Node) -> Kind:
    match node:
        case SourceNode():
            return "source"
        case SinkNode():
            return "sink"
        case _:
            return "operator"
