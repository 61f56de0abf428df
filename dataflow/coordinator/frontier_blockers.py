"""What holds a frontier back: the place whose pointstamp is the least that could still come there.

Guarantees that of several places at one least time the one is named that comes before the others,
as those may be waiting for it. Cost: per question one look at each place that reaches the frontier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meander.dataflow.api.nodes import Node, SinkNode, SourceNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.graph.graph import Location
from meander.dataflow.progress.progress import Progress
from meander.dataflow.records.loop_times import outer

Kind = Literal["source", "operator", "sink", "input", "migration", "handover", "commands"]
"""A source's partitions; what an operator holds; what a sink has not delivered; what is on its way
to an operator; state of bins that move; a partition on its way to another worker; or that commands
have not been ruled out."""


@dataclass(frozen=True, slots=True)
class FrontierBlocker:
    """One place, and the time that it holds."""

    kind: Kind
    name: str
    """Of the source or operator; '' for commands and for orders of partitions."""
    time: int


class FrontierBlockers:
    """Knows each place of a flow by name."""

    def __init__(self, plan: Plan) -> None:
        self._reach = plan.graph.reach
        self._places: dict[Location, tuple[Kind, str]] = {}
        for node in plan.nodes:
            ports = plan.ports[node.name]
            self._places |= dict.fromkeys(ports.inputs, ("input", node.name))
            self._places |= dict.fromkeys(ports.outputs, (_kind(node), node.name))
        commands = (*plan.control.outputs, *plan.migrator.inputs)
        self._places |= dict.fromkeys(commands, ("commands", ""))
        for at, keyed in zip(plan.migrator.outputs, plan.keyed, strict=True):
            self._places[at] = self._places[plan.pointers(keyed)] = ("migration", keyed.name)
        self._places[plan.handover.inputs[0]] = ("handover", "")
        for at, source in zip(plan.handover.outputs, plan.sources, strict=True):
            parcels = plan.ports[source.name].inputs[0]
            self._places[at] = self._places[parcels] = ("handover", source.name)

    def of(self, progress: Progress, location: Location) -> FrontierBlocker | None:
        """What holds back the frontier there; None where nothing can come any more."""
        found = [(outer(time), at) for time, at in progress.bounding(location)]
        if not found:
            return None
        least = min(time for time, _ in found)
        at = [place for time, place in found if time == least]
        first = next((p for p in at if not any(self._leads(q, p) for q in at)), at[0])
        return FrontierBlocker(*self._places[first], least)

    def _leads(self, place: Location, other: Location) -> bool:
        """Whether one place comes before another; in a loop, where each does, neither."""
        return place in self._reach[other] and other not in self._reach[place]


def _kind(node: Node) -> Kind:
    match node:
        case SourceNode():
            return "source"
        case SinkNode():
            return "sink"
        case _:
            return "operator"
