"""The worker pool: all workers of an execution as the driver sees them, from launch to exit.

Guarantees that the driver notices each worker whose task ends, whose link breaks, or whose process
is silent for `heartbeat_timeout` seconds (`long_calls` reports silent loops). Of all reports it
then names the first cause: the worker's own error, else Spark's report of its task, else the broken
link, else what peers report. A leaving worker exits only after every other worker has acknowledged
its final message. Nothing here blocks except `close` and its parts, which are bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum

from msgspec import structs

from meander.app.driver.workers.joining import ExpectPlaces, JoiningWorkers, TaskOf
from meander.app.driver.workers.new_files import NewFiles
from meander.app.driver.workers.survivors import Survivors, end
from meander.app.driver.workers.worker_handle import WorkerHandle
from meander.app.protocol.messages import (
    FROM_WORKER,
    Done,
    Exit,
    Failure,
    FilesAdded,
    FromWorker,
    Log,
    PeerAdded,
    PeerLeftAck,
    Report,
    StopExecution,
    Stopped,
    ToWorker,
    WorkerHeartbeat,
)
from meander.app.protocol.registration import RegistrationServer
from meander.app.status.worker_stats import WorkerStats
from meander.connectors.kafka.sink.record_limits import TopicSettings, with_limits
from meander.connectors.links.links import CurveLinks, LinkBroken, member_name
from meander.dataflow.control.resources import Resources
from meander.dataflow.errors import worker_lost
from meander.dataflow.metrics.stall_log import Wait
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import LineLogger, LogLine
from meander.schemas.status import LongCall
from meander.state.keys.ids import WorkerId

log = LineLogger(__name__)

NEARLY = 0.8
"""The part of a lease after which a silent worker may have ended itself.

Both ends of a link measure the lease from about the same moment."""


class Rank(IntEnum):
    """The distance of a reported failure from its root."""

    REPORTED = 0
    SPARK = 1
    LINK = 2
    PEER = 3


class WorkerPool:
    """A pool of the workers of one execution.

    `startup_timeout` and `heartbeat_timeout` are in seconds.
    """

    def __init__(
        self,
        links: CurveLinks,
        server: RegistrationServer,
        task_of: TaskOf,
        workers: Mapping[WorkerId, Resources],
        heartbeat_timeout: float,
        startup_timeout: float,
        slots: str,
        files: NewFiles,
        expect_places: ExpectPlaces,
    ) -> None:
        self._links, self._server, self._files = links, server, files
        self._heartbeat_timeout, self._startup_timeout = heartbeat_timeout, startup_timeout
        self._slots = slots
        self._heartbeat_every = min(1.0, heartbeat_timeout / 5)
        self.handles = {
            worker: WorkerHandle(worker, task_of(worker, its)) for worker, its in workers.items()
        }
        self.joining = JoiningWorkers(
            links, server, task_of, heartbeat_timeout, startup_timeout, slots, files, expect_places
        )
        self._left = WorkerStats()
        self._removed: list[tuple[WorkerId, dict[str, int]]] = []
        self._causes: list[tuple[Rank, MeanderError]] = []
        self.limits: TopicSettings = {}
        """The stricter limits of topics that failed workers have learned."""
        self._deadline = time.monotonic() + startup_timeout
        self._heartbeat_at = 0.0
        self._stopping = False

    # -- state

    @property
    def connected(self) -> bool:
        """Whether all links are open."""
        return self._server.connected

    @property
    def registered(self) -> int:
        """The number of workers that have registered."""
        return len(self._server.registrations)

    @property
    def working(self) -> bool:
        """Whether every worker has opened its topics and runs its loop."""
        return all(handle.working for handle in self.handles.values())

    @property
    def has_all_files(self) -> bool:
        """Whether every worker has all files of the flow's code."""
        return all(map(self._files.reached, self.handles.values()))

    @property
    def done(self) -> bool:
        """Whether every worker has completed all its work."""
        return all(handle.done for handle in self.handles.values())

    def stats(self) -> WorkerStats:
        """Return the worker statistics from the last heartbeats."""
        heartbeats = {handle.id: handle.heartbeat for handle in self.handles.values()}
        return replace(self._left, working=heartbeats, executors=self.places)

    @property
    def places(self) -> Mapping[WorkerId, Resources]:
        """The actual resources of each worker that has registered and knows its executor."""
        places = dict[WorkerId, Resources]()
        for worker, one in self._server.registrations.items():
            handle = self.handles.get(worker) or self.joining.handle(worker)
            if (place := one.register.executor) is not None and handle is not None:
                places[worker] = handle.task.resources.at(place)
        return places

    def wait_reasons(self) -> dict[Hashable, Wait]:
        """Return the waits for workers that do not run yet.

        Only the first worker without a slot is named, because each question to Spark takes time.
        """
        found: dict[Hashable, Wait] = {}
        for handle in (*self.handles.values(), *self.joining.handles):
            if not self._is_up(handle):
                wait = self._wait(handle)
                found[handle.id, wait.what] = wait
                if not handle.has_slot:
                    break
        return found

    def long_calls(self) -> list[LongCall]:
        """Return each worker whose loop is silent for two heartbeats, and its operator."""
        now, found = time.monotonic(), []
        for worker, handle in self.handles.items():
            seconds = now - handle.received_at
            if handle.working and seconds > 2 * self._heartbeat_every:
                operator = self._server.registrations[worker].operator
                found.append(LongCall(worker=worker, operator=operator, seconds=round(seconds, 1)))
        return sorted(found, key=lambda call: -call.seconds)

    def removed(self) -> list[tuple[WorkerId, dict[str, int]]]:
        """Return the workers that have left since the last call, with their last counters."""
        removed, self._removed = self._removed, []
        return removed

    def cause(self, first: MeanderError) -> MeanderError:
        """Return the report of a failure that is closest to its root."""
        rank = Rank.LINK if isinstance(first, LinkBroken) else Rank.REPORTED
        return min([*self._causes, (rank, first)], key=lambda cause: cause[0])[1]

    # -- the driver's loop

    def launch(self) -> None:
        """Submit the tasks of all workers that are no survivors."""
        for handle in self.handles.values():
            if not handle.task.started:
                handle.task.start()

    def attend(self, report: Callable[[WorkerId, Report], None]) -> None:
        """Answer requests, receive messages, send heartbeats.

        Passes reports of the engine to `report`. Raises MeanderError where a worker is lost.
        """
        was_connected = self._server.connected
        self._server.poll()
        if self._server.connected and not was_connected:
            self._note_connected()
        self._receive(report)
        if self._server.connected:
            self.joining.attend(self.handles)
            self._files.send(handle for handle in self.handles.values() if not handle.leaving)
        self._remove_left()
        now = time.monotonic()
        if self._server.connected and now >= self._heartbeat_at:
            self._heartbeat_at = now + self._heartbeat_every
            self._send_all(WorkerHeartbeat())
        self._check(now)

    def promote(self, worker: WorkerId) -> None:
        """Make a ready joining worker a member, which the flow depends on from now on."""
        self.handles[worker] = self.joining.promote(worker)

    def release(self, worker: WorkerId) -> None:
        """Let a worker exit that has left the flow, once all others have its final message."""
        self.handles[worker].leaving = True

    # -- the end

    def close(self, within: float) -> None:
        """End all workers: by messages where they answer, else by Spark."""
        self.stop(within)
        self.end()

    def stop(self, within: float) -> None:
        """Stop the work of all workers; wait some seconds until they have closed their topics."""
        # A busy driver may find a broken link before it checks the leases.
        self._causes.extend((Rank.LINK, error) for error in self._silent(time.monotonic()))
        self._stopping = True
        self._links.detach()
        self._server.reject_all("this execution of the flow is over")
        if self._server.connected:
            self._send_all(StopExecution())
        deadline = time.monotonic() + within
        while time.monotonic() < deadline and not all(map(_has_stopped, self.handles.values())):
            self._links.wait(0.05)
            # A worker that still registers would otherwise be awaited until the deadline.
            self._server.poll()
            self._receive(_ignore)
        # Last, or a task that has just ended would no longer count as a cause.
        self._note_ends()

    def end(self) -> None:
        """End all workers after `stop`."""
        self._end(self.handles.values())

    def detach_survivors(self) -> Survivors:
        """End all workers after `stop`, except those that can join another execution."""
        survivors = []
        if self._server.connected:
            survivors = [handle for handle in self.handles.values() if _can_survive(handle)]
        self._end([handle for handle in self.handles.values() if handle not in survivors])
        return Survivors(self._links, survivors)

    def _end(self, members: Iterable[WorkerHandle]) -> None:
        """End the processes of some members, and of all workers that join or have left.

        The registration server has rejected each worker without a link, and a worker that left has
        got its `Exit`.
        """
        ending = list(members)
        if self._server.connected:
            for worker in (*(handle.id for handle in ending), *self.joining.linked):
                self._links.send_message(worker, Exit().to_bytes())
        end([*ending, *self.joining.handles, *self.joining.exiting])
        self._note_ends()

    # -- messages

    def _note_connected(self) -> None:
        now = time.monotonic()
        self._deadline = now + self._startup_timeout
        for handle in self.handles.values():
            handle.received_at = now

    def _receive(self, report: Callable[[WorkerId, Report], None]) -> None:
        for sender, data in self._links.receive_messages():
            handle = self.handles.get(sender) or self.joining.handle(sender)
            if handle is None:
                continue  # a dropped or removed worker
            handle.received_at = time.monotonic()
            match _read(sender, data):
                case WorkerHeartbeat() as heartbeat:
                    handle.working, handle.heartbeat = True, heartbeat
                case Log() as sent:
                    line = LogLine(sent.event, {"worker": sender} | sent.fields, sent.detail)
                    LineLogger(sent.logger).log(sent.level, line)
                case Report() as reports:
                    report(sender, reports)
                case Done(counters=counters):
                    handle.done = True
                    handle.heartbeat = structs.replace(handle.heartbeat, counters=counters)
                case PeerAdded() | PeerLeftAck() | FilesAdded() as answer:
                    self._receive_answer(handle, answer)
                case Stopped():
                    handle.stopped = True
                case Failure() as failure:
                    self._receive_failure(handle, failure)

    def _receive_answer(
        self, handle: WorkerHandle, answer: PeerAdded | PeerLeftAck | FilesAdded
    ) -> None:
        """Note that a member has opened its link to a joining worker, has closed it to one, or has
        new files."""
        match answer:
            case FilesAdded(number=number):
                handle.files = number
            case PeerAdded(worker=worker):
                self.joining.note_link(WorkerId(worker), handle.id)
            case PeerLeftAck(worker=worker) if WorkerId(worker) in self.handles:
                self.handles[WorkerId(worker)].acknowledged_by.add(handle.id)

    def _receive_failure(self, handle: WorkerHandle, failure: Failure) -> None:
        if failure.trace:
            log.error(
                "worker_failed",
                failure.trace.rstrip(),
                worker=handle.id,
                reason=_in_words(handle, failure),
            )
        if handle.id not in self.handles:
            if not self._stopping:
                self.joining.drop(handle.id, _in_words(handle, failure), self.handles)
            return
        handle.end_reported, handle.failed = True, failure.peer is None
        self.limits = with_limits(self.limits, failure.limits)
        rank = Rank.REPORTED if failure.peer is None else Rank.PEER
        error = failure.error()
        if failure.subject == member_name(handle.id) or rank is Rank.PEER:
            named = error
        else:
            kind = type(error)
            named = kind(f"{member_name(handle.id)}: {error.subject}", error.cause, error.remedy)
        self._causes.append((rank, named))
        if not self._stopping:
            raise named

    def _remove_left(self) -> None:
        """Let each worker exit whose final message all others have acknowledged."""
        for worker, handle in list(self.handles.items()):
            others = self.handles.keys() - {worker}
            if handle.leaving and handle.done and handle.acknowledged_by >= others:
                self._links.send_message(worker, Exit().to_bytes())
                self._links.release(worker)
                self._server.remove(worker, "it has left the flow")
                del self.handles[worker]
                self._left = self._left.without(handle.heartbeat)
                self.joining.exiting.append(handle)
                self._removed.append((worker, handle.heartbeat.counters))

    def _send_all(self, message: ToWorker) -> None:
        for worker in (*self.handles, *self.joining.linked):
            self._links.send_message(worker, message.to_bytes())

    # -- failures

    def _check(self, now: float) -> None:
        if self._note_ends():
            raise self._causes[-1][1]
        if not self.working and now > self._deadline:
            raise self._late()
        for error in self._silent(now):
            raise error

    def _silent(self, now: float) -> Iterator[MeanderError]:
        """Yield the loss of each worker whose lease is over."""
        for handle in self.handles.values():
            silent = handle.working and now - handle.received_at > self._heartbeat_timeout
            if silent and not self._server.is_alive(handle.id, self._heartbeat_timeout):
                yield self._lost(handle, self._silence(now - handle.received_at))

    def _note_ends(self) -> bool:
        """Note the causes of tasks that ended unexpectedly; return whether there are new ones."""
        found = False
        for handle in self.handles.values():
            ended = handle.task.ended
            if ended is None or handle.end_reported or handle.stopped:
                continue
            handle.end_reported = found = True
            error = ended.error or MeanderError(member_name(handle.id), "it ended by itself")
            setup = isinstance(error, SetupError)
            alive_at = max(handle.received_at, self._server.last_alive(handle.id))
            silent = time.monotonic() - alive_at
            # A worker without a message from the driver for a lease ends itself.
            by_itself = handle.working and silent > self._heartbeat_timeout * NEARLY
            cause = self._silence(silent) if by_itself else error.cause
            named = error if setup else self._lost(handle, cause)
            self._causes.append((Rank.REPORTED if setup else Rank.SPARK, named))
        return found

    def _silence(self, seconds: float) -> str:
        return (
            f"nothing was heard of it for {seconds:.0f} s: it is stopped, or its machine overloaded"
        )

    def _lost(self, handle: WorkerHandle, cause: str) -> MeanderError:
        found = self._server.registrations.get(handle.id)
        where = f" (process {found.register.pid} on {found.register.host})" if found else ""
        return worker_lost(f"{member_name(handle.id)}{where}", cause)

    def _late(self) -> MeanderError:
        within = f"within {self._startup_timeout:g} s"
        late = [handle for handle in self.handles.values() if not self._is_up(handle)]
        name = member_name(late[0].id)
        if self._server.connected:
            return MeanderError(name, f"it registered, but did not start its work {within}")
        without = next((handle for handle in late if not handle.task.has_slot()), None)
        if without is None:
            return MeanderError(name, f"it was started, but did not register {within}")
        return SetupError(
            member_name(without.id),
            f"Spark had no free slot for it {within}: {self._slots}",
            "use a master with more slots (--master 'local[4]'), or fewer --workers",
        )

    def _wait(self, handle: WorkerHandle) -> Wait:
        fields = {"worker": handle.id, "timeout_s": self._startup_timeout}
        if self._is_linked(handle):
            handle.has_slot = True
            return Wait("worker_ready", "the worker has opened its topics", fields)
        handle.has_slot = handle.has_slot or handle.task.has_slot()
        if not handle.has_slot:
            until = f"Spark has planned the job and found a free slot: {self._slots}"
            return Wait("spark_slot", until, fields)
        return Wait("registration", "its process starts and reaches the driver", fields)

    def _is_up(self, handle: WorkerHandle) -> bool:
        """Return whether a worker has registered, or runs its loop where it has links."""
        if self._is_linked(handle):
            return handle.working
        return handle.id in self._server.registrations

    def _is_linked(self, handle: WorkerHandle) -> bool:
        joining = self.joining.handle(handle.id) is not None
        return handle.id in self.joining.linked if joining else self._server.connected


def _read(sender: WorkerId, data: bytes) -> FromWorker:
    try:
        return FROM_WORKER.read(data)
    except ValueError as error:
        raise LinkBroken(sender, "it sent a message that the driver does not know") from error


def _in_words(handle: WorkerHandle, failure: Failure) -> str:
    """Return a failure as a sentence that names its worker."""
    name, sentence = member_name(handle.id), str(failure.error())
    return sentence if failure.subject == name else f"{name}: {sentence}"


def _can_survive(handle: WorkerHandle) -> bool:
    return handle.stopped and not handle.failed and handle.task.ended is None


def _has_stopped(handle: WorkerHandle) -> bool:
    return handle.stopped or handle.task.ended is not None


def _ignore(_: WorkerId, __: Report) -> None:
    """Discard a report, which is of no use once all workers stop."""
