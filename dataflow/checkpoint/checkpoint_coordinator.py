"""The checkpoint coordinator: it starts checkpoints, collects their parts, and completes them.

Guarantees that the record of a checkpoint is written last, once each worker has reported that its
part is durable. Guarantees that one checkpoint is under way at a time, and only while no worker
joins or leaves. The next one starts once all outbox contents of this one have been committed. A
checkpoint that takes too long is cancelled, and nothing of it stays. Invariant: the trigger uses
the links of progress, behind the news about members. Cost: a few frames per worker and checkpoint.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from meander.dataflow.api.checkpointing import Policy
from meander.dataflow.api.plan import Plan
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
from meander.dataflow.progress.capability import Capability
from meander.dataflow.records.loop_times import outer_time
from meander.dataflow.wire import (
    CancelFrame,
    CheckpointFrame,
    CompleteFrame,
    PauseFrame,
    TriggerFrame,
    encode_checkpoint,
)
from meander.schemas.control import CommandError
from meander.schemas.errors import MeanderError
from meander.schemas.status import Checkpointed, CheckpointFailed
from meander.state.checkpoint.checkpoint import INITIAL_CUT, Checkpoint, Cut
from meander.state.keys.ids import Bin, ExecutionId, WorkerId, member_name
from meander.state.layers.topic import RecordLocation
from meander.state.times.antichain import Antichain

NEVER = 1 << 62
FAILED_PAUSE = 1.0
"""The least seconds between a cancelled checkpoint and the next unrequested one."""
Write = Callable[[Checkpoint], Callable[[], Checkpoint | None]]
"""Starts to write a checkpoint; the returned function gives it, with its parts, once it is
durable."""
ForgetCheckpoint = Callable[
    [Sequence[RecordLocation], Sequence[RecordLocation], Collection[int]], None
]
"""Deletes in-flight records and layer chunks that no checkpoint references, and the record of each
checkpoint that is older than those of these numbers."""


_Progress = SourcesPaused | Aligned | SnapshotFailed | OutboxesSent
CheckpointReport = _Progress | SnapshotStored | OutboxFull
"""A worker's report about checkpoints."""


class CheckpointRequest(NamedTuple):
    """A request for a checkpoint."""

    id: str
    """The id of the command; '' without a command."""
    policy: Policy
    savepoint: str = ""
    """The name of the savepoint; '' for an ordinary checkpoint."""


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint under way."""

    number: int
    request: CheckpointRequest
    members: tuple[WorkerId, ...]
    started_at: float
    advance_request: Capability | None = None
    """Held until all workers have frozen, so idle sources let the awaited times pass."""
    furthest: dict[WorkerId, int] = field(default_factory=dict)
    """How far the paused sources of each worker have sent."""
    aligned: set[WorkerId] = field(default_factory=set)
    """The workers with few enough bytes in flight."""
    whole: Checkpoint | None = None
    """The coordinator's own part; None before the trigger."""
    frozen_at: float = 0.0
    parts: dict[WorkerId, Checkpoint] = field(default_factory=dict)
    slices: defaultdict[WorkerId, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """The slices of parts that have not arrived as a whole."""
    written: Callable[[], Checkpoint | None] | None = None
    """Returns the durable checkpoint; None before it is being written."""
    passed: int = 0
    """All results before this time had reached their sinks before any worker froze."""
    held_back: dict[int, int] = field(default_factory=dict)
    """The bins whose results outboxes hold back, and the least time from which on."""
    unsent: set[WorkerId] | None = None
    """The workers whose outbox contents of this checkpoint are not all committed; None before it
    exists."""


class CheckpointCoordinator:
    """A coordinator of all checkpoints of one execution."""

    def __init__(
        self,
        plan: Plan,
        execution: ExecutionId,
        before: Checkpoint | None,
        links: Links,
        clock: Clock,
        write: Write,
        forget: ForgetCheckpoint,
        marker_retention: MarkerRetention,
        savepoints: Sequence[Checkpoint] = (),
        last: int = 0,
        previous: Sequence[Checkpoint] = (),
    ) -> None:
        """`last` is the greatest number of a checkpoint, which may be greater than that of
        `before`.

        `previous` are the checkpoints before `before`, the oldest first.
        """
        self.number = max([last, *(one.number for one in savepoints)])
        """The number of the last checkpoint that was started, in this or an earlier execution."""
        if before is not None:
            self.number = max(self.number, before.number)
        self.frozen = 0 if before is None else before.number
        """The last checkpoint that was triggered in this execution, or from which it started."""
        self.sent = 0
        """The last checkpoint of this execution whose outbox contents are all committed."""
        self._retained = deque([] if before is None else [*previous, before])
        """The newest checkpoints: up to the one from which this execution started, and its own."""
        self._savepoints = [*savepoints]
        """The savepoints of all executions."""
        self._forget, self._marker_retention = forget, marker_retention
        self._plan, self._execution = plan, execution
        self._links, self._clock, self._write = links, clock, write
        self._options = plan.flow.checkpoints
        self._current: PendingCheckpoint | None = None
        self.needed = plan.flow.delivery == "exactly_once" and (
            before is None or before.cut == INITIAL_CUT
        )
        """Whether a checkpoint is needed at once: exactly-once results leave only after the
        first."""
        self._requested: CheckpointRequest | None = None
        """The request of a command that has not started."""
        self._due = self._next_due()
        self._earliest = clock.monotonic()
        self._full = set[WorkerId]()
        """The workers with an outbox that only a checkpoint can empty."""
        self._failed = 0
        """The number of consecutive cancelled checkpoints."""
        self._given_up = set[int]()
        self._events: list[Checkpointed | CheckpointFailed] = []

    def expect(self, savepoint: str) -> None:
        """Check a request. Raise `CommandError` while another one waits, or for the name of a
        savepoint."""
        if self._requested is not None:
            raise CommandError("another checkpoint is under way or requested: wait for its end")
        names = {one.savepoint for one in self._savepoints}
        if self._current is not None:
            names.add(self._current.request.savepoint)
        if savepoint and savepoint in names:
            raise CommandError(
                f"savepoint {savepoint!r} exists: choose another name, or drop it once the flow"
                " has stopped"
            )

    def request(self, id: str, policy: Policy | None, savepoint: str) -> None:
        """Request a checkpoint for a command; without a policy it has the flow's policy."""
        self._requested = CheckpointRequest(id, policy or self._options.policy, savepoint)

    def wanted(self, going_on: bool, awaited: bool) -> bool:
        """Return whether a checkpoint should start.

        A command has requested it, it is awaited, an outbox is full, or its interval is over in a
        flow that continues.
        """
        if self.under_way:
            return False
        now = self._clock.monotonic()
        due = self._due is not None and now >= self._due
        due = self.needed or awaited or bool(self._full) or (due and going_on)
        return self._requested is not None or (due and now >= self._earliest)

    @property
    def pending(self) -> bool:
        """Whether a checkpoint is under way or requested."""
        return self.under_way or self.needed or self._requested is not None

    @property
    def under_way(self) -> bool:
        """Whether a checkpoint is under way."""
        return self._current is not None

    def start(
        self, members: tuple[WorkerId, ...], request_advance: Callable[[], Capability | None]
    ) -> None:
        """Start the wanted checkpoint; where sources pause, request idle ones to advance."""
        assert self._current is None, "one at a time"
        request = self._requested or CheckpointRequest("", self._options.policy)
        if self.needed:
            # No result leaves before the first checkpoint, so an alignment would never end.
            request = request._replace(policy="unaligned")
        self._requested, self._due = None, self._next_due()
        self.number += 1
        now = self._clock.monotonic()
        self._current = PendingCheckpoint(self.number, request, members, now)
        if self._options.max_bytes_at_freeze(request.policy) is not None:
            self._current.advance_request = request_advance()
            self._send(PauseFrame(self.number, None, 0))

    @property
    def aligned(self) -> bool:
        """Whether all members can freeze now."""
        pending = self._current
        if pending is None or pending.whole is not None:
            return False
        # A full outbox empties only after a checkpoint, so no alignment would end before.
        aligns = (
            self._options.max_bytes_at_freeze(pending.request.policy) is not None and not self._full
        )
        return not aligns or pending.aligned.issuperset(pending.members)

    def freeze(self, cut: Cut, sinks: Iterable[Antichain]) -> None:
        """Trigger the snapshots of all members.

        `cut` is the coordinator's part; all that the frontiers of the `sinks` have passed has left
        the flow.
        """
        pending = self._current
        assert pending is not None, "nothing is being taken"
        self.frozen = pending.number
        sinks = [*sinks]
        self._marker_retention.start_checkpoint(pending.number, sinks)
        pending.passed = min(
            (outer_time(one) for frontier in sinks for one in frontier), default=NEVER
        )
        self._drop_advance_request(pending)
        pending.frozen_at = self._clock.monotonic()
        pending.whole = Checkpoint(
            pending.number, self._execution, self._plan.flow.space, self._clock.now_ms(), (), cut,
            pending.request.savepoint, pending.request.policy,
            _ms(pending.frozen_at - pending.started_at),
        )  # fmt: skip
        self._send(TriggerFrame(pending.number, pending.members, tuple(sorted(self._numbers))))

    def welcome(self, worker: WorkerId) -> None:
        """Tell a joining worker the newest checkpoint."""
        if self._retained and self._retained[-1].cut != INITIAL_CUT:
            self._links.send(worker, encode_checkpoint(CompleteFrame(self._retained[-1].number)))

    def report(self, worker: WorkerId, report: CheckpointReport) -> None:
        """Handle a worker's report. Raise `MeanderError` for a part of another checkpoint."""
        match report:
            case OutboxFull():
                self._full.add(worker)
            case SnapshotStored():
                self._receive_slice(worker, report)
            case _ if self._current is not None and self._current.number == report.checkpoint:
                self._receive_report(self._current, worker, report)

    def _receive_report(
        self, pending: PendingCheckpoint, worker: WorkerId, report: _Progress
    ) -> None:
        """Handle a report about the checkpoint under way."""
        match report:
            case SourcesPaused(furthest=furthest):
                pending.furthest[worker] = furthest
                self._pause_sources(pending)
            case Aligned():
                pending.aligned.add(worker)
            case SnapshotFailed(reason=reason):
                self._give_up(pending, reason)
            case OutboxesSent() if pending.unsent is not None:
                pending.unsent.discard(worker)
                self._full.discard(worker)

    def _receive_slice(self, worker: WorkerId, report: SnapshotStored) -> None:
        pending, number = self._current, report.checkpoint
        if number in self._given_up:
            return
        if pending is None or number != pending.number or worker in pending.parts:
            raise MeanderError(
                member_name(worker),
                f"it reported a part of checkpoint {number}, which is not under way",
            )
        pending.slices[worker].append(report.slice)
        for bin, time in report.held:
            pending.held_back[bin] = min(time, pending.held_back.get(bin, NEVER))
        if report.last:
            part = b"".join(pending.slices.pop(worker))
            pending.parts[worker] = Checkpoint.from_bytes(part)

    def step(self, time: int) -> list[Checkpointed | CheckpointFailed]:
        """Advance the checkpoint under way; return its events. No commit marker is later than
        `time`."""
        self._marker_retention.poll(time)
        if self._current is not None:
            self._advance(self._current)
        events, self._events = self._events, []
        return events

    def _advance(self, pending: PendingCheckpoint) -> None:
        now = self._clock.monotonic()
        if pending.written is None and len(pending.parts) == len(pending.members):
            pending.whole = self._joined(pending)
            pending.written = self._write(pending.whole)
        if pending.unsent is not None:
            self._finish(pending)
        elif pending.written is not None:
            if (durable := pending.written()) is not None:
                pending.whole = durable
                self._complete(pending)
        elif now >= pending.started_at + self._options.timeout:
            self._give_up(pending, self._timeout_reason(pending))

    def _timeout_reason(self, pending: PendingCheckpoint) -> str:
        """Return why a checkpoint took too long, and the remedy."""
        within = f"it was not done within {self._options.timeout:g} s"
        if pending.whole is None:
            return f"{within}, as too much stayed in flight; policy unaligned waits for none of it"
        if left := [member_name(one) for one in pending.members if one not in pending.parts]:
            return (
                f"{within}, as {', '.join(left)} had not written all; set a longer timeout, or"
                " shorter calls of the flow's functions"
            )
        return f"{within}, as its record was not durable yet; check whether Kafka keeps up"

    def _complete(self, pending: PendingCheckpoint) -> None:
        assert pending.whole is not None, "it has been written"
        self.needed, self._failed = False, 0
        self._retained.append(pending.whole)
        held = tuple(pending.held_back.items())
        self._send(CompleteFrame(pending.number, pending.passed, held), pending.members)
        if pending.whole.savepoint:
            self._savepoints.append(pending.whole)
        while len(self._retained) > self._options.retained:
            self._discard(self._retained.popleft())
        self._marker_retention.retain_from(min(self._numbers))
        pending.unsent = {*pending.members} if self._plan.outboxes else set()
        self._finish(pending)

    def _finish(self, pending: PendingCheckpoint) -> None:
        """End the checkpoint once all of its outbox contents are committed."""
        assert pending.whole is not None, "it exists"
        if not pending.unsent:
            self._end()
            if not pending.held_back:
                self.sent = pending.number
            self._events.append(self._checkpointed(pending, pending.whole))

    def _give_up(self, pending: PendingCheckpoint, reason: str) -> None:
        """Cancel the checkpoint. Raise `MeanderError` after too many failures."""
        self._end(FAILED_PAUSE)
        self._drop_advance_request(pending)
        self._given_up.add(pending.number)
        self._failed += 1
        self._send(CancelFrame(pending.number), pending.members)
        self._events.append(CheckpointFailed(pending.request.id, pending.number, reason))
        if (
            self._options.tolerable_failures is not None
            and self._failed > self._options.tolerable_failures
        ):
            raise MeanderError(
                f"flow {self._plan.flow.name!r}, checkpoint {pending.number}",
                f"{self._failed} checkpoints in a row were cancelled: {reason}",
                "give its Checkpointing a longer timeout, or more tolerable_failures",
            )

    def _end(self, pause: float = 0.0) -> None:
        self._current = None
        self._earliest = self._clock.monotonic() + max(self._options.min_pause, pause)

    def _pause_sources(self, pending: PendingCheckpoint) -> None:
        """Send the common limit once all workers have reported how far their sources have sent."""
        if pending.furthest.keys() >= set(pending.members):
            max_bytes = self._options.max_bytes_at_freeze(pending.request.policy) or 0
            limit = max(pending.furthest.values())
            self._send(PauseFrame(pending.number, limit, max_bytes // len(pending.members)))

    def _drop_advance_request(self, pending: PendingCheckpoint) -> None:
        if pending.advance_request is not None:
            pending.advance_request.drop()
            pending.advance_request = None

    def _send(self, frame: CheckpointFrame, members: Iterable[WorkerId] | None = None) -> None:
        if members is None:
            assert self._current is not None, "nothing is being taken"
            members = self._current.members
        for worker in members:
            self._links.send(worker, encode_checkpoint(frame))

    @property
    def _numbers(self) -> set[int]:
        """The numbers of all retained checkpoints and savepoints."""
        return {one.number for one in (*self._retained, *self._savepoints)}

    def _next_due(self) -> float | None:
        interval = self._options.interval
        return None if interval is None else self._clock.monotonic() + interval

    def _discard(self, old: Checkpoint) -> None:
        """Delete the in-flight records of an old checkpoint that no other one references.

        Layers of earlier executions may go too: bins that this execution did not restore have no
        owner any more.
        """
        if old.number in self._numbers:
            return
        retained = *self._retained, *self._savepoints
        in_flight = {place for one in retained for place in one.locations}
        chunks = list[RecordLocation]()
        if old.execution != self._execution:
            named = {place for one in retained for place in one.chunks}
            chunks = [place for place in old.chunks if place not in named]
        unused = [place for place in old.locations if place not in in_flight]
        self._forget(unused, chunks, self._numbers)

    def _joined(self, pending: PendingCheckpoint) -> Checkpoint:
        assert pending.whole is not None, "it has been frozen"
        whole = Checkpoint.assemble(pending.whole, [pending.parts[one] for one in pending.members])
        whole = replace(whole, write_ms=_ms(self._clock.monotonic() - pending.frozen_at))
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

    def _checkpointed(self, pending: PendingCheckpoint, whole: Checkpoint) -> Checkpointed:
        return Checkpointed(
            id=pending.request.id,
            number=whole.number,
            savepoint=whole.savepoint,
            policy=whole.policy,
            ms=_ms(self._clock.monotonic() - pending.started_at),
            alignment_ms=whole.alignment_ms,
            write_ms=whole.write_ms,
            state_bytes=whole.state_bytes,
            in_flight_bytes=whole.in_flight_bytes,
            in_flight=whole.in_flight,
        )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
