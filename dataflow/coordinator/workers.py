"""The coordinator's record of workers that join and leave a running flow.

Guarantees that a joining worker knows the owner of every bin at each time from which it may receive
records. Guarantees that a leaving worker exits only once it owns no bin and will own none.
Invariant: no message at or after `until` is addressed to a leaving worker. So once every frontier
has passed that time, and the worker's contribution is zero, the flow needs it no more. Cost: a
progress base for every member each second, and every few milliseconds while a worker leaves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from meander.dataflow.control.command import MoveBins, bins_id
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.routing import Routing
from meander.dataflow.interfaces import Clock
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.membership import Membership
from meander.schemas.control import CommandError
from meander.state.keys.ids import Bin, WorkerId, member_name
from meander.state.times.time import MIN_TIME, Time

BASE_EVERY = 1.0
"""Seconds between two progress bases, which keep the openings to joining workers small."""
WHILE_LEAVING = 0.005
"""Seconds between two progress bases while a worker leaves."""
LATEST = 1 << 62


@dataclass(slots=True)
class Leaving:
    """A leaving worker's state: its bins move first."""

    awaited: set[str]
    """The ids of the commands that move its bins and partitions away."""
    until: int | None = None
    """The worker receives nothing of this time or later."""
    advance_request: Capability | None = None
    """Moves idle sources past `until`."""
    withdrawn: set[int] = field(default_factory=set)
    """The times from `until` on of decisions that it received, all of which are withdrawn."""
    released: bool = False
    """Whether the decision that it leaves has been taken."""


class Workers:
    """A record of the workers of a flow, kept by the coordinator."""

    def __init__(self, workers: Sequence[WorkerId], membership: Membership, clock: Clock) -> None:
        self.active = list(workers)
        self.leaving: dict[WorkerId, Leaving] = {}
        self._membership, self._clock = membership, clock
        self.until = MIN_TIME
        """No removed worker received a message at or after this time."""
        self._expected: set[WorkerId] = set()
        self._sent: defaultdict[WorkerId, set[int]] = defaultdict(set)
        """The times of decisions that each worker has received, where they are not closed."""
        self._base_at = 0.0

    @property
    def all(self) -> list[WorkerId]:
        """All workers, leaving ones included."""
        return [*self.active, *self.leaving]

    @property
    def changing(self) -> bool:
        """Whether a worker is about to join, or has been released and has not left."""
        released = any(leaving.released for leaving in self.leaving.values())
        return bool(self._expected) or released

    @property
    def drained(self) -> dict[WorkerId, int]:
        """The leaving workers that own nothing from a time on and have not been released."""
        return {
            worker: leaving.until
            for worker, leaving in self.leaving.items()
            if leaving.until is not None and not leaving.released
        }

    def awaits_withdrawals(self, worker: WorkerId, outstanding: Collection[Time]) -> bool:
        """Return whether a drained worker may still receive a withdrawal, given the times of
        decisions that some worker has not received."""
        return not self.leaving[worker].withdrawn.isdisjoint(outstanding)

    def receives(self, worker: WorkerId, time: int) -> bool:
        """Return whether a worker receives a decision of a time."""
        leaving = self.leaving.get(worker)
        return leaving is None or leaving.until is None or time < leaving.until

    def note_sent(self, worker: WorkerId, time: int, closed_before: int) -> None:
        """Note that a worker receives a decision or a withdrawal."""
        self._sent[worker] = {one for one in self._sent[worker] if one >= closed_before} | {time}

    def expect(self, worker: WorkerId) -> None:
        """Note that a worker will join. Raise `CommandError` where its number is in use."""
        if worker in self._expected or worker in self.all:
            raise CommandError(
                f"{member_name(worker)} is already a worker: give the joining one another number"
            )
        self._expected.add(worker)

    def admit(self, worker: WorkerId, checkpoint: int) -> None:
        """Let an expected worker join."""
        self._expected.remove(worker)
        self._membership.admit(worker, checkpoint)
        self.active.append(worker)

    def remaining(self, leaving: Sequence[WorkerId]) -> list[WorkerId]:
        """Return the workers that remain when some leave. Raise `CommandError` where none
        remains."""
        for worker in leaving:
            if worker not in self.active:
                known = _some(self.active)
                raise CommandError(f"{member_name(worker)} is unknown: name one of {known}")
        others = [one for one in self.active if one not in leaving]
        if not others:
            raise CommandError(f"{member_name(leaving[-1])} is the last: end the flow instead")
        return others

    def drain(self, worker: WorkerId, awaited: set[str]) -> None:
        """Let a worker leave once some commands are completed."""
        self.active.remove(worker)
        self.leaving[worker] = Leaving(awaited)

    def newly_drained(self, running: set[str]) -> list[WorkerId]:
        """Return the leaving workers whose commands have ended and that are not marked as
        drained."""
        return [
            worker
            for worker, leaving in self.leaving.items()
            if leaving.until is None and not leaving.awaited & running
        ]

    def mark_drained(self, worker: WorkerId, until: int, advance_request: Capability) -> None:
        """Note that a leaving worker owns nothing from `until` on, and that all later decisions it
        received are withdrawn."""
        leaving = self.leaving[worker]
        leaving.until, leaving.advance_request = until, advance_request
        leaving.withdrawn = {time for time in self._sent.pop(worker, ()) if time >= until}

    def announce_exit(self, worker: WorkerId) -> None:
        """Note that a leaving worker has been released."""
        self.leaving[worker].released = True

    def send_exit(self, worker: WorkerId) -> None:
        """Send a leaving worker the time from which on it owns nothing."""
        until = self.leaving[worker].until
        assert until is not None
        self._membership.send_exit(worker, until)

    def remove(self, worker: WorkerId) -> None:
        """Remove a worker that has left."""
        leaving = self.leaving.pop(worker)
        self._sent.pop(worker, None)
        self.until = max(self.until, leaving.until or MIN_TIME)
        if leaving.advance_request is not None:
            leaving.advance_request.drop()

    def announce(self) -> None:
        """Announce a progress base when one is due; call this after a flush."""
        now = self._clock.monotonic()
        if now >= self._base_at:
            self._base_at = now + (WHILE_LEAVING if self._membership.leaving else BASE_EVERY)
            self._membership.announce()


def initial_moves(routing: Routing, closed_before: int) -> list[Moves]:
    """Return the routing that a joining worker needs, as moves: the current owners, then coming
    changes."""
    owners = routing.owners(max(closed_before - 1, MIN_TIME))
    owned = {
        owner: tuple(Bin(b) for b, one in enumerate(owners) if one == owner)
        for owner in sorted(set(owners))
    }
    # No command has an empty id, so these sort before other moves of the same time.
    now = [Moves("", closed_before, owner, bins) for owner, bins in owned.items()]
    return [*now, *(moves for moves in routing.pending() if moves.time >= closed_before)]


def commands_for(
    id: str,
    offset: int,
    shares: Mapping[str, Mapping[WorkerId, Sequence[Bin]]],
    owners: Mapping[str, Mapping[Bin, WorkerId]],
) -> list[MoveBins]:
    """Return the commands that move its share of the bins of each group to each worker."""
    commands = []
    for group, its in shares.items():
        others = {bin: target for target, some in its.items() for bin in some}
        sources = {bin: owners[group][bin] for bin in others}
        if its:
            commands.append(
                MoveBins(
                    bins_id(id, group), tuple(others), next(iter(its)),
                    operator=group, others=others, offset=offset, sources=sources,
                )
            )  # fmt: skip
    return commands


def _some(workers: Sequence[WorkerId]) -> str:
    return ", ".join(map(str, workers))
