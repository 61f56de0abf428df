"""Who works: the controller's part in workers' joining and leaving a running flow.

Guarantees that a newcomer knows the owner of every bin at every time from which on it may get
records, and that a leaver is let go only when none is its own and none will be. Invariant: nothing
at or after `until` of a leaver is addressed to it, so once every frontier has passed that time, and
all that it contributed is over, nobody will miss it. Cost: a base for every member every second,
every few milliseconds while somebody waits to leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meander.dataflow.control.command import MoveBins, Refused
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.routing import Routing
from meander.dataflow.interfaces import Clock
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.membership import Membership
from meander.state.keys.ids import Bin, WorkerId, member_name
from meander.state.times.time import MIN_TIME

BASE_EVERY = 1.0
"""Seconds between two bases, which keep openings to newcomers small."""
WHILE_LEAVING = 0.005
"""The same while a worker waits for one to leave."""
LATEST = 1 << 62


@dataclass(slots=True)
class Leaving:
    """A worker on its way out: its bins move first."""

    awaited: set[str]
    """The commands that take its bins away."""
    until: int | None = None
    """It gets nothing of this time or later."""
    demand: Capability | None = None
    """So that idle sources pass `until`."""
    dismissed: bool = False
    """Whether it is, or is about to be, told to go."""


class Workers:
    """The workers of a flow, as the controller sees them."""

    def __init__(self, workers: Sequence[WorkerId], roster: Membership, clock: Clock) -> None:
        self.staying = list(workers)
        self.leaving: dict[WorkerId, Leaving] = {}
        self._roster, self._clock = roster, clock
        self.until = MIN_TIME
        """Who has left has had nothing of it or later."""
        self._expected: set[WorkerId] = set()
        self._told: dict[WorkerId, int] = {}
        """The latest time of a decision that each has been told of."""
        self._base_at = 0.0

    @property
    def working(self) -> list[WorkerId]:
        """All, also those who are to leave."""
        return [*self.staying, *self.leaving]

    @property
    def moving(self) -> bool:
        """Whether somebody is about to join, or has been dismissed and has not left."""
        dismissed = any(leaving.dismissed for leaving in self.leaving.values())
        return bool(self._expected) or dismissed

    @property
    def waiting(self) -> dict[WorkerId, int]:
        """Leavers that own nothing from a time on, and have not been dismissed."""
        return {
            worker: leaving.until
            for worker, leaving in self.leaving.items()
            if leaving.until is not None and not leaving.dismissed
        }

    def hears(self, worker: WorkerId, time: int) -> bool:
        """Whether a change of owners at this time concerns a worker."""
        leaving = self.leaving.get(worker)
        return leaving is None or leaving.until is None or time < leaving.until

    def tell(self, worker: WorkerId, time: int) -> None:
        """A worker is told of a decision, and holds that until its time has passed."""
        self._told[worker] = max(self._told.get(worker, MIN_TIME), time)

    def expect(self, worker: WorkerId) -> None:
        """A worker is to join. Raises Refused where that cannot be."""
        if worker in self._expected or worker in self.working:
            raise Refused(f"{member_name(worker)} works already: give the newcomer another number")
        self._expected.add(worker)

    def admit(self, worker: WorkerId, checkpoint: int) -> None:
        """A worker that was to join does."""
        self._expected.remove(worker)
        self._roster.admit(worker, checkpoint)
        self.staying.append(worker)

    def others(self, leavers: Sequence[WorkerId]) -> list[WorkerId]:
        """Who stays when some leave. Raises Refused where nobody does."""
        for worker in leavers:
            if worker not in self.staying:
                known = _some(self.staying)
                raise Refused(f"{member_name(worker)} is unknown: name one of {known}")
        others = [one for one in self.staying if one not in leavers]
        if not others:
            raise Refused(f"{member_name(leavers[-1])} is the last: end the flow instead")
        return others

    def retire(self, worker: WorkerId, awaited: set[str]) -> None:
        """A worker leaves once these commands are completed."""
        self.staying.remove(worker)
        self.leaving[worker] = Leaving(awaited)

    def relieved(self, running: set[str]) -> list[WorkerId]:
        """Leavers whose bins have all moved, and of whom that has not been said yet."""
        return [
            worker
            for worker, leaving in self.leaving.items()
            if leaving.until is None and not leaving.awaited & running
        ]

    def relieve(self, worker: WorkerId, forsworn: int, demand: Capability) -> None:
        """A leaver owns nothing from `forsworn` on; it goes after all that it has been told of."""
        leaving = self.leaving[worker]
        leaving.until = max(forsworn, self._told.get(worker, MIN_TIME) + 1)
        leaving.demand = demand

    def dismiss(self, worker: WorkerId) -> None:
        """A leaver is about to be told to go."""
        self.leaving[worker].dismissed = True

    def part(self, worker: WorkerId) -> None:
        """Tell a leaver that it owns nothing any more."""
        until = self.leaving[worker].until
        assert until is not None
        self._roster.dismiss(worker, until)

    def gone(self, worker: WorkerId) -> None:
        """A leaver has left."""
        leaving = self.leaving.pop(worker)
        self._told.pop(worker, None)
        self.until = max(self.until, leaving.until or MIN_TIME)
        if leaving.demand is not None:
            leaving.demand.drop()

    def announce(self) -> None:
        """A base now and then; after a flush."""
        now = self._clock.monotonic()
        if now >= self._base_at:
            self._base_at = now + (WHILE_LEAVING if self._roster.parting else BASE_EVERY)
            self._roster.announce()


def introduction(routing: Routing, forsworn: int) -> list[Moves]:
    """What a newcomer must be told of owners, as moves: as of now, then what is to change."""
    owners = routing.owners(max(forsworn - 1, MIN_TIME))
    held = {
        owner: tuple(Bin(b) for b, one in enumerate(owners) if one == owner)
        for owner in sorted(set(owners))
    }
    # No command has an empty id, so these come before what moves at the same time.
    now = [Moves("", forsworn, owner, bins) for owner, bins in held.items()]
    return [*now, *(moves for moves in routing.unsettled() if moves.time >= forsworn)]


def commands_for(
    id: str,
    shares: Mapping[str, Mapping[WorkerId, Sequence[Bin]]],
    owners: Mapping[str, Mapping[Bin, WorkerId]],
) -> list[MoveBins]:
    """What gives workers their shares of the bins of each group, from whom these are now."""
    commands = []
    for group, its in shares.items():
        others = {bin: target for target, some in its.items() for bin in some}
        sources = {bin: owners[group][bin] for bin in others}
        name = f"{id}/bins of {group}" if group else f"{id}/bins"
        commands += [
            MoveBins(name, tuple(others), target, operator=group, others=others, sources=sources)
            for target in list(its)[:1]
        ]
    return commands


def _some(workers: Sequence[WorkerId]) -> str:
    return ", ".join(map(str, workers))
