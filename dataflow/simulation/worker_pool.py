"""The worker pool of a simulated flow, as the rescaler sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from meander.dataflow.simulation.simulator import Simulation
from meander.state.keys.ids import WorkerId


class SimulatedPool:
    """A pool of simulated workers; a worker that is launched can join at once."""

    working = True

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._launched: list[WorkerId] = []
        self._lost: list[tuple[WorkerId, str]] = []
        self._left: list[WorkerId] = []

    @property
    def hands(self) -> Sequence[WorkerId]:
        """The active workers."""
        return self._sim.controller.workers.active

    @property
    def newcomers(self) -> Self:
        """The pool itself: it also launches workers."""
        return self

    def launch(self, workers: Iterable[WorkerId]) -> None:
        """Start workers; each can join from now on."""
        for worker in workers:
            self._launched.append(worker)
            self._sim.hired = worker + 1

    @property
    def ready(self) -> Sequence[WorkerId]:
        """The launched workers that have not joined."""
        return [*self._launched]

    def give_up(self, worker: WorkerId, why: str, _: Iterable[WorkerId] = ()) -> None:
        """Drop a launched worker; `lost` says why."""
        self._launched.remove(worker)
        self._lost.append((worker, why))

    def lost(self) -> list[tuple[WorkerId, str]]:
        """Return the workers dropped since the last call, and why."""
        taken, self._lost = self._lost, []
        return taken

    def enlist(self, worker: WorkerId) -> None:
        """Let a worker take its turns, as it joins."""
        self._launched.remove(worker)
        self._sim.workers.append(self._sim.hire(worker))

    def release(self, worker: WorkerId) -> None:
        """Note that a worker has left the flow."""
        self._left.append(worker)

    def gone(self) -> list[tuple[WorkerId, dict[str, int]]]:
        """Return the workers that have left since the last call; the simulation has their
        counters."""
        taken, self._left = self._left, []
        return [(worker, {}) for worker in taken]
