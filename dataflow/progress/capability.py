"""Capabilities: the explicit right to send at a time or later.

A capability belongs to one output of one operator on one worker and counts as a pointstamp there,
so that no frontier passes what it may still send (I1). It is minted from a consumed message or by
an operator's opening, moved forward by `downgrade`, and given up by `drop` or `with`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from meander.dataflow.graph.graph import Location
from meander.dataflow.progress.change_batch import ChangeBatch
from meander.state.times.antichain import minimal
from meander.state.times.time import Time, less_equal


class CapabilityError(Exception):
    """An operator wanted to send, or to hold, a time that it has no right to: a defect of ours."""


class Capability:
    """The right to send at `time` or later on one output.

    >>> changes = ChangeBatch()
    >>> with Capability(Location(3), 5, changes) as capability:
    ...     capability.downgrade(8)
    ...     capability.time, changes.take()
    (8, [(3, 8, 1)])
    >>> changes.take()
    [(3, 8, -1)]
    """

    __slots__ = ("_changes", "_live", "location", "time")

    def __init__(self, location: Location, time: Time, changes: ChangeBatch) -> None:
        self.location, self.time, self._changes, self._live = location, time, changes, True
        changes.add(location, time, 1)

    def delayed(self, time: Time) -> Capability:
        """A second capability, for `time` or later. Raises CapabilityError for an earlier one."""
        self.check(time)
        return Capability(self.location, time, self._changes)

    def downgrade(self, time: Time) -> None:
        """Give up everything before `time`. Raises CapabilityError for an earlier one."""
        self.check(time)
        if time != self.time:
            self._changes.add(self.location, time, 1)
            self._changes.add(self.location, self.time, -1)
            self.time = time

    def drop(self) -> None:
        """Give it up."""
        if self._live:
            self._live = False
            self._changes.add(self.location, self.time, -1)

    def check(self, time: Time) -> None:
        """Raises CapabilityError unless this permits to send at `time`."""
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
    """What an operator still has to send, as capabilities for the least of many times.

    A capability permits all later times, so in the outer scope, whose order is total, it is one.
    `retain` adds a right, `keep` gives up all before some times, without any it gives up all.

    >>> changes, held = ChangeBatch(), CapabilitySet()
    >>> held.retain(Capability(Location(3), (5, 2), changes))
    >>> held.retain(Capability(Location(3), (6, 0), changes))
    >>> held.keep((5, 4), (6, 1), (7, 1)); held.least
    ((5, 4), (6, 1))
    """

    __slots__ = ("_capabilities",)

    def __init__(self) -> None:
        self._capabilities: list[Capability] = []

    def retain(self, capability: Capability) -> None:
        """Take over a capability."""
        if any(less_equal(known.time, capability.time) for known in self._capabilities):
            capability.drop()
            return
        later = [c for c in self._capabilities if less_equal(capability.time, c.time)]
        for known in later:
            known.drop()
            self._capabilities.remove(known)
        self._capabilities.append(capability)

    def keep(self, *least: Time) -> None:
        """Give up what is not needed to send at these times and later."""
        if len(least) == len(self._capabilities) == 1:
            self._capabilities[0].downgrade(least[0])
            return
        kept = [self.permitting(time).delayed(time) for time in minimal(least)]
        for known in self._capabilities:
            known.drop()
        self._capabilities = kept

    def permitting(self, time: Time) -> Capability:
        """One to send with at a time. Raises CapabilityError when none is held, or of several none
        permits it; whoever sends checks the one."""
        if len(self._capabilities) == 1:
            return self._capabilities[0]
        for known in self._capabilities:
            if less_equal(known.time, time):
                return known
        raise CapabilityError(f"nothing is held that permits {time}")

    @property
    def least(self) -> tuple[Time, ...]:
        """The least times held."""
        return tuple(known.time for known in self._capabilities)
