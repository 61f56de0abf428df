"""The coordinator's part in checkpoints: when one begins, and that it exists.

Guarantees that a checkpoint's record is written last, once each worker has said that its part is
durable, and that one is taken at a time, while nobody joins or leaves: the next begins once all is
out that this one has of outboxes. One that takes too long is given up, and nothing of it stays.
Invariant: the word to freeze goes by the links of progress, behind the news of who takes part.
Cost: a few frames per worker and checkpoint.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from meander.dataflow.api.checkpointing import Policy
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.command import Refused
from meander.dataflow.control.reports import (
    Aligned,
    OutboxesSent,
    OutboxFull,
    SnapshotFailed,
    SnapshotStored,
    SourcesPaused,
)
from meander.dataflow.exactly_once.marker_retention import MarkerRetention
from meander.dataflow.interfaces import Clock, Links
from meander.dataflow.migration.events import Event
from meander.dataflow.progress.capability import Capability
from meander.dataflow.records.loop_times import outer
from meander.dataflow.wire import (
    CancelFrame,
    CheckpointFrame,
    CompleteFrame,
    PauseFrame,
    TriggerFrame,
    encode_cut,
)
from meander.schemas.errors import MeanderError
from meander.state.checkpoint.checkpoint import BEGINNING, Checkpoint, Cut
from meander.state.keys.ids import Bin, ExecutionId, WorkerId, member_name
from meander.state.layers.topic import RecordLocation
from meander.state.times.antichain import Antichain

NEVER = 1 << 62
FAILED_PAUSE = 1.0
"""Seconds from one that was given up to the next that nobody asks for, at least."""
Write = Callable[[Checkpoint], Callable[[], Checkpoint | None]]
"""Begins to write a checkpoint; returns it, with its parts, once it is durable."""
ForgetCheckpoint = Callable[
    [Sequence[RecordLocation], Sequence[RecordLocation], Collection[int]], None
]
"""Records in flight may go, and chunks of layers, that no checkpoint refers to any more, and the
record of each checkpoint that is older than those of these numbers."""


_Progress = SourcesPaused | Aligned | SnapshotFailed | OutboxesSent
CheckpointReport = _Progress | SnapshotStored | OutboxFull
"""What a worker reports of checkpoints."""


class _Asked(NamedTuple):
    """One that is to be begun."""

    id: str
    """The command's; '' where none asked for it."""
    policy: Policy
    savepoint: str = ""
    """Under which name it is kept; '' where it is retired by itself."""


@dataclass(slots=True)
class _Taking:
    """One under way."""

    number: int
    asked: _Asked
    members: tuple[WorkerId, ...]
    began: float
    demand: Capability | None = None
    """Held until all is frozen, so that idle sources let pass what is waited for."""
    furthest: dict[WorkerId, int] = field(default_factory=dict)
    """How far the sources of each worker have sent, where they hold."""
    aligned: set[WorkerId] = field(default_factory=set)
    """The workers with as little in flight as may be."""
    whole: Checkpoint | None = None
    """What the coordinator itself contributes; None before the word to freeze."""
    frozen: float = 0.0
    parts: dict[WorkerId, Checkpoint] = field(default_factory=dict)
    slices: defaultdict[WorkerId, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """Of parts that have not arrived as a whole."""
    written: Callable[[], Checkpoint | None] | None = None
    """What is durable, once it is being written."""
    passed: int = 0
    """All results of before had come to their sinks before anybody froze."""
    held: dict[int, int] = field(default_factory=dict)
    """Bins of which outboxes do not have all results, and the least time from which on."""
    unsent: set[WorkerId] | None = None
    """Once it exists, the workers of which not all is out that it has of their outboxes."""


class CheckpointCoordinator:
    """Those of one life of a flow."""

    def __init__(
        self,
        plan: Plan,
        execution: ExecutionId,
        before: Checkpoint | None,
        links: Links,
        clock: Clock,
        write: Write,
        forget: ForgetCheckpoint,
        trimming: MarkerRetention,
        savepoints: Sequence[Checkpoint] = (),
        last: int = 0,
        earlier: Sequence[Checkpoint] = (),
    ) -> None:
        """`last` is the greatest number that one has, where that is not `before`; `earlier` are
        those before that, the oldest first."""
        self.number = max([last, *(one.number for one in savepoints)])
        """The last that was begun, in this life or before."""
        if before is not None:
            self.number = max(self.number, before.number)
        self.frozen = 0 if before is None else before.number
        """The last for which this life's workers have been told to freeze, or with which they have
        begun."""
        self.sent = 0
        """The last of this life that exists, and of which all is out that was in outboxes or was to
        come to them."""
        self._kept = deque([] if before is None else [*earlier, before])
        """The newest: up to the one with which this life has begun, and its own."""
        self._savepoints = [*savepoints]
        """Those that are kept besides, of any life."""
        self._forget, self._trimming = forget, trimming
        self._plan, self._execution = plan, execution
        self._links, self._clock, self._write = links, clock, write
        self._how = plan.flow.checkpoints
        self._taking: _Taking | None = None
        self.needed = plan.flow.delivery == "exactly_once" and (
            before is None or before.cut == BEGINNING
        )
        """Whether one is needed at once: before the first nothing leaves exactly once."""
        self._asked: _Asked | None = None
        """What a command wants begun."""
        self._due = self._in_an_interval()
        self._earliest = clock.monotonic()
        self._full = set[WorkerId]()
        """Workers with an outbox that gets room only by another."""
        self._failed = 0
        """How many in a row have been given up."""
        self._given_up = set[int]()
        self._events: list[Event] = []

    def expect(self, savepoint: str) -> None:
        """Raises Refused where another command waits for one to begin, and for a name that one
        has."""
        if self._asked is not None:
            raise Refused("a checkpoint is being taken, or about to be: wait for its end")
        names = {one.savepoint for one in self._savepoints}
        if self._taking is not None:
            names.add(self._taking.asked.savepoint)
        if savepoint and savepoint in names:
            raise Refused(
                f"there is a savepoint {savepoint!r}: take another name, or drop it once the flow"
                " has stopped"
            )

    def ask(self, id: str, policy: Policy | None, savepoint: str) -> None:
        """A command asks for one; with no policy of its own it has the flow's."""
        self._asked = _Asked(id, policy or self._how.policy, savepoint)

    def wanted(self, going_on: bool, awaited: bool) -> bool:
        """Whether one is to be begun: it has been asked for, is awaited or makes room, or it is
        time for another in a flow that takes them by itself and goes on."""
        if self.under_way:
            return False
        now = self._clock.monotonic()
        due = self._due is not None and now >= self._due
        due = self.needed or awaited or bool(self._full) or (due and going_on)
        return self._asked is not None or (due and now >= self._earliest)

    @property
    def pending(self) -> bool:
        """Whether one is being taken, or has been asked for."""
        return self.under_way or self.needed or self._asked is not None

    @property
    def under_way(self) -> bool:
        """Whether one is being taken."""
        return self._taking is not None

    def begin(self, members: tuple[WorkerId, ...], demand: Callable[[], Capability | None]) -> None:
        """Begin with what is wanted; where sources are to hold, idle ones meet a `demand`."""
        assert self._taking is None, "one at a time"
        asked = self._asked or _Asked("", self._how.policy)
        if self.needed:
            # Nothing leaves before the first, so nothing that is in flight would settle.
            asked = asked._replace(policy="unaligned")
        self._asked, self._due = None, self._in_an_interval()
        self.number += 1
        now = self._clock.monotonic()
        self._taking = _Taking(self.number, asked, members, now)
        if self._how.room(asked.policy) is not None:
            self._taking.demand = demand()
            self._say(PauseFrame(self.number, None, 0))

    @property
    def aligned(self) -> bool:
        """Whether all members are to freeze now."""
        taking = self._taking
        if taking is None or taking.whole is not None:
            return False
        # Where an outbox is full nothing settles before a checkpoint.
        waits = self._how.room(taking.asked.policy) is not None and not self._full
        return not waits or taking.aligned.issuperset(taking.members)

    def freeze(self, cut: Cut, out: Iterable[Antichain]) -> None:
        """All members freeze; `cut` is what is known here, and what the frontiers `out` have passed
        has left the flow."""
        taking = self._taking
        assert taking is not None, "nothing is being taken"
        self.frozen = taking.number
        out = [*out]
        self._trimming.begins(taking.number, out)
        taking.passed = min((outer(one) for frontier in out for one in frontier), default=NEVER)
        self._let_go(taking)
        taking.frozen = self._clock.monotonic()
        taking.whole = Checkpoint(
            taking.number, self._execution, self._plan.flow.space, self._clock.now_ms(), (), cut,
            taking.asked.savepoint, taking.asked.policy, _ms(taking.frozen - taking.began),
        )  # fmt: skip
        self._say(TriggerFrame(taking.number, taking.members, tuple(sorted(self._numbers))))

    def greet(self, worker: WorkerId) -> None:
        """A worker joins: it is told of the newest that there is to come back to."""
        if self._kept and self._kept[-1].cut != BEGINNING:
            self._links.send(worker, encode_cut(CompleteFrame(self._kept[-1].number)))

    def report(self, worker: WorkerId, report: CheckpointReport) -> None:
        """Act on a worker's report. Raises MeanderError for a part that no checkpoint wants."""
        match report:
            case OutboxFull():
                self._full.add(worker)
            case SnapshotStored():
                self._take_slice(worker, report)
            case _ if self._taking is not None and self._taking.number == report.checkpoint:
                self._hear(self._taking, worker, report)

    def _hear(self, taking: _Taking, worker: WorkerId, report: _Progress) -> None:
        """Act on a report about the checkpoint that is being taken."""
        match report:
            case SourcesPaused(furthest=furthest):
                taking.furthest[worker] = furthest
                self._hold(taking)
            case Aligned():
                taking.aligned.add(worker)
            case SnapshotFailed(reason=reason):
                self._give_up(taking, reason)
            case OutboxesSent() if taking.unsent is not None:
                taking.unsent.discard(worker)
                self._full.discard(worker)

    def _take_slice(self, worker: WorkerId, report: SnapshotStored) -> None:
        taking, number = self._taking, report.checkpoint
        if number in self._given_up:
            return
        if taking is None or number != taking.number or worker in taking.parts:
            raise MeanderError(
                member_name(worker), f"it has written checkpoint {number}, which nobody takes"
            )
        taking.slices[worker].append(report.slice)
        for bin, time in report.held:
            taking.held[bin] = min(time, taking.held.get(bin, NEVER))
        if report.last:
            part = b"".join(taking.slices.pop(worker))
            taking.parts[worker] = Checkpoint.from_bytes(part)

    def step(self, time: int) -> list[Event]:
        """See how far it has come; what has happened. Nobody has come to a later `time`."""
        self._trimming.look(time)
        if self._taking is not None:
            self._go_on(self._taking)
        events, self._events = self._events, []
        return events

    def _go_on(self, taking: _Taking) -> None:
        now = self._clock.monotonic()
        if taking.written is None and len(taking.parts) == len(taking.members):
            taking.whole = self._joined(taking)
            taking.written = self._write(taking.whole)
        if taking.unsent is not None:
            self._finish(taking)
        elif taking.written is not None:
            if (durable := taking.written()) is not None:
                taking.whole = durable
                self._complete(taking)
        elif now >= taking.began + self._how.timeout:
            self._give_up(taking, self._late(taking))

    def _late(self, taking: _Taking) -> str:
        """What has kept one for too long, and what helps."""
        within = f"it was not done within {self._how.timeout:g} s"
        if taking.whole is None:
            return f"{within}, as too much stayed in flight; policy unaligned waits for none of it"
        if left := [member_name(one) for one in taking.members if one not in taking.parts]:
            return (
                f"{within}, as {', '.join(left)} had not written all; a longer timeout may do, or"
                " shorter calls of the flow's functions"
            )
        return f"{within}, as its record was not durable yet; see whether Kafka keeps up"

    def _complete(self, taking: _Taking) -> None:
        assert taking.whole is not None, "it has been written"
        self.needed, self._failed = False, 0
        self._kept.append(taking.whole)
        held = tuple(taking.held.items())
        self._say(CompleteFrame(taking.number, taking.passed, held), taking.members)
        if taking.whole.savepoint:
            self._savepoints.append(taking.whole)
        while len(self._kept) > self._how.retained:
            self._retire(self._kept.popleft())
        self._trimming.kept(min(self._numbers))
        taking.unsent = {*taking.members} if self._plan.outboxes else set()
        self._finish(taking)

    def _finish(self, taking: _Taking) -> None:
        """Once all is out that it has of outboxes."""
        assert taking.whole is not None, "it exists"
        if not taking.unsent:
            self._over()
            if not taking.held:
                self.sent = taking.number
            self._events.append(self._taken(taking, taking.whole))

    def _give_up(self, taking: _Taking, reason: str) -> None:
        """Have all go on as if it had not been begun. Raises MeanderError where that has been too
        often."""
        self._over(FAILED_PAUSE)
        self._let_go(taking)
        self._given_up.add(taking.number)
        self._failed += 1
        self._say(CancelFrame(taking.number), taking.members)
        self._events.append({
            "type": "checkpoint_failed", "id": taking.asked.id, "number": taking.number,
            "reason": reason,
        })  # fmt: skip
        if self._how.tolerable_failures is not None and self._failed > self._how.tolerable_failures:
            raise MeanderError(
                f"flow {self._plan.flow.name!r}, checkpoint {taking.number}",
                f"it is the {self._failed}. in a row that was given up: {reason}",
                "give its Checkpointing a longer timeout, or more tolerable_failures",
            )

    def _over(self, pause: float = 0.0) -> None:
        self._taking = None
        self._earliest = self._clock.monotonic() + max(self._how.min_pause, pause)

    def _hold(self, taking: _Taking) -> None:
        """Once all have said how far they have sent, nobody sends anything later."""
        if taking.furthest.keys() >= set(taking.members):
            most = self._how.room(taking.asked.policy) or 0
            limit = max(taking.furthest.values())
            self._say(PauseFrame(taking.number, limit, most // len(taking.members)))

    def _let_go(self, taking: _Taking) -> None:
        if taking.demand is not None:
            taking.demand.drop()
            taking.demand = None

    def _say(self, word: CheckpointFrame, members: Iterable[WorkerId] | None = None) -> None:
        if members is None:
            assert self._taking is not None, "nothing is being taken"
            members = self._taking.members
        for worker in members:
            self._links.send(worker, encode_cut(word))

    @property
    def _numbers(self) -> set[int]:
        """Of all that are kept."""
        return {one.number for one in (*self._kept, *self._savepoints)}

    def _in_an_interval(self) -> float | None:
        interval = self._how.interval
        return None if interval is None else self._clock.monotonic() + interval

    def _retire(self, old: Checkpoint) -> None:
        """What was in flight then and is in no other may go. So may layers of earlier lives: what
        this one has not begun with has no owner any more."""
        if old.number in self._numbers:
            return
        kept = *self._kept, *self._savepoints
        flying = {place for one in kept for place in one.places}
        chunks = list[RecordLocation]()
        if old.execution != self._execution:
            named = {place for one in kept for place in one.chunks}
            chunks = [place for place in old.chunks if place not in named]
        gone = [place for place in old.places if place not in flying]
        self._forget(gone, chunks, self._numbers)

    def _joined(self, taking: _Taking) -> Checkpoint:
        assert taking.whole is not None, "it has been frozen"
        whole = Checkpoint.joined(taking.whole, [taking.parts[one] for one in taking.members])
        whole = replace(whole, write_ms=_ms(self._clock.monotonic() - taking.frozen))
        seen = set[tuple[str, Bin]]()
        for manifest in whole.manifests:
            place = manifest.operator, manifest.bin
            if place in seen:
                raise MeanderError(
                    f"checkpoint {whole.number}",
                    f"bin {manifest.bin} of operator {manifest.operator!r} is in it twice (I2)",
                )
            seen.add(place)
        return whole

    def _taken(self, taking: _Taking, whole: Checkpoint) -> Event:
        return {
            "type": "checkpointed",
            "id": taking.asked.id,
            "number": whole.number,
            "savepoint": whole.savepoint,
            "policy": whole.policy,
            "ms": _ms(self._clock.monotonic() - taking.began),
            "alignment_ms": whole.alignment_ms,
            "write_ms": whole.write_ms,
            "state_bytes": whole.state_bytes,
            "in_flight_bytes": whole.in_flight_bytes,
            "in_flight": whole.in_flight,
        }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
