"""The worker pool of a simulated flow, as the rescaler sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from meander.dataflow.control.resources import Resources
from meander.dataflow.simulation.simulator import Simulation
from meander.state.keys.ids import WorkerId


class SimulatedPool:
    """A pool of simulated workers; a worker that is launched can join at once.

    It notes the `resources` with which each of them is to run.
    """

    working = True

    def __init__(self, sim: Simulation, resources: dict[WorkerId, Resources]) -> None:
        self._sim, self._resources = sim, resources
        self._launched: list[WorkerId] = []
        self._dropped: list[tuple[WorkerId, str]] = []
        self._removed: list[WorkerId] = []

    @property
    def handles(self) -> Sequence[WorkerId]:
        """The active workers."""
        return self._sim.coordinator.workers.active

    @property
    def joining(self) -> Self:
        """The pool itself: it also launches workers."""
        return self

    @property
    def places(self) -> Mapping[WorkerId, Resources]:
        """Nothing, as simulated workers run nowhere."""
        return {}

    def expect_slots(self, workers: Mapping[WorkerId, Resources]) -> None:
        """Accept all workers, as simulated workers need no slots."""

    def launch(self, workers: Mapping[WorkerId, Resources]) -> None:
        """Start workers; each can join from now on."""
        for worker, resources in workers.items():
            self._resources[worker] = resources
            self._launched.append(worker)
            self._sim.next_worker = worker + 1

    @property
    def ready(self) -> Sequence[WorkerId]:
        """The launched workers that have not joined."""
        return [*self._launched]

    def drop(self, worker: WorkerId, why: str, _: Iterable[WorkerId] = ()) -> None:
        """Continue without a worker; `dropped` returns it with the reason."""
        self._launched.remove(worker)
        self._dropped.append((worker, why))

    def dropped(self) -> list[tuple[WorkerId, str]]:
        """Return the workers dropped since the last call, with the reasons."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def promote(self, worker: WorkerId) -> None:
        """Make a ready worker a member, which takes turns from now on."""
        self._launched.remove(worker)
        self._sim.workers.append(self._sim.start_worker(worker))

    def release(self, worker: WorkerId) -> None:
        """Note that a worker has left the flow."""
        self._removed.append(worker)

    def removed(self) -> list[tuple[WorkerId, dict[str, int]]]:
        """Return the workers that have left since the last call.

        The simulation has their counters.
        """
        removed, self._removed = self._removed, []
        return [(worker, {}) for worker in removed]
