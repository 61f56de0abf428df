"""Workers that come to a simulated flow and leave it, as `rescale` commands ask.

Guarantees that what is said of a command is said in the words of the status topic
(`schemas.status`), and that it has ended once all who leave have left, or those who have come have
got their share.
"""

from __future__ import annotations

from dataflow.migrate.command import Refused
from dataflow.sim import Command, Join, Simulation
from schemas.control import Rescale
from state.ids import WorkerId


class Hiring:
    """The staff of one simulated flow."""

    def __init__(self, sim: Simulation) -> None:
        self._sim, self._heard = sim, 0
        self._awaited: dict[str, set[object]] = {}
        """What each command waits for: moves by their ids, leavers by their numbers."""

    def submit(self, command: Command) -> None:
        """Give a command once the flow is ready for it; who joins has joined then."""
        while not self._sim.controller.ready:
            self._sim.act()
        hired = self._sim.hired
        self._sim.submit(command)
        while self._sim.hired > hired and hired not in self._sim.controller.staff.staying:
            self._sim.act()

    def rescale(self, asked: Rescale) -> None:
        """Workers join and get their share, or those with the highest numbers leave."""
        controller, first = self._sim.controller, self._sim.hired
        staff = sorted(controller.staff.staying)
        leaving = staff[asked.workers :]
        joining = range(first, first + asked.workers - len(staff))
        try:
            if leaving:
                controller.leave(asked.id, leaving)
            else:
                controller.use(asked.id)
        except Refused as refusal:
            self._tell("rejected", asked.id, reason=str(refusal))
            return
        self._tell(
            "rescaling", asked.id,
            workers=asked.workers, joining=[*joining], leaving=[*map(int, leaving)],
        )  # fmt: skip
        for _ in joining:
            self.submit(Join())
        newcomers = [worker for worker in controller.staff.staying if worker >= first]
        self._awaited[asked.id] = {*leaving} or self._share(asked.id, newcomers)

    def hear(self) -> None:
        """See which commands have ended by what has happened."""
        for event in self._sim.events[self._heard :]:
            match event:
                case {"type": "left", "worker": part}:
                    pass
                case {"type": "completed" | "partition_moved", "id": part}:
                    pass
                case _:
                    continue
            for awaited in self._awaited.values():
                awaited.discard(part)
        for id in [id for id, awaited in self._awaited.items() if not awaited]:
            del self._awaited[id]
            self._tell("rescaled", id, workers=len(self._sim.controller.staff.staying))
        self._heard = len(self._sim.events)

    def _share(self, id: str, newcomers: list[WorkerId]) -> set[object]:
        try:
            return {*self._sim.controller.share(id, newcomers)}
        except Refused:
            # Once the sources have ended there is nothing left to do for them.
            return set()

    def _tell(self, kind: str, id: str, **more: object) -> None:
        self._sim.events.append({"type": kind, "id": id} | more)
