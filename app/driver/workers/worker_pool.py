"""The workers of a flow as the driver sees them: launched, registered, heard of, gone; some come
and go while the others work.

Guarantees that a worker which ends, breaks its link or whose process is silent for
`heartbeat_timeout` seconds is noticed (`calls` tells of silent loops), and that of all that is then
reported the first cause is named: what a worker says of itself, else what Spark says of its task,
else the broken link, else what its peers say. A leaver is let go once each other has heard its last
word. Nothing here blocks, but for `dismiss`, which is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from enum import IntEnum

from msgspec import structs

from meander.app.driver.workers.joining import Newcomers
from meander.app.driver.workers.spark_launcher import SparkTask
from meander.app.driver.workers.survivors import Survivors, end
from meander.app.driver.workers.worker_handle import WorkerHandle
from meander.app.protocol.messages import (
    FROM_WORKER,
    Done,
    Exit,
    Failure,
    FromWorker,
    Log,
    PeerAdded,
    Released,
    Report,
    StopExecution,
    Stopped,
    ToWorker,
    WorkerHeartbeat,
)
from meander.app.protocol.registration import RegistrationServer
from meander.app.status.worker_stats import WorkerStats
from meander.connectors.links.links import CurveLinks, LinkBroken, member_name
from meander.dataflow.errors import lost
from meander.dataflow.metrics.stall_log import Wait
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import LineLogger, LogLine
from meander.schemas.status import LongCall
from meander.state.keys.ids import WorkerId

log = LineLogger(__name__)

NEARLY = 0.8
"""Of the lease: both ends of a link count it from about the same moment."""


class Rank(IntEnum):
    """How close to the root of a failure an account of it is."""

    SAID = 0
    SPARK = 1
    LINK = 2
    PEER = 3


class WorkerPool:
    """All workers of one run. `startup_timeout` and `heartbeat_timeout` are in seconds."""

    def __init__(
        self,
        links: CurveLinks,
        door: RegistrationServer,
        task_of: Callable[[WorkerId], SparkTask],
        workers: Iterable[WorkerId],
        heartbeat_timeout: float,
        startup_timeout: float,
        slots: str,
    ) -> None:
        self._links, self._door = links, door
        self._heartbeat_timeout, self._startup_timeout, self._slots = (
            heartbeat_timeout,
            startup_timeout,
            slots,
        )
        self._beat_every = min(1.0, heartbeat_timeout / 5)
        self.hands = {worker: WorkerHandle(worker, task_of(worker)) for worker in workers}
        self.newcomers = Newcomers(links, door, task_of, heartbeat_timeout, startup_timeout, slots)
        self._past = WorkerStats()
        self._gone: list[tuple[WorkerId, dict[str, int]]] = []
        self._causes: list[tuple[Rank, MeanderError]] = []
        self._deadline = time.monotonic() + startup_timeout
        self._beat_at = 0.0
        self._dismissed = False

    # -- what the loop asks

    @property
    def connected(self) -> bool:
        """Whether all links stand."""
        return self._door.open

    @property
    def registered(self) -> int:
        """How many have registered."""
        return len(self._door.guests)

    @property
    def working(self) -> bool:
        """Whether every worker has opened its ends and runs its loop."""
        return all(hand.working for hand in self.hands.values())

    @property
    def done(self) -> bool:
        """Whether every worker has done all there was to do."""
        return all(hand.done for hand in self.hands.values())

    def heard(self) -> WorkerStats:
        """How each worker stands, as of its last words."""
        return replace(self._past, working={hand.id: hand.beat for hand in self.hands.values()})

    def waits(self) -> dict[Hashable, Wait]:
        """Which workers are not at work yet, and what they need for that; of those without a slot
        only the first, as Spark takes a while to answer for each."""
        found: dict[Hashable, Wait] = {}
        for hand in (*self.hands.values(), *self.newcomers.hands):
            if not self._arrived(hand):
                wait = self._wait(hand)
                found[hand.id, wait.what] = wait
                if not hand.slot:
                    break
        return found

    def calls(self) -> list[LongCall]:
        """Of each worker whose loop is kept for longer than from one beat to the next, where."""
        now, found = time.monotonic(), []
        for worker, hand in self.hands.items():
            seconds = now - hand.heard
            if hand.working and seconds > 2 * self._beat_every:
                operator = self._door.guests[worker].operator
                found.append(LongCall(worker=worker, operator=operator, seconds=round(seconds, 1)))
        return sorted(found, key=lambda call: -call.seconds)

    def launch(self) -> None:
        """Submit the tasks of all who have not outlived another."""
        for hand in self.hands.values():
            if not hand.task.started:
                hand.task.start()

    def attend(self, report: Callable[[WorkerId, Report], None]) -> None:
        """Answer the door and the links, send heartbeats. Raises MeanderError when one is lost."""
        was_open = self._door.open
        self._door.poll()
        if self._door.open and not was_open:
            self._all_in()
        self._hear(report)
        if self._door.open:
            self.newcomers.attend(self.hands)
        self._let_go()
        now = time.monotonic()
        if self._door.open and now >= self._beat_at:
            self._beat_at = now + self._beat_every
            self._tell_all(WorkerHeartbeat())
        self._check(now)

    def enlist(self, worker: WorkerId) -> None:
        """A newcomer that is ready is a member from now on: the flow cannot do without it."""
        self.hands[worker] = self.newcomers.enlist(worker)

    def release(self, worker: WorkerId) -> None:
        """A member has nothing left to do in the flow: it goes once all have heard that."""
        self.hands[worker].leaves = True

    def gone(self) -> list[tuple[WorkerId, dict[str, int]]]:
        """Who has gone since the last call, and what each had counted."""
        taken, self._gone = self._gone, []
        return taken

    def cause(self, first: MeanderError) -> MeanderError:
        """The account of a failure that is closest to its root."""
        rank = Rank.LINK if isinstance(first, LinkBroken) else Rank.SAID
        return min([*self._causes, (rank, first)], key=lambda cause: cause[0])[1]

    def dismiss(self, within: float) -> None:
        """End all workers: those that answer in two steps, those that do not by Spark's hand."""
        self.stop(within)
        self.end()

    def end(self) -> None:
        """End all workers, once `stop` has been called."""
        self._end(self.hands.values())

    def part(self) -> Survivors:
        """As `end`, but for those that can go on."""
        stay = [hand for hand in self.hands.values() if _can_go_on(hand)] if self._door.open else []
        self._end([hand for hand in self.hands.values() if hand not in stay])
        return Survivors(self._links, stay)

    def stop(self, within: float) -> None:
        """Have all workers do nothing any more."""
        # A driver that was busy finds a link gone before it looks at leases.
        self._causes.extend((Rank.LINK, error) for error in self._silent(time.monotonic()))
        self._dismissed = True
        self._links.part()
        self._door.turn_all("this life of the flow is over")
        if self._door.open:
            self._tell_all(StopExecution())
        deadline = time.monotonic() + within
        while time.monotonic() < deadline and not all(map(_ended, self.hands.values())):
            self._links.wait(0.05)
            # Who is on its way to it would be waited for until its time is over.
            self._door.poll()
            self._hear(_ignore)
        # Behind the last look at who has ended, or one that nobody has noted is waited for no more.
        self._note_ends()

    # -- inside

    def _end(self, members: Iterable[WorkerHandle]) -> None:
        """End the processes of some members, and of all workers that are on their way in or out.

        The door has turned away each worker without a link, and a worker that left has its word.
        """
        ending = list(members)
        if self._door.open:
            for worker in (*(hand.id for hand in ending), *self.newcomers.linked):
                self._links.tell(worker, Exit().to_bytes())
        end([*ending, *self.newcomers.hands, *self.newcomers.past])
        self._note_ends()

    def _all_in(self) -> None:
        now = time.monotonic()
        self._deadline = now + self._startup_timeout
        for hand in self.hands.values():
            hand.heard = now

    def _hear(self, report: Callable[[WorkerId, Report], None]) -> None:
        for sender, data in self._links.told():
            hand = self.hands.get(sender) or self.newcomers.hand(sender)
            if hand is None:
                continue  # nobody waits for it any more
            hand.heard = time.monotonic()
            match _read(sender, data):
                case WorkerHeartbeat() as beat:
                    hand.working, hand.beat = True, beat
                case Log() as said:
                    line = LogLine(said.event, {"worker": sender} | said.fields, said.detail)
                    LineLogger(said.logger).log(said.level, line)
                case Report() as told:
                    report(sender, told)
                case Done(counters=counters):
                    hand.done = True
                    hand.beat = structs.replace(hand.beat, counters=counters)
                case PeerAdded() | Released() as news:
                    self._hear_of(sender, news)
                case Stopped():
                    hand.stopped = True
                case Failure() as failure:
                    self._failed(hand, failure)

    def _hear_of(self, sender: WorkerId, news: PeerAdded | Released) -> None:
        """A member says how it stands to one that comes or goes."""
        worker = WorkerId(news.worker)
        if isinstance(news, PeerAdded):
            self.newcomers.met(worker, sender)
        elif worker in self.hands:
            self.hands[worker].released.add(sender)

    def _let_go(self) -> None:
        """Say good-bye to those whose last word all have heard."""
        for worker, hand in list(self.hands.items()):
            if hand.leaves and hand.done and hand.released >= self.hands.keys() - {worker}:
                self._links.tell(worker, Exit().to_bytes())
                self._links.loosen(worker)
                self._door.dismiss(worker, "it has left")
                del self.hands[worker]
                self._past = self._past.without(hand.beat)
                self.newcomers.past.append(hand)
                self._gone.append((worker, hand.beat.counters))

    def _failed(self, hand: WorkerHandle, failure: Failure) -> None:
        if failure.trace:
            log.error(
                "worker_failed",
                failure.trace.rstrip(),
                worker=hand.id,
                reason=_said(hand, failure),
            )
        if hand.id not in self.hands:
            if not self._dismissed:
                self.newcomers.give_up(hand.id, _said(hand, failure), self.hands)
            return
        hand.told, hand.failed = True, failure.peer is None
        rank = Rank.SAID if failure.peer is None else Rank.PEER
        error = failure.error()
        if failure.concerns == member_name(hand.id) or rank is Rank.PEER:
            named = error
        else:
            kind = type(error)
            named = kind(f"{member_name(hand.id)}: {error.concerns}", error.cause, error.remedy)
        self._causes.append((rank, named))
        if not self._dismissed:
            raise named

    def _check(self, now: float) -> None:
        if self._note_ends():
            raise self._causes[-1][1]
        if not self.working and now > self._deadline:
            raise self._late()
        for error in self._silent(now):
            raise error

    def _silent(self, now: float) -> Iterator[MeanderError]:
        """Of each worker whose lease is over, that it is lost."""
        for hand in self.hands.values():
            silent = hand.working and now - hand.heard > self._heartbeat_timeout
            if silent and not self._door.lives(hand.id, self._heartbeat_timeout):
                yield self._lost(hand, self._silence(now - hand.heard))

    def _note_ends(self) -> bool:
        """Keep why tasks have ended that should not have; whether there are new ones."""
        found = False
        for hand in self.hands.values():
            ended = hand.task.ended
            if ended is None or hand.told or hand.stopped:
                continue
            hand.told = found = True
            error = ended.error or MeanderError(member_name(hand.id), "it ended by itself")
            setup = isinstance(error, SetupError)
            silent = time.monotonic() - max(hand.heard, self._door.alive(hand.id))
            # A worker that hears nothing for so long, as it listens no more, ends itself.
            own = hand.working and silent > self._heartbeat_timeout * NEARLY
            cause = self._silence(silent) if own else error.cause
            named = error if setup else self._lost(hand, cause)
            self._causes.append((Rank.SAID if setup else Rank.SPARK, named))
        return found

    def _silence(self, seconds: float) -> str:
        return (
            f"nothing was heard of it for {seconds:.0f} s: it is stopped, or its machine overloaded"
        )

    def _lost(self, hand: WorkerHandle, cause: str) -> MeanderError:
        guest = self._door.guests.get(hand.id)
        where = f" (process {guest.register.pid} on {guest.register.host})" if guest else ""
        return lost(f"{member_name(hand.id)}{where}", cause)

    def _late(self) -> MeanderError:
        waited = f"{self._startup_timeout:g} s"
        late = [hand for hand in self.hands.values() if not self._arrived(hand)]
        name = member_name(late[0].id)
        if self._door.open:
            return MeanderError(name, f"it registered, but did not begin its work within {waited}")
        without = next((hand for hand in late if not hand.task.has_slot()), None)
        if without is None:
            return MeanderError(name, f"it was started, but did not register within {waited}")
        return SetupError(
            member_name(without.id),
            f"Spark had no free slot for it within {waited}: {self._slots}",
            "give a master with more slots (--master 'local[4]'), or fewer --workers",
        )

    def _wait(self, hand: WorkerHandle) -> Wait:
        fields = {"worker": hand.id, "timeout_s": self._startup_timeout}
        if self._inside(hand):
            hand.slot = True
            return Wait("worker_ready", "the worker has opened its topics", fields)
        hand.slot = hand.slot or hand.task.has_slot()
        if not hand.slot:
            until = f"Spark has planned the job and found a free slot: {self._slots}"
            return Wait("spark_slot", until, fields)
        return Wait("registration", "its process starts and reaches the driver", fields)

    def _arrived(self, hand: WorkerHandle) -> bool:
        return hand.working if self._inside(hand) else hand.id in self._door.guests

    def _inside(self, hand: WorkerHandle) -> bool:
        """Whether its links stand."""
        newcomer = self.newcomers.hand(hand.id) is not None
        return hand.id in self.newcomers.linked if newcomer else self._door.open

    def _tell_all(self, message: ToWorker) -> None:
        for worker in (*self.hands, *self.newcomers.linked):
            self._links.tell(worker, message.to_bytes())


def _read(sender: WorkerId, data: bytes) -> FromWorker:
    try:
        return FROM_WORKER.read(data)
    except ValueError as error:
        raise LinkBroken(sender, "it said what is not understood here") from error


def _said(hand: WorkerHandle, failure: Failure) -> str:
    """A failure in a sentence that names whose it is."""
    name, said = member_name(hand.id), str(failure.error())
    return said if failure.concerns == name else f"{name}: {said}"


def _can_go_on(hand: WorkerHandle) -> bool:
    return hand.stopped and not hand.failed and hand.task.ended is None


def _ended(hand: WorkerHandle) -> bool:
    return hand.stopped or hand.task.ended is not None


def _ignore(_: WorkerId, __: Report) -> None:
    """What still comes in while all are dismissed is of no use to anybody."""
