"""The rescaler of a simulated flow: workers join and leave as `rescale` commands ask.

Guarantees that its events use the words of the status topic (`schemas.status`). A command ends once
all leaving workers have left, or all joining workers have their share. Commands run one after
another, as in a real flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from meander.dataflow.control.command import MoveBins, Refused
from meander.dataflow.simulation.simulator import Command, Join, Simulation
from meander.schemas.control import Rescale
from meander.state.keys.ids import WorkerId


class SimulatedRescaler:
    """A rescaler that adds and removes the workers of one simulated flow."""

    def __init__(self, sim: Simulation, act: Callable[[], None]) -> None:
        self._sim, self._act, self._heard = sim, act, 0
        self._asked: deque[Rescale] = deque()
        self._changing: str | None = None
        """The id of the running command."""
        self._awaited: set[object] = set()
        """The ids of moves and the numbers of leaving workers that the command waits for."""
        self.giving = False
        """Whether the flow runs steps now so that it can accept a command, or a worker joins."""

    def submit(self, command: Command) -> None:
        """Submit a command once the flow is ready for it, and wait for a joining worker. A
        migration may name the next worker to join."""
        self.giving = True
        if isinstance(command, MoveBins) and command.worker == self._sim.next_worker:
            self._give(Join())
        self._give(command)
        self.giving = False

    def _give(self, command: Command) -> None:
        self._open()
        hired = self._sim.next_worker
        self._sim.submit(command)
        while self._sim.next_worker > hired and hired not in self._sim.controller.workers.active:
            self._act()

    def _open(self) -> None:
        """Run the flow until workers may join and leave."""
        while not self._sim.controller.ready:
            self._act()

    def ask(self, command: Rescale) -> None:
        """Queue a command. It starts once earlier commands have ended."""
        self._asked.append(command)
        self.step()

    def step(self) -> None:
        """Start queued commands that can start now."""
        if self.giving:
            return
        self._hear()
        while self._changing is None and self._asked:
            self.giving = True
            self._begin(self._asked.popleft())
            self.giving = False
            self._hear()

    def _begin(self, command: Rescale) -> None:
        """Let workers join and get their share, or let those with the highest numbers leave."""
        self._open()
        controller, first = self._sim.controller, self._sim.next_worker
        staff = sorted(controller.workers.active)
        leaving = staff[command.workers :]
        joining = range(first, first + command.workers - len(staff))
        try:
            if leaving:
                controller.leave(command.id, leaving)
            else:
                controller.use(command.id)
        except Refused as refusal:
            self._tell("rejected", command.id, reason=str(refusal))
            return
        self._tell(
            "rescaling", command.id,
            workers=command.workers, joining=[*joining], leaving=[*map(int, leaving)],
        )  # fmt: skip
        self._changing = command.id
        for _ in joining:
            self._give(Join())
        newcomers = [worker for worker in controller.workers.active if worker >= first]
        self._awaited = {*leaving} or self._share(command.id, newcomers)

    def _share(self, id: str, newcomers: list[WorkerId]) -> set[object]:
        try:
            return {*self._sim.controller.share(id, newcomers)}
        except Refused:
            # Ended sources leave no records for joining workers.
            return set()

    def _hear(self) -> None:
        """Read new events, and end the running command where they complete it."""
        for event in self._sim.events[self._heard :]:
            match event:
                case {"type": "left", "worker": part}:
                    self._awaited.discard(part)
                case {"type": "completed" | "partition_moved", "id": part}:
                    self._awaited.discard(part)
        if self._changing is not None and not self._awaited:
            staff = self._sim.controller.workers.active
            self._tell("rescaled", self._changing, workers=len(staff))
            self._changing = None
        self._heard = len(self._sim.events)

    def _tell(self, kind: str, id: str, **more: object) -> None:
        self._sim.events.append({"type": kind, "id": id} | more)
