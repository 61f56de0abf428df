"""How far commands are ruled out: the control source's one capability (design 2, forswearing).

Guarantees that no decision gets a time that has been forsworn. T, the least time that has not, lies
just past the furthest time that any source has read, plus a lead that follows the speed of the
data, but never past a decision that has not been sent. Cost: O(decisions under way) per turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meander.dataflow.api.plan import Plan
from meander.dataflow.control.command import Refused
from meander.dataflow.coordinator.time_rate import TimeRate
from meander.dataflow.interfaces import Clock
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.change_batch import ChangeBatch
from meander.state.times.time import MIN_TIME, to_millis

NEAR = 120.0
"""Seconds: what moves at a named time is made ready no sooner."""


@dataclass(frozen=True, slots=True)
class PendingChanges:
    """What is under way, and so bears on how far to go."""

    furthest: int | None
    """The furthest time that any source has read; None once all have ended."""
    unsent: int | None
    """The least time of a decision that has not been sent."""
    sent: Sequence[int]
    """The times of those that have."""
    demanded: Sequence[int]
    """The times among these for which nothing but the demand makes the sources move."""
    leaving: Sequence[int]
    """From when on nothing is addressed to those who leave; they go when that has passed."""
    waiting: bool
    """Whether bins, or who joins, are yet to get a time."""
    patience: float
    """The part of the lead that there is time for: bins may wait for those before them."""


class ClosedTimes:
    """The control source; its times are logical times of the outer scope."""

    def __init__(
        self, plan: Plan, changes: ChangeBatch, clock: Clock, first: int = MIN_TIME
    ) -> None:
        self._plan, self._changes = plan, changes
        self._capability: Capability | None = Capability(plan.control.outputs[0], first, changes)
        self._speed = TimeRate(clock)
        self._newest = self._demanded = MIN_TIME
        self.last = first
        """What T came to in the end."""

    @property
    def least(self) -> int | None:
        """T: no decision will have a time before it. None once there will be none at all."""
        if self._capability is None:
            return None
        assert isinstance(self._capability.time, int)
        return self._capability.time

    def open_time(self) -> int:
        """T. Raises Refused where there is none."""
        if self.least is None:
            raise Refused("the flow's sources have ended: a command has to come before that")
        return self.least

    def expect(self, time: int) -> None:
        """Raises Refused, with the earliest time possible, for one that has been forsworn."""
        least = self.open_time()
        if time < least:
            earliest = to_millis(least - 1) + 1
            raise Refused(
                f"time {to_millis(time)} ms has been forsworn: the earliest possible is"
                f" {earliest} ms, or leave the time out for as soon as possible"
            )

    def near(self, time: int) -> bool:
        """Whether the data may be there in `NEAR` seconds."""
        return self._speed.within(time - self._newest, NEAR)

    def passed(self, time: int) -> bool:
        """Whether nothing more is decided for a time."""
        return self.least is None or self.least > time

    def check(self, time: int) -> None:
        """Raises CapabilityError for a time that has been forsworn."""
        assert self._capability is not None
        self._capability.check(time)

    def demand(self, time: int) -> Capability:
        """Until it is dropped, sources without records move on to just past a time."""
        self._demanded = max(self._demanded, time)
        return Capability(self._plan.control.outputs[1], time, self._changes)

    def advance(self, pending: PendingChanges) -> None:
        """Forswear what can be."""
        if self._capability is None:
            return
        target = self._target(pending, self.open_time())
        if target is None:
            self.last = self.open_time()
            self._capability.drop()
            self._capability = None
        elif target > self.open_time():
            self._capability.downgrade(target)

    def _target(self, pending: PendingChanges, now: int) -> int | None:
        """The least time not to forswear yet; None where nothing is left to decide."""
        if pending.furthest is None:
            # The sources have ended: what is under way goes on, and nothing else can come.
            if pending.unsent is None and not (pending.leaving or pending.waiting):
                return None
            target = max([now, *pending.leaving, *(time + 1 for time in pending.sent)])
        else:
            data = self._data(pending.furthest)
            lead = int(self._speed.lead(data, self._plan.flow.control_lead) * pending.patience)
            # Half of the lead may be used up before the workers have to hear of it.
            ahead = data + 1 + lead if data + 1 + lead // 2 >= now else now
            after = [time + 1 for time in (pending.furthest, *pending.demanded)]
            target = max(ahead, now, *after)
        return target if pending.unsent is None else min(target, pending.unsent)

    def _data(self, furthest: int) -> int:
        """How far the data has come: idle sources that only follow a command do not count, or the
        lead of each command would carry the flow's time away from its data's."""
        if to_millis(furthest) > to_millis(self._demanded):
            self._newest = furthest
        return self._newest
