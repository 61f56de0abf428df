"""A simulated flow that is killed at a named step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meander.dataflow.migration.migrator import OutgoingState
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.faults import Fault
from meander.dataflow.simulation.in_memory import DeadLetter
from meander.dataflow.simulation.simulator import Command, TakeCheckpoint
from meander.state.keys.ids import COORDINATOR, WorkerId
from meander.state.store.store import Database
from tests.support.property.case_run import CaseRun, CrampedFlow
from tests.support.property.cases import Case
from tests.support.property.faults import Cut, DiskFull, FullDisk, Kill, Killed, Stop, strike_world
from tests.support.property.steps import PlannedFault, StepFaults
from tests.support.property.watched import WatchedWorld, watch_decisions, watch_links, watch_worker

Refusal = tuple[str, str, int, int, int]
"""The operator, the value, the time, the partition and the offset of a dead letter."""
FOREVER = 1 << 60
"""More steps than any run takes."""


@dataclass(frozen=True)
class Interruption:
    """An interruption that ends one execution: a kill after a number of steps, or at a fault.

    Without `steps` the execution runs to its end. With `moving` the kill follows a checkpoint that
    is taken while bins move, if any move.
    """

    workers: int
    steps: int | None
    moving: bool = False
    faults: Sequence[PlannedFault] = ()


class KilledFlow(CrampedFlow):
    """A flow that is killed; its topics and the stores of some workers survive."""

    def __init__(
        self, case: Case, run: CaseRun, script: Sequence[Command], world: WatchedWorld,
        interruption: Interruption, survivors: Mapping[WorkerId, Database],
    ) -> None:  # fmt: skip
        self._room, self.disks = case.room, []
        self._interruption, self._until, self._cut = interruption, FOREVER, False
        self._killed: WorkerId | None = None
        self.disk_full, self._survivors = False, survivors
        self.local_bins = 0
        """Bins that survivors had in their stores."""
        self._stopped = dict[WorkerId, int]()
        """Steps for which a process stops once its turn is over."""
        self.step_faults = StepFaults(interruption.faults, self.strike_process)
        self.watched, self._chance = world, random.Random(f"faults {case.seed}")
        world.turn.step_faults = self.step_faults
        # Tables name their operator, so an execution shares no database but those of survivors.
        super(CrampedFlow, self).__init__(
            run.flow, interruption.workers, case.seed, dead_letters="allow", commands=script,
            world=world,
        )  # fmt: skip
        watch_decisions(self.sim.coordinator.decisions, world)

    def act(self) -> None:
        """Make one step of this execution."""
        self.watched.tick()
        self.watched.turn.step_faults = self.step_faults
        for process, steps in self._stopped.items():
            self.sim.pauses[process] = self.sim.actions + steps
            self._run_for(self._chance.randrange(2 * steps))
        self._stopped.clear()
        super().act()

    def run_until_killed(self) -> bool:
        """Run up to the interruption; return whether the flow has come to its end."""
        if self._interruption.steps is not None:
            self._run_for(self._interruption.steps)
        moving = self._interruption.moving
        while not self.sim.done and self.sim.actions < self._until:
            self.act()
            if self._cut or (moving and any(outgoing.retained for outgoing in self._outlets)):
                self._cut = moving = False
                self._checkpoint_at_once()
                self._run_for(20)
        return self.sim.done

    def _run_for(self, steps: int) -> None:
        self._until = self.sim.actions + steps

    @property
    def ended(self) -> dict[tuple[str, int], int] | None:
        """The end of each partition, if all partitions have been read to their ends."""
        sources = [one for worker in self.workers for one in worker.parts.operators.sources.items()]
        if any(source.statuses() for _, source in sources):
            return None
        return {
            (name, parcel.partition): parcel.rest.offset
            for name, source in sources
            for parcel in source.partition_handoffs()
        }

    @property
    def durable_dead_letters(self) -> Counter[Refusal]:
        """How often each dead letter is there that a crash now would not lose."""
        lost = (letter for one in self._dead.values() for letter in one.waiting)
        return Counter(map(_refusal, self._dead_letters)) - Counter(map(_refusal, lost))

    def disarm(self) -> None:
        """Let no fault strike any more; a killed process does nothing."""
        self.step_faults.end()
        if self._killed is not None:
            self.sim.pauses[self._killed] = FOREVER
        if self._killed == COORDINATOR:
            self.sim.commands.clear()

    def surviving_databases(self) -> dict[WorkerId, Database]:
        """Give up the databases of the workers that were not killed, and return them."""
        assert self._databases is not None
        if self.disk_full:
            return {}
        found = {WorkerId(worker): one for worker, one in self._databases._opened.items()}
        if self._killed is not None:
            found.pop(self._killed, None)
        for worker in found:
            del self._databases._opened[worker]
        return found

    def strike_process(self, fault: Fault, process: WorkerId) -> None:
        """Apply a fault to the process that passes a step; a kill raises `Killed`."""
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
                strike_world(self.watched, fault, self._chance)

    def _build(self, *surroundings: Any) -> Worker:
        me, links, *_ = surroundings
        watch_links(links, self.watched.turn)
        if (database := self._survivors.get(me)) is not None:
            assert self._databases is not None
            self._databases._opened[me] = database
            database.end_execution()
        worker = super()._build(*surroundings)
        self.local_bins += len(worker._state_restore._survived)
        watch_worker(worker, self.watched.turn)
        return worker

    def _checkpoint_at_once(self) -> None:
        before = len(self.world.checkpoints)
        self.sim.submit(TakeCheckpoint())
        self._slow_down()
        while not self.sim.done and len(self.world.checkpoints) == before:
            self.act()

    def _slow_down(self) -> None:
        """Delay what workers have sent each other."""
        for one in self.workers:
            for other in self.workers:
                self.sim.slowed[one.me, other.me] = self.sim.actions + 200

    @property
    def _outlets(self) -> Iterator[OutgoingState]:
        return (outlet for worker in self.workers for outlet in worker.parts.operators.outgoing)


def _refusal(letter: DeadLetter) -> Refusal:
    return letter.operator, repr(letter.value), letter.time, letter.partition, letter.offset
