"""Closed times: the capability of the control source (design 2, control frontier).

Guarantees that no decision gets a closed time. T is the least time that is not closed. It lies just
past the furthest time that any source has read, plus a lead that follows the rate of the data. T
never passes a decision that is not sent. Cost: O(pending decisions) per turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meander.dataflow.api.plan import Plan
from meander.dataflow.coordinator.time_rate import TimeRate
from meander.dataflow.interfaces import Clock
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.change_batch import ChangeBatch
from meander.schemas.control import CommandError
from meander.state.times.time import MIN_TIME, to_millis

NEAR = 120.0
"""Seconds: bins of a round with a named time are prepared no sooner before it."""


@dataclass(frozen=True, slots=True)
class PendingChanges:
    """The pending decisions and workers that limit T."""

    furthest: int | None
    """The furthest time that any source has read; None once all sources have ended, and while all
    partitions are in transfer."""
    transferring: bool
    """Whether partitions are in transfer."""
    unsent: int | None
    """The least time of a decision that is not sent."""
    held: int | None
    """The named time of a reconfiguration that is not decided."""
    sent: Sequence[int]
    """The times of rounds that are sent."""
    requested: Sequence[int]
    """The times that sources reach only by an advance request."""
    leaving: Sequence[int]
    """The times from which on leaving workers receive nothing; they exit once these have passed."""
    waiting: bool
    """Whether bins or joining workers still wait for a time."""
    lead_share: float
    """The share of the lead to use: bins may wait for earlier rounds."""


class ClosedTimes:
    """A capability of the control source; its times are logical times of the outer scope."""

    def __init__(
        self, plan: Plan, changes: ChangeBatch, clock: Clock, first: int = MIN_TIME
    ) -> None:
        self._plan, self._changes = plan, changes
        self._capability: Capability | None = Capability(plan.control.outputs[0], first, changes)
        self._rate = TimeRate(clock)
        self._newest = self._requested = MIN_TIME
        self.last = first
        """The value of T when all times were closed."""

    @property
    def least(self) -> int | None:
        """T: no decision gets an earlier time. None once all times are closed."""
        if self._capability is None:
            return None
        assert isinstance(self._capability.time, int)
        return self._capability.time

    def next_time(self) -> int:
        """Return T. Raise `CommandError` where all times are closed."""
        if self.least is None:
            raise CommandError("the flow's sources have ended: send commands before that")
        return self.least

    def expect(self, time: int) -> None:
        """Check the time of a command. Raise `CommandError` with the earliest possible time
        for a closed one."""
        least = self.next_time()
        if time < least:
            earliest = to_millis(least - 1) + 1
            raise CommandError(
                f"time {to_millis(time)} ms is closed: the earliest possible is"
                f" {earliest} ms, or leave the time out for as soon as possible"
            )

    def near(self, time: int) -> bool:
        """Return whether the data may reach a time within `NEAR` seconds."""
        return self._rate.within(time - self._newest, NEAR)

    def passed(self, time: int) -> bool:
        """Return whether no more decisions can get a time."""
        return self.least is None or self.least > time

    def check(self, time: int) -> None:
        """Raise `CapabilityError` for a closed time."""
        assert self._capability is not None
        self._capability.check(time)

    def request_advance(self, time: int) -> Capability:
        """Let idle sources move to just past a time until the returned capability is dropped."""
        self._requested = max(self._requested, time)
        return Capability(self._plan.control.outputs[1], time, self._changes)

    def advance(self, pending: PendingChanges) -> None:
        """Close all times that no pending change needs."""
        if self._capability is None:
            return
        target = self._target(pending, self.next_time())
        if target is None:
            self.last = self.next_time()
            self._capability.drop()
            self._capability = None
        elif target > self.next_time():
            self._capability.downgrade(target)

    def _target(self, pending: PendingChanges, now: int) -> int | None:
        """Return the least time to leave open; None where no decision is left."""
        if pending.furthest is None and pending.transferring:
            # No worker reads now, and the next readers continue: commands of later times wait.
            target = max([now, *(time + 1 for time in pending.requested)])
        elif pending.furthest is None:
            # The sources have ended: pending changes complete, and no other change can come.
            if pending.unsent is None and not (pending.leaving or pending.waiting):
                return None
            target = max([now, *pending.leaving, *(time + 1 for time in pending.sent)])
        else:
            data = self._data_time(pending.furthest)
            lead = int(self._rate.lead(data, self._plan.flow.control_lead) * pending.lead_share)
            # The workers receive a new T only once half of the lead is used up.
            ahead = data + 1 + lead if data + 1 + lead // 2 >= now else now
            after = [time + 1 for time in (pending.furthest, *pending.requested)]
            target = max(ahead, now, *after)
        return min(one for one in (target, pending.unsent, pending.held) if one is not None)

    def _data_time(self, furthest: int) -> int:
        """Return how far the data has come.

        Idle sources that only follow a command do not count: each lead would carry the time of the
        flow away from its data.
        """
        if to_millis(furthest) > to_millis(self._requested):
            self._newest = furthest
        return self._newest
