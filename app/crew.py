"""The workers of a flow as the driver sees them: launched, registered, heard of, gone.

Guarantees that a worker which ends, breaks its link or is silent for `lease` seconds is noticed,
and that of all that is then reported the first cause is named: what a worker says of itself, else
what Spark says of its task, else the broken link, else what its peers say. Nothing here blocks, but
for `dismiss`, which is bounded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from app.heard import Heard
from app.launcher import SparkTask
from app.messages import (
    FROM_WORKER,
    Beat,
    Bye,
    Done,
    Failure,
    FromWorker,
    Log,
    Report,
    Stop,
    Stopped,
    ToWorker,
)
from app.registry import Door
from connectors.links import CurveLinks, LinkBroken, member_name
from dataflow.lost import lost
from dataflow.waits import Wait
from schemas.errors import MeanderError, SetupError
from state.ids import WorkerId

log = logging.getLogger(__name__)

LEAVE = 0.5
"""Seconds that a task gets to end after `bye`, and again after Spark was told to kill it."""
NEARLY = 0.8
"""Of the lease: both ends of a link count it from about the same moment."""


class Rank(IntEnum):
    """How close to the root of a failure an account of it is."""

    SAID = 0
    SPARK = 1
    LINK = 2
    PEER = 3


@dataclass(slots=True)
class Hand:
    """One worker."""

    id: WorkerId
    task: SparkTask
    heard: float = 0.0
    working: bool = False
    done: bool = False
    stopped: bool = False
    told: bool = False
    slot: bool = False
    """Whether Spark is known to have found an executor for it."""
    beat: Beat = field(default_factory=Beat)
    """Its last."""


class Crew:
    """All workers of one run. `patience` and `lease` are in seconds."""

    def __init__(
        self,
        links: CurveLinks,
        door: Door,
        tasks: Mapping[WorkerId, SparkTask],
        lease: float,
        patience: float,
        slots: str,
    ) -> None:
        self._links, self._door = links, door
        self._lease, self._patience, self._slots = lease, patience, slots
        self.hands = {worker: Hand(worker, task) for worker, task in tasks.items()}
        self._causes: list[tuple[Rank, MeanderError]] = []
        self._deadline = time.monotonic() + patience
        self._beat_at = 0.0
        self._dismissed = False

    # -- what the loop asks

    @property
    def connected(self) -> bool:
        """Whether all links stand."""
        return self._door.open

    @property
    def up(self) -> int:
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

    def heard(self) -> Heard:
        """How each worker stands, as of its last words."""
        return Heard({hand.id: hand.beat for hand in self.hands.values()})

    def waits(self) -> dict[Hashable, Wait]:
        """Which workers are not at work yet, and what they need for that; of those without a slot
        only the first, as Spark takes a while to answer for each."""
        found: dict[Hashable, Wait] = {}
        for hand in self.hands.values():
            if not self._arrived(hand):
                wait = self._wait(hand)
                found[wait.what] = wait
                if not hand.slot:
                    break
        return found

    def launch(self) -> None:
        """Submit all tasks."""
        for hand in self.hands.values():
            hand.task.start()

    def attend(self, report: Callable[[WorkerId, Report], None]) -> None:
        """Answer the door and the links, send heartbeats. Raises MeanderError when one is lost."""
        was_open = self._door.open
        self._door.poll()
        if self._door.open and not was_open:
            self._all_in()
        self._hear(report)
        now = time.monotonic()
        if self._door.open and now >= self._beat_at:
            self._beat_at = now + min(1.0, self._lease / 5)
            self._tell_all(Beat())
        self._check(now)

    def cause(self, first: MeanderError) -> MeanderError:
        """The account of a failure that is closest to its root."""
        rank = Rank.LINK if isinstance(first, LinkBroken) else Rank.SAID
        return min([*self._causes, (rank, first)], key=lambda cause: cause[0])[1]

    def dismiss(self, within: float) -> None:
        """End all workers: those that answer in two steps, those that do not by Spark's hand."""
        self._dismissed = True
        self._links.part()
        self._door.turn_all("the flow has been stopped")
        if self._door.open:
            self._tell_all(Stop())
        deadline = time.monotonic() + within
        while time.monotonic() < deadline and not all(map(_ended, self.hands.values())):
            self._links.wait(0.05)
            self._hear(_ignore)
            self._note_ends()
        if self._door.open:
            self._tell_all(Bye())
        deadline = time.monotonic() + LEAVE
        left = [h for h in self.hands.values() if not h.task.join(deadline - time.monotonic())]
        for hand in left:
            log.debug("%s does not end by itself: Spark kills its task", member_name(hand.id))
            hand.task.cancel()
        deadline = time.monotonic() + LEAVE
        for hand in left:
            hand.task.join(deadline - time.monotonic())
        self._note_ends()

    # -- inside

    def _all_in(self) -> None:
        now = time.monotonic()
        self._deadline = now + self._patience
        for worker, guest in self._door.guests.items():
            self.hands[worker].heard = now
            at = guest.register
            log.info("%s is up: process %d on %s", member_name(worker), at.pid, at.host)

    def _hear(self, report: Callable[[WorkerId, Report], None]) -> None:
        for sender, data in self._links.told():
            hand = self.hands[sender]
            hand.heard = time.monotonic()
            match _read(sender, data):
                case Beat() as beat:
                    hand.working, hand.beat = True, beat
                case Log(logger=logger, level=level, text=text):
                    logging.getLogger(logger).log(level, "%s: %s", member_name(sender), text)
                case Report() as told:
                    report(sender, told)
                case Done(counters=counters):
                    hand.done = True
                    hand.beat = hand.beat.model_copy(update={"counters": counters})
                case Stopped():
                    hand.stopped = True
                case Failure() as failure:
                    self._failed(hand, failure)

    def _failed(self, hand: Hand, failure: Failure) -> None:
        if failure.trace:
            log.error("%s failed:\n%s", member_name(hand.id), failure.trace)
        hand.told = True
        rank = Rank.SAID if failure.lost is None else Rank.PEER
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
        for hand in self.hands.values():
            if hand.working and now - hand.heard > self._lease:
                raise self._lost(hand, self._silence(now - hand.heard))

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
            silent = time.monotonic() - hand.heard
            # A worker that hears nothing for so long, as it listens no more, ends itself.
            own = hand.working and silent > self._lease * NEARLY
            cause = self._silence(silent) if own else error.cause
            named = error if setup else self._lost(hand, cause)
            self._causes.append((Rank.SAID if setup else Rank.SPARK, named))
        return found

    def _silence(self, seconds: float) -> str:
        return (
            f"nothing was heard of it for {seconds:.0f} s: it is overloaded, stopped, or busy in a"
            " function of the flow"
        )

    def _lost(self, hand: Hand, cause: str) -> MeanderError:
        guest = self._door.guests.get(hand.id)
        where = f" (process {guest.register.pid} on {guest.register.host})" if guest else ""
        return lost(f"{member_name(hand.id)}{where}", cause)

    def _late(self) -> MeanderError:
        waited = f"{self._patience:g} s"
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

    def _wait(self, hand: Hand) -> Wait:
        name, most = member_name(hand.id), f"it has {self._patience:g} s for that"
        if self._door.open:
            hand.slot = True
            return Wait(f"{name} to open what it reads and writes", f"Kafka answers it; {most}")
        hand.slot = hand.slot or hand.task.has_slot()
        if not hand.slot:
            when = f"Spark has planned its job and found it a free slot ({self._slots}); {most}"
            return Wait(f"Spark to start the task of {name}", when)
        return Wait(f"{name} to register", f"its process starts and comes to the driver; {most}")

    def _arrived(self, hand: Hand) -> bool:
        return hand.working if self._door.open else hand.id in self._door.guests

    def _tell_all(self, message: ToWorker) -> None:
        for worker in self.hands:
            self._links.tell(worker, message.to_bytes())


def _read(sender: WorkerId, data: bytes) -> FromWorker:
    try:
        return FROM_WORKER.read(data)
    except ValueError as error:
        raise LinkBroken(sender, "it said what is not understood here") from error


def _ended(hand: Hand) -> bool:
    return hand.stopped or hand.task.ended is not None


def _ignore(_: WorkerId, __: Report) -> None:
    """What still comes in while all are dismissed is of no use to anybody."""
