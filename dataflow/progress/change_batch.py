"""Changes of pointstamp counts, summed up until the member broadcasts them."""

from __future__ import annotations

from meander.dataflow.graph.graph import Location
from meander.dataflow.wire import Change
from meander.state.times.time import Time


class ChangeBatch:
    """A batch of changes of counts, without those that cancel out.

    >>> changes = ChangeBatch()
    >>> changes.add(Location(1), 5, 1); changes.add(Location(1), 5, -1); changes.drain()
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

    def drain(self) -> list[Change]:
        """Return the changes since the last call."""
        drained = [(location, time, delta) for (location, time), delta in self._deltas.items()]
        self._deltas.clear()
        return drained
