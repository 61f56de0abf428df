"""Bugs in progress tracking that whoever watches frontiers must notice."""

from __future__ import annotations

from meander.dataflow.progress.progress import Progress
from meander.dataflow.wire import PROGRESS, encode_member
from meander.state.keys.ids import COORDINATOR, WorkerId
from tests.support.progress.world import Link, Planted


class ForgetsADecrement(Progress):
    def flush(self) -> bool:
        changes = self.changes.drain()
        first = next((change for change in changes if change[2] < 0), None)
        for change in changes:
            if change != first:
                self.changes.add(*change)
        return super().flush()


class TellsTheDecrementsFirst(Progress):
    def flush(self) -> bool:
        if self._me in self._unopened:
            return super().flush()
        changes = self.changes.drain()
        told = []
        for chosen in ([c for c in changes if c[2] < 0], [c for c in changes if c[2] > 0]):
            for change in chosen:
                self.changes.add(*change)
            told.append(super().flush())
        return any(told)


class DoesNotWaitForOpenings(Progress):
    @property
    def ready(self) -> bool:
        return True


class TellsTheLastFirst(Progress):
    """Links that are not FIFO: an update overtakes those before it."""

    def flush(self) -> bool:
        flushed = super().flush()
        assert isinstance(self._links, Link)
        for lane, frames in self._links._world.updates.items():
            updates = {frame[0][:1] for frame in frames} == {PROGRESS}
            if flushed and updates and lane[0] == self._me and self.ready:
                frames.appendleft(frames.pop())
        return flushed


class OpensWithNothing(Progress):
    """A newcomer hears of what happens from now on only."""

    def open_to(self, member: WorkerId) -> None:
        known, self.contribution = self.contribution, {}
        super().open_to(member)
        self.contribution = known


class WaitsForNobody(Progress):
    """A newcomer computes frontiers before it has all openings."""

    @property
    def ready(self) -> bool:
        return self.welcome and self._me not in self._unopened


class LeavesAtOnce(Progress):
    """A leaver does not wait until all that it has contributed is over."""

    def _leave_when_done(self) -> None:
        if self._leave_at is not None:
            self._leave_at = None
            self._links.send(COORDINATOR, encode_member("leaves"))


class OpensTwice(Progress):
    """What a newcomer is told at its opening it is told once more with the next update."""

    def open_to(self, member: WorkerId) -> None:
        super().open_to(member)
        for (at, time), count in self.contribution.items():
            self.changes.add(at, time, count)


ALL = {
    "a decrement is forgotten": Planted(ForgetsADecrement),
    "an update is told in two, decrements first": Planted(TellsTheDecrementsFirst),
    "an update overtakes those before it": Planted(TellsTheLastFirst),
    "nobody waits for openings": Planted(DoesNotWaitForOpenings),
    "a capability is minted after its message was given up": Planted(mints_late=True),
    "a newcomer is told of nothing": Planted(OpensWithNothing),
    "a newcomer waits for nobody": Planted(WaitsForNobody),
    "a leaver leaves at once": Planted(LeavesAtOnce),
    "a newcomer is told twice": Planted(OpensTwice),
}
