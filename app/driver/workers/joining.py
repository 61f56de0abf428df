"""Workers that join a running flow: launched, registered, linked to all members, then ready.

One worker joins at a time. It registers and gets the list of members. Once it has admitted them,
each member admits it and opens a link to it. Then it connects, opens its topics, and is ready.
Guarantees that nothing depends on it until then. A joining worker that dies, is late or fails is
dropped, all members drop it as a peer, and the flow continues. Nothing here blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from meander.app.driver.workers.new_files import NewFiles
from meander.app.driver.workers.spark_launcher import SparkTask
from meander.app.driver.workers.worker_handle import WorkerHandle
from meander.app.protocol.messages import AddPeer, DropPeer, Exit, StopExecution, ToWorker
from meander.app.protocol.registration import RegistrationServer, member_info
from meander.connectors.links.links import CurveLinks, member_name
from meander.dataflow.control.resources import Resources
from meander.schemas.control import CommandError
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId

TaskOf = Callable[[WorkerId, Resources], SparkTask]
"""A function that returns the task of a worker with its resources."""


ExpectPlaces = Callable[[Mapping[WorkerId, Resources]], None]
"""A function that raises SetupError where some of these workers would find no free slot."""


class JoinStage(IntEnum):
    """The progress of a joining worker."""

    LAUNCHED = 0
    REGISTERED = 1
    ADMITTED = 2
    LINKED = 3


@dataclass(slots=True)
class JoiningWorker:
    """A worker that has not joined yet."""

    handle: WorkerHandle
    deadline: float
    stage: JoinStage = JoinStage.LAUNCHED
    awaited: set[WorkerId] = field(default_factory=set)
    """The members that have not opened their links to it yet."""


class JoiningWorkers:
    """A set of all joining workers. `startup_timeout` and `heartbeat_timeout` are in seconds."""

    def __init__(
        self,
        links: CurveLinks,
        server: RegistrationServer,
        task_of: TaskOf,
        heartbeat_timeout: float,
        startup_timeout: float,
        slots: str,
        files: NewFiles,
        expect_places: ExpectPlaces,
    ) -> None:
        self._files, self._expect_places = files, expect_places
        self._links, self._server, self._task_of = links, server, task_of
        self._heartbeat_timeout, self._startup_timeout = heartbeat_timeout, startup_timeout
        self._slots = slots
        self._workers: dict[WorkerId, JoiningWorker] = {}
        self._dropped: list[tuple[WorkerId, str]] = []
        self.exiting: list[WorkerHandle] = []
        """Workers that were dropped or have left, whose tasks may still be ending."""

    @property
    def handles(self) -> list[WorkerHandle]:
        """The handles of all joining workers."""
        return [one.handle for one in self._workers.values()]

    @property
    def linked(self) -> list[WorkerId]:
        """The joining workers that receive messages over a link."""
        return [worker for worker, one in self._workers.items() if one.stage is JoinStage.LINKED]

    @property
    def ready(self) -> list[WorkerId]:
        """The joining workers that can become members now."""
        handles = (self._workers[worker].handle for worker in self.linked)
        return [one.id for one in handles if one.working and self._files.reached(one)]

    def expect_slots(self, workers: Mapping[WorkerId, Resources]) -> None:
        """Raise CommandError where some of these workers would find no free slot at their places.

        They are checked together, so that no two of them count on one slot.
        """
        placed = {worker: its for worker, its in workers.items() if its.needs_place}
        if placed:
            try:
                self._expect_places(placed)
            except MeanderError as error:
                raise CommandError(str(error)) from error

    def launch(self, workers: Mapping[WorkerId, Resources]) -> None:
        """Submit a Spark task for each worker; it runs where its resources say, or is dropped."""
        for worker, resources in workers.items():
            handle = WorkerHandle(worker, self._task_of(worker, resources))
            deadline = time.monotonic() + self._startup_timeout
            self._workers[worker] = JoiningWorker(handle, deadline)
            handle.task.start()

    def handle(self, worker: WorkerId) -> WorkerHandle | None:
        """Return the handle of a joining worker; None for any other worker."""
        one = self._workers.get(worker)
        return None if one is None else one.handle

    def note_link(self, worker: WorkerId, member: WorkerId) -> None:
        """Note that a member has opened its link to a joining worker."""
        if (one := self._workers.get(worker)) is not None:
            one.awaited.discard(member)

    def attend(self, members: Collection[WorkerId]) -> None:
        """Drop workers that fail to join, and advance the one whose turn it is."""
        now = time.monotonic()
        for worker, one in list(self._workers.items()):
            if why := self._why_lost(one, now):
                self.drop(worker, why, members)
        self._files.send(self._workers[worker].handle for worker in self.linked)
        registered = [one for one in self._workers.items() if one[1].stage > JoinStage.LAUNCHED]
        for worker, one in registered or self._workers.items():
            self._advance(worker, one, members)
            if one.stage is not JoinStage.LAUNCHED:
                break

    def promote(self, worker: WorkerId) -> WorkerHandle:
        """Return the handle of a ready worker, which is a member from now on."""
        handle = self._workers.pop(worker).handle
        handle.received_at = time.monotonic()
        return handle

    def drop(self, worker: WorkerId, why: str, members: Iterable[WorkerId]) -> None:
        """Continue without a worker; `dropped` returns it with the reason."""
        one = self._workers.pop(worker)
        # First, because a broken link to a member may raise below, and the task must still end.
        self.exiting.append(one.handle)
        self._dropped.append((worker, why))
        if one.stage is JoinStage.LINKED:
            self._send(worker, StopExecution())
            self._send(worker, Exit())
        self._server.remove(worker, "the flow no longer waits for it")
        if one.handle.task.ended is None:
            one.handle.task.cancel()
        if one.stage >= JoinStage.ADMITTED:
            self._links.release(worker)
            for member in members:
                self._send(member, DropPeer(worker=worker))

    def dropped(self) -> list[tuple[WorkerId, str]]:
        """Return the workers dropped since the last call, with the reasons."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _advance(self, worker: WorkerId, one: JoiningWorker, members: Collection[WorkerId]) -> None:
        match one.stage:
            case JoinStage.LAUNCHED if worker in self._server.registrations:
                self._server.send_members(worker, members)
                one.stage = JoinStage.REGISTERED
            case JoinStage.REGISTERED if self._server.registrations[worker].ready:
                peer = self._server.registrations[worker].peer
                self._links.admit([peer])
                self._links.connect([peer], joining=True)
                one.awaited, one.stage = set(members), JoinStage.ADMITTED
                for member in members:
                    self._send(member, AddPeer(peer=member_info(peer)))
            case JoinStage.ADMITTED if not one.awaited:
                now = time.monotonic()
                one.stage, one.deadline = JoinStage.LINKED, now + self._startup_timeout
                one.handle.received_at = now
                self._server.let_connect(worker)

    def _why_lost(self, one: JoiningWorker, now: float) -> str:
        handle, lease = one.handle, self._heartbeat_timeout
        name = member_name(handle.id)
        if (ended := handle.task.ended) is not None:
            if ended.error is None:
                return f"{name}: it ended by itself"
            remedy = f"; {ended.error.remedy}" if ended.error.remedy else ""
            return f"{name}: {ended.error.cause}{remedy}"
        silent = handle.working and now - handle.received_at > lease
        if silent and not self._server.is_alive(handle.id, lease):
            return f"{name}: nothing was heard of it for {lease:g} s"
        if handle.working or now <= one.deadline:
            return ""
        return f"{name}: {self._why_late(one)}"

    def _why_late(self, one: JoiningWorker) -> str:
        within = f"within {self._startup_timeout:g} s"
        if one.stage is JoinStage.LINKED:
            return f"it registered, but did not start its work {within}"
        if one.handle.id in self._server.registrations:
            return f"it registered, but the others did not open their links to it {within}"
        if one.handle.task.has_slot():
            return f"it was started, but did not register {within}"
        resources = one.handle.task.resources
        where = f" on {resources}" if resources.needs_place else ""
        return (
            f"Spark had no free slot for it{where} {within}: {self._slots}; free one, or run the"
            " flow on a master with more slots"
        )

    def _send(self, member: WorkerId, message: ToWorker) -> None:
        self._links.send_message(member, message.to_bytes())
