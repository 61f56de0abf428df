"""A simulated flow that is killed at a named step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meander.dataflow.migration.migrator import OutgoingState
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.faults import Fault
from meander.dataflow.simulation.simulator import Command, TakeCheckpoint
from meander.state.keys.ids import COORDINATOR, WorkerId
from meander.state.store.store import Database
from tests.support.property.case_run import Cramped, Run
from tests.support.property.cases import Case
from tests.support.property.faults import Cut, DiskFull, FullDisk, Kill, Killed, Stop, befall
from tests.support.property.steps import Course, There
from tests.support.property.watched import Watched, watch_links, watch_worker
from tests.support.sim.manual_flow import assembly

FOREVER = 1 << 60
"""In steps."""


@dataclass(frozen=True)
class Ordeal:
    """What is to happen to one life, on so many workers: it is killed after so many steps, or lives
    to its end. With `moving` it is killed soon after a checkpoint that is taken as bins are on
    their way, if any are."""

    workers: int
    steps: int | None
    moving: bool = False
    faults: Sequence[There] = ()


class Mortal(Cramped):
    """A flow that is killed; what is left are its topics."""

    def __init__(
        self, case: Case, run: Run, script: Sequence[Command], world: Watched, ordeal: Ordeal,
        heirlooms: Mapping[WorkerId, Database],
    ) -> None:  # fmt: skip
        self._room, self.disks = case.room, []
        self._ordeal, self._until, self._cut = ordeal, FOREVER, False
        self._killed: WorkerId | None = None
        self.disk_full, self._heirlooms = False, heirlooms
        self.here = 0
        """Bins that were here."""
        self._stopped = dict[WorkerId, int]()
        """For how long; it begins as their turn is over."""
        self.course = Course(ordeal.faults, self.befalls)
        self.watched, self._chance = world, random.Random(f"faults {case.seed}")
        world.turn.course = self.course
        # With databases of its own, but for those of workers that have outlived the last life:
        # tables name their operator.
        super(Cramped, self).__init__(run.flow, ordeal.workers, case.seed, script, world=world)

    def act(self) -> None:
        """One step of this life."""
        self.watched.tick()
        self.watched.turn.course = self.course
        for process, steps in self._stopped.items():
            self.sim.pauses[process] = self.sim.actions + steps
            self._live_for(self._chance.randrange(2 * steps))
        self._stopped.clear()
        super().act()

    def live(self) -> bool:
        """As is ordained; whether it has come to its end."""
        if self._ordeal.steps is not None:
            self._live_for(self._ordeal.steps)
        moving = self._ordeal.moving
        while not self.sim.done and self.sim.actions < self._until:
            self.act()
            if self._cut or (moving and any(outgoing.retained for outgoing in self._outlets)):
                self._cut = moving = False
                self._checkpoint_at_once()
                self._live_for(20)
        return self.sim.done

    def _live_for(self, steps: int) -> None:
        self._until = self.sim.actions + steps

    @property
    def ended(self) -> dict[tuple[str, int], int] | None:
        """Up to where each partition was read, once all have come to their ends."""
        sources = [one for worker in self.workers for one in assembly(worker).sources.items()]
        if any(source.standing() for _, source in sources):
            return None
        return {
            (name, parcel.partition): parcel.rest.offset
            for name, source in sources
            for parcel in source.parcels()
        }

    def end(self) -> None:
        """Nobody kills this life any more; who has been killed does nothing."""
        self.course.end()
        if self._killed is not None:
            self.sim.pauses[self._killed] = FOREVER
        if self._killed == COORDINATOR:
            self.sim.commands.clear()

    def bequeath(self) -> dict[WorkerId, Database]:
        """The databases of those who were not killed, which are this life's no longer."""
        assert self._databases is not None
        if self.disk_full:
            return {}
        found = {WorkerId(worker): one for worker, one in self._databases._opened.items()}
        if self._killed is not None:
            found.pop(self._killed, None)
        for worker in found:
            del self._databases._opened[worker]
        return found

    def befalls(self, fault: Fault, process: WorkerId) -> None:
        """A fault strikes a process where it is."""
        match fault:
            case Kill():
                self._killed = process
                raise Killed
            case Stop(steps):
                self._stopped[process] = steps
            case Cut():
                self._cut = True
            case DiskFull() if process != COORDINATOR:
                assert self._databases is not None
                full = self._databases.of(process).rocks
                full._rocks = FullDisk(full._rocks)  # type: ignore[assignment]
                self.disk_full = True
            case DiskFull():
                """The coordinator has none."""
            case _:
                befall(self.watched, fault, self._chance)

    def _build(self, *surroundings: Any) -> Worker:
        me, links, *_ = surroundings
        watch_links(links, self.watched.turn)
        if (heirloom := self._heirlooms.get(me)) is not None:
            assert self._databases is not None
            self._databases._opened[me] = heirloom
            heirloom.outlive()
        worker = super()._build(*surroundings)
        self.here += len(worker._loading._here)
        watch_worker(worker, self.watched.turn)
        return worker

    def _checkpoint_at_once(self) -> None:
        before = len(self.world.checkpoints)
        self.sim.submit(TakeCheckpoint())
        self._slow_down()
        while not self.sim.done and len(self.world.checkpoints) == before:
            self.act()

    def _slow_down(self) -> None:
        """What workers have sent each other arrives later."""
        for one in self.workers:
            for other in self.workers:
                self.sim.slowed[one.me, other.me] = self.sim.actions + 200

    @property
    def _outlets(self) -> Iterator[OutgoingState]:
        return (outlet for worker in self.workers for outlet in assembly(worker).outlets)
