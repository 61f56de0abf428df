"""Changes of counts of pointstamps, summed up until they are told."""

from __future__ import annotations

from meander.dataflow.graph.graph import Location
from meander.dataflow.wire import Change
from meander.state.times.time import Time


class ChangeBatch:
    """Changes of counts, summed up; what cancels out vanishes.

    >>> changes = ChangeBatch()
    >>> changes.add(Location(1), 5, 1); changes.add(Location(1), 5, -1); changes.take()
    []
    """

    __slots__ = ("_deltas",)

    def __init__(self) -> None:
        self._deltas: dict[tuple[Location, Time], int] = {}

    def add(self, location: Location, time: Time, delta: int) -> None:
        """Add to the count of a pointstamp."""
        pointstamp = (location, time)
        total = self._deltas.get(pointstamp, 0) + delta
        if total:
            self._deltas[pointstamp] = total
        else:
            del self._deltas[pointstamp]

    def take(self) -> list[Change]:
        """What has gathered since the last call."""
        taken = [(location, time, delta) for (location, time), delta in self._deltas.items()]
        self._deltas.clear()
        return taken
