"""Workers that are to join a running flow: launched, registered, linked to all, and ready.

One at a time comes in. It registers and is told of all members; once it has admitted them each is
told of it, admits it and opens its end; then it connects, opens what it reads and writes, and is
ready. Guarantees that until then nothing depends on it: one that dies, is late or says that it
fails is given up, all forget it, and the flow goes on. Nothing here blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from meander.app.driver.workers.spark_launcher import SparkTask
from meander.app.driver.workers.worker_handle import WorkerHandle
from meander.app.protocol.messages import AddPeer, DropPeer, Exit, StopExecution, ToWorker
from meander.app.protocol.registration import RegistrationServer, listed
from meander.connectors.links.links import CurveLinks, member_name
from meander.state.keys.ids import WorkerId


class JoinStage(IntEnum):
    """How far a newcomer has come."""

    LAUNCHED = 0
    INTRODUCED = 1
    MET = 2
    INSIDE = 3


@dataclass(slots=True)
class Newcomer:
    """A worker on its way in."""

    hand: WorkerHandle
    deadline: float
    stage: JoinStage = JoinStage.LAUNCHED
    unmet: set[WorkerId] = field(default_factory=set)
    """The members that have not opened their ends yet."""


class Newcomers:
    """Those that are on their way. `startup_timeout` and `heartbeat_timeout` are in seconds."""

    def __init__(
        self,
        links: CurveLinks,
        door: RegistrationServer,
        task_of: Callable[[WorkerId], SparkTask],
        heartbeat_timeout: float,
        startup_timeout: float,
        slots: str,
    ) -> None:
        self._links, self._door, self._task_of = links, door, task_of
        self._heartbeat_timeout, self._startup_timeout, self._slots = (
            heartbeat_timeout,
            startup_timeout,
            slots,
        )
        self._coming: dict[WorkerId, Newcomer] = {}
        self._given_up: list[tuple[WorkerId, str]] = []
        self.past: list[WorkerHandle] = []
        """Whose tasks may still be ending."""

    @property
    def hands(self) -> list[WorkerHandle]:
        """All who are on their way."""
        return [newcomer.hand for newcomer in self._coming.values()]

    @property
    def linked(self) -> list[WorkerId]:
        """Those that hear what is told to them."""
        return [worker for worker, one in self._coming.items() if one.stage is JoinStage.INSIDE]

    @property
    def ready(self) -> list[WorkerId]:
        """Those that can join now."""
        return [worker for worker in self.linked if self._coming[worker].hand.working]

    def launch(self, workers: Iterable[WorkerId]) -> None:
        """Submit a task for each."""
        for worker in workers:
            hand = WorkerHandle(worker, self._task_of(worker))
            self._coming[worker] = Newcomer(hand, time.monotonic() + self._startup_timeout)
            hand.task.start()

    def hand(self, worker: WorkerId) -> WorkerHandle | None:
        """Of one who is on its way."""
        newcomer = self._coming.get(worker)
        return None if newcomer is None else newcomer.hand

    def met(self, worker: WorkerId, by: WorkerId) -> None:
        """A member has opened its end."""
        if (newcomer := self._coming.get(worker)) is not None:
            newcomer.unmet.discard(by)

    def attend(self, members: Collection[WorkerId]) -> None:
        """Bring each a step further, or give it up."""
        now = time.monotonic()
        for worker, newcomer in list(self._coming.items()):
            if why := self._why_lost(newcomer, now):
                self.give_up(worker, why, members)
        on_the_way = [one for one in self._coming.items() if one[1].stage is not JoinStage.LAUNCHED]
        for worker, newcomer in on_the_way or self._coming.items():
            self._step(worker, newcomer, members)
            if newcomer.stage is not JoinStage.LAUNCHED:
                break

    def enlist(self, worker: WorkerId) -> WorkerHandle:
        """One that is ready is a member from now on."""
        hand = self._coming.pop(worker).hand
        hand.heard = time.monotonic()
        return hand

    def give_up(self, worker: WorkerId, why: str, members: Iterable[WorkerId]) -> None:
        """Do without one; `lost` says so."""
        newcomer = self._coming.pop(worker)
        # First of all: a link to a member may turn out to be broken below, and the task must end.
        self.past.append(newcomer.hand)
        self._given_up.append((worker, why))
        if newcomer.stage is JoinStage.INSIDE:
            self._tell(worker, StopExecution())
            self._tell(worker, Exit())
        self._door.dismiss(worker, "it is not waited for any more")
        if newcomer.hand.task.ended is None:
            newcomer.hand.task.cancel()
        if newcomer.stage >= JoinStage.MET:
            self._links.loosen(worker)
            for member in members:
                self._tell(member, DropPeer(worker=worker))

    def lost(self) -> list[tuple[WorkerId, str]]:
        """Who has been given up since the last call, and why."""
        taken, self._given_up = self._given_up, []
        return taken

    def _step(self, worker: WorkerId, newcomer: Newcomer, members: Collection[WorkerId]) -> None:
        match newcomer.stage:
            case JoinStage.LAUNCHED if worker in self._door.guests:
                self._door.introduce(worker, members)
                newcomer.stage = JoinStage.INTRODUCED
            case JoinStage.INTRODUCED if self._door.guests[worker].ready:
                peer = self._door.guests[worker].peer
                self._links.admit([peer])
                self._links.connect([peer], joining=True)
                newcomer.unmet, newcomer.stage = set(members), JoinStage.MET
                for member in members:
                    self._tell(member, AddPeer(peer=listed(peer)))
            case JoinStage.MET if not newcomer.unmet:
                now = time.monotonic()
                newcomer.stage, newcomer.deadline = JoinStage.INSIDE, now + self._startup_timeout
                newcomer.hand.heard = now
                self._door.let_in(worker)

    def _why_lost(self, newcomer: Newcomer, now: float) -> str:
        hand = newcomer.hand
        if (ended := hand.task.ended) is not None:
            cause = "it ended by itself" if ended.error is None else ended.error.cause
            return f"{member_name(hand.id)}: {cause}"
        silent = hand.working and now - hand.heard > self._heartbeat_timeout
        if silent and not self._door.lives(hand.id, self._heartbeat_timeout):
            return (
                f"{member_name(hand.id)}: nothing was heard of it for {self._heartbeat_timeout:g} s"
            )
        if hand.working or now <= newcomer.deadline:
            return ""
        waited, name = f"within {self._startup_timeout:g} s", member_name(hand.id)
        if newcomer.stage is JoinStage.INSIDE:
            return f"{name}: it registered, but did not begin its work {waited}"
        if hand.id in self._door.guests:
            return f"{name}: it registered, but the others did not open their links to it {waited}"
        if hand.task.has_slot():
            return f"{name}: it was started, but did not register {waited}"
        return (
            f"{name}: Spark had no free slot for it {waited}: {self._slots}; free one, or run the"
            " flow on a master with more slots"
        )

    def _tell(self, member: WorkerId, message: ToWorker) -> None:
        self._links.tell(member, message.to_bytes())
