"""Capabilities: the explicit permission to send at a time or later.

Guarantees that no frontier passes a time at which an operator may still send (I1). A capability
belongs to one output of one operator on one worker, and counts as a pointstamp there. A consumed
message or the opening of an operator creates it; `downgrade` moves it forward; `drop` or `with`
ends it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from meander.dataflow.graph.graph import Location
from meander.dataflow.progress.change_batch import ChangeBatch
from meander.state.times.antichain import minimal
from meander.state.times.time import Time, less_equal


class CapabilityError(Exception):
    """An operator used a time that no capability permits: a defect of Meander."""


class Capability:
    """A permission to send at `time` or later on one output.

    >>> changes = ChangeBatch()
    >>> with Capability(Location(3), 5, changes) as capability:
    ...     capability.downgrade(8)
    ...     capability.time, changes.drain()
    (8, [(3, 8, 1)])
    >>> changes.drain()
    [(3, 8, -1)]
    """

    __slots__ = ("_changes", "_live", "location", "time")

    def __init__(self, location: Location, time: Time, changes: ChangeBatch) -> None:
        self.location, self.time, self._changes, self._live = location, time, changes, True
        changes.add(location, time, 1)

    def delayed(self, time: Time) -> Capability:
        """Return a second capability for `time` or later. Raise `CapabilityError` for an earlier
        time."""
        self.check(time)
        return Capability(self.location, time, self._changes)

    def downgrade(self, time: Time) -> None:
        """Give up all times before `time`. Raise `CapabilityError` for an earlier time."""
        self.check(time)
        if time != self.time:
            self._changes.add(self.location, time, 1)
            self._changes.add(self.location, self.time, -1)
            self.time = time

    def drop(self) -> None:
        """Give up the capability."""
        if self._live:
            self._live = False
            self._changes.add(self.location, self.time, -1)

    def check(self, time: Time) -> None:
        """Raise `CapabilityError` unless the capability permits sending at `time`."""
        if not self._live:
            raise CapabilityError(f"the capability for {self.time} was dropped before its use")
        if not less_equal(self.time, time):
            raise CapabilityError(f"a capability for {self.time} does not permit {time}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.drop()


class CapabilitySet:
    """A set of capabilities for the least times at which an operator may still send.

    A capability permits all later times, so the totally ordered outer scope needs one. `retain`
    adds a capability. `downgrade` gives up all earlier times; without times it gives up all.

    >>> changes, capabilities = ChangeBatch(), CapabilitySet()
    >>> capabilities.retain(Capability(Location(3), (5, 2), changes))
    >>> capabilities.retain(Capability(Location(3), (6, 0), changes))
    >>> capabilities.downgrade((5, 4), (6, 1), (7, 1)); capabilities.least
    ((5, 4), (6, 1))
    """

    __slots__ = ("_capabilities",)

    def __init__(self) -> None:
        self._capabilities: list[Capability] = []

    def retain(self, capability: Capability) -> None:
        """Add a capability."""
        if any(less_equal(known.time, capability.time) for known in self._capabilities):
            capability.drop()
            return
        later = [c for c in self._capabilities if less_equal(capability.time, c.time)]
        for known in later:
            known.drop()
            self._capabilities.remove(known)
        self._capabilities.append(capability)

    def downgrade(self, *least: Time) -> None:
        """Give up all that is not needed to send at these times and later."""
        if len(least) == len(self._capabilities) == 1:
            self._capabilities[0].downgrade(least[0])
            return
        downgraded = [self.capability_for(time).delayed(time) for time in minimal(least)]
        for known in self._capabilities:
            known.drop()
        self._capabilities = downgraded

    def capability_for(self, time: Time) -> Capability:
        """Return a capability for a time; with one capability the sender checks it.

        Raise `CapabilityError` where none of several permits the time, or the set is empty.
        """
        if len(self._capabilities) == 1:
            return self._capabilities[0]
        for known in self._capabilities:
            if less_equal(known.time, time):
                return known
        raise CapabilityError(f"no capability permits {time}")

    @property
    def least(self) -> tuple[Time, ...]:
        """The least times of the set."""
        return tuple(known.time for known in self._capabilities)
