"""Capabilities: the explicit right to send at a time or later.

A capability belongs to one output of one operator on one worker and counts as a pointstamp there,
so that no frontier passes what it may still send (I1). It is minted from a consumed message or by
an operator's opening, moved forward by `downgrade`, and given up by `drop` or `with`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from dataflow.graph import Location
from dataflow.progress import ChangeBatch
from state.time import Time, less_equal


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


class Held:
    """What an operator still has to send, as one capability: for the least of many outer times.

    In a total order the least capability permits all later ones, so one is enough. `retain` adds
    a right, `keep` gives up all before a time, None gives up everything.
    """

    __slots__ = ("_capability",)

    def __init__(self) -> None:
        self._capability: Capability | None = None

    def retain(self, capability: Capability) -> None:
        """Take over a capability."""
        if self._capability is None:
            self._capability = capability
        elif less_equal(self._capability.time, capability.time):
            capability.drop()
        else:
            self._capability.drop()
            self._capability = capability

    def keep(self, least: Time | None) -> None:
        """Give up what is not needed to send at `least` and later."""
        if self._capability is None:
            if least is not None:
                raise CapabilityError(f"nothing is held that permits {least}")
        elif least is None:
            self._capability.drop()
            self._capability = None
        else:
            self._capability.downgrade(least)

    @property
    def capability(self) -> Capability:
        """The one capability. Raises CapabilityError when nothing is held."""
        if self._capability is None:
            raise CapabilityError("nothing is held to send with")
        return self._capability
