"""What holds a frontier back: the place whose pointstamp is the least that could still come there.

Guarantees that of several places at one least time the one is named that comes before the others,
as those may be waiting for it. Cost: per question one look at each place that reaches the frontier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dataflow.graph import Location
from dataflow.plan import Plan
from dataflow.progress import Progress, outer

Kind = Literal["source", "operator", "input", "migration", "commands"]
"""A source's partitions; what an operator holds; what is on its way to one; state of bins that
move; or that commands have not been ruled out."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One place, and the time that it holds."""

    kind: Kind
    name: str
    """Of the source or operator; '' for commands."""
    time: int


class Holders:
    """Knows each place of a flow by name."""

    def __init__(self, plan: Plan) -> None:
        self._reach = plan.graph.reach
        self._places: dict[Location, tuple[Kind, str]] = {}
        sources = {source.name for source in plan.sources}
        for name, ports in plan.ports.items():
            kind: Kind = "source" if name in sources else "operator"
            self._places |= dict.fromkeys(ports.inputs, ("input", name))
            self._places |= dict.fromkeys(ports.outputs, (kind, name))
        commands = (*plan.control.outputs, *plan.migrator.inputs)
        self._places |= dict.fromkeys(commands, ("commands", ""))
        for at, keyed in zip(plan.migrator.outputs, plan.keyed, strict=True):
            self._places[at] = self._places[plan.pointers(keyed)] = ("migration", keyed.name)

    def of(self, progress: Progress, location: Location) -> Holding | None:
        """What holds back the frontier there; None where nothing can come any more."""
        found = [(outer(time), at) for time, at in progress.bounding(location)]
        if not found:
            return None
        least = min(time for time, _ in found)
        at = [place for time, place in found if time == least]
        first = next(p for p in at if not any(q in self._reach[p] for q in at if q != p))
        return Holding(*self._places[first], least)
