"""The commit history: the results and timestamp overrides that earlier executions have committed.

Guarantees I5 for results: a result of (bin b, time t) is committed if and only if some earlier
execution has a later marker. That marker is the one of b's owner at t. The markers of the latest
execution alone would be wrong after a second crash (design 5). The first such execution committed
the result, as all later ones suppressed it. Owners follow from the start of an execution and the
decisions of its coordinator. An unsent decision does no harm: its time is not before any marker of
its execution. Cost: one comparison per batch behind the latest marker; before it one look-up per
record and execution.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from meander.dataflow.control.decisions import (
    Decision,
    JointDecision,
    LogicDecision,
    StartDecision,
    with_parts,
)
from meander.dataflow.control.instructions import Revoke
from meander.dataflow.control.logic_change import LogicChange
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.routing import Routing
from meander.dataflow.control.timestamp_overrides import (
    BEHIND_ALL,
    NO_OVERRIDES,
    OverrideHistory,
    TimestampOverride,
)
from meander.dataflow.exactly_once.checksum import Checksum, CommittedChecksum
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.records.batch import Int64s
from meander.state.checkpoint.in_flight import SnapshotId
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, ExecutionId, WorkerId
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME

NOT_COMMITTED = -1
Written = tuple[ExecutionId, Decision]
"""A decision and its execution."""


class PreviousWorker(NamedTuple):
    """A worker of an earlier execution."""

    execution: ExecutionId
    worker: WorkerId


@dataclass(slots=True)
class _PastExecution:
    """The decisions and markers of an earlier execution."""

    start: StartDecision
    changes: list[Moves | Revoke] = field(default_factory=list)
    markers: defaultdict[str, dict[WorkerId, int]] = field(
        default_factory=lambda: defaultdict[str, dict[WorkerId, int]](dict)
    )
    """The latest marker times, by sink and worker."""
    results: defaultdict[tuple[str, WorkerId], list[CommittedChecksum | None]] = field(
        default_factory=lambda: defaultdict[tuple[str, WorkerId], list[CommittedChecksum | None]](
            list
        )
    )
    """The committed results of each marker, by sink and worker, in order; None where they are
    unknown."""
    recorded_overrides: list[TimestampOverride] = field(default_factory=list)
    sent: set[SnapshotId] = field(default_factory=set)
    """The outboxes and checkpoints whose contents are committed."""

    def overrides(self) -> Iterator[TimestampOverride]:
        """Yield its timestamp overrides.

        At the end of a partition, an override behind all records gets the latest marker's time:
        nothing before it is uncommitted.
        """
        latest = max(
            (time for times in self.markers.values() for time in times.values()), default=0
        )
        for one in self.recorded_overrides:
            yield one._replace(time=latest) if one.time == BEHIND_ALL else one

    def moves(self, space: BinSpace) -> list[Moves]:
        """Return the moves that were not revoked, by time, each with only the bins that changed
        owner."""
        routing, found = self.routing(space), list[Moves]()
        for one in routing.pending():
            bins = np.array(one.bins, np.int64)
            owners = routing.destinations(bins, np.full(len(bins), one.time - 1))
            moved = bins[owners != one.target]
            found.append(replace(one, bins=tuple(map(Bin, moved.tolist()))))
        return found

    def latest_marker(self, sinks: Collection[str]) -> int:
        """Return the latest marker of some sinks."""
        some = (time for sink in sinks for time in self.markers.get(sink, {}).values())
        return max(some, default=MIN_TIME)

    def routing(self, space: BinSpace) -> Routing:
        """Return the routing of this execution."""
        routing = Routing(space, self.start.owners)
        for change in self.changes:
            match change:
                case Moves():
                    routing.add(change)
                case Revoke(command, time):
                    routing.revoke(command, time)
        return routing

    def by_worker(self, sink: str) -> Int64s:
        """Return a sink's marker on each worker; workers without one have the least time."""
        targets = (change.target for change in self.changes if isinstance(change, Moves))
        markers = self.markers[sink]
        found = np.full(1 + max(*self.start.owners, *targets, *markers), MIN_TIME, np.int64)
        for worker, time in markers.items():
            found[worker] = time
        return found

    def claims(self, sink: str, replay_from: int) -> Iterator[tuple[WorkerId, CommittedChecksum]]:
        """Yield the results of a sink that each worker has committed, as far as all of them come
        again.

        Some results of a transaction that started before `replay_from` may not come again.
        """
        for worker in self.markers.get(sink, ()):
            left = self.results[sink, worker]
            whole = [out for out in left if out is not None and out.since >= replay_from]
            if whole and None not in left:
                yield (
                    worker,
                    CommittedChecksum(
                        whole[0].since, sum((out.checksum for out in whole), Checksum())
                    ),
                )


@dataclass(frozen=True, slots=True)
class EndedExecution:
    """The commits of one sink in an execution that has ended."""

    execution: ExecutionId
    routing: Routing
    markers: Int64s
    """The marker of each worker, shape (workers,)."""


class CommittedResults:
    """The committed results of one sink, and the workers that committed them.

    >>> space = BinSpace(1)
    >>> start = StartDecision(0, (WorkerId(0), WorkerId(1)), 2)
    >>> marker = CommitMarker(ExecutionId(1), WorkerId(1), {"sink": 50})
    >>> committed = History(space, [(ExecutionId(1), start)], [marker]).of("sink", 0)
    >>> found = committed.committed_by(np.array([0, 1, 1]), np.array([40, 40, 50]))
    >>> [None if n == NOT_COMMITTED else committed.previous_workers[n] for n in found]
    [None, PreviousWorker(execution=1, worker=1), None]
    """

    def __init__(
        self,
        executions: Iterable[EndedExecution],
        first: int,
        claims: Mapping[PreviousWorker, CommittedChecksum],
        replays: bool,
    ) -> None:
        """The sink's bins have numbers from `first` on."""
        self._first, self._executions = first, list(executions)
        self.claims, self.replays = claims, replays
        """The known results of previous workers, and whether the flow has run before."""
        self.previous_workers = [
            PreviousWorker(one.execution, WorkerId(worker))
            for one in self._executions
            for worker in range(len(one.markers))
        ]
        """The previous workers, by number."""
        self.latest_marker = max(
            (int(one.markers.max()) for one in self._executions), default=MIN_TIME
        )
        """The latest marker: no result at or after this time is committed."""

    def committed_by(self, bins: Int64s, times: Int64s) -> Int64s:
        """Return the previous worker that committed each result, given by bins and times, shapes
        (n,).

        The result holds indexes into `previous_workers`, or `NOT_COMMITTED`.
        """
        found = np.full(len(times), NOT_COMMITTED, np.int64)
        if self.latest_marker > int(times.min(initial=self.latest_marker)):
            first = 0
            for one in self._executions:
                owners = one.routing.destinations(bins + self._first, times)
                out = (found == NOT_COMMITTED) & (one.markers[owners] > times)
                found[out] = first + owners[out]
                first += len(one.markers)
        return found

    def compact(self, time: int) -> None:
        """Drop the routing before a time, for which no query will come."""
        for one in self._executions:
            one.routing.compact(Antichain.of(time))


class History:
    """A history of all executions before this one."""

    def __init__(
        self,
        space: BinSpace,
        decisions: Iterable[Written] = (),
        markers: Iterable[CommitMarker] = (),
        override_history: OverrideHistory = NO_OVERRIDES,
    ) -> None:
        """`override_history` replaces the timestamp overrides of the markers where it is known."""
        self._known_overrides = override_history
        self._space = space
        self._executions: dict[ExecutionId, _PastExecution] = {}
        self.latest_marker = MIN_TIME
        """The latest marker: no later execution takes a decision for an earlier time."""
        self.orders: list[ReassignPartition] = []
        """The orders of partitions that were new on their topics."""
        for execution, decision in effective(decisions):
            self._add_decision(execution, decision)
        for marker in markers:
            self._add_marker(marker)

    def override_history(self, reached: Mapping[int, Collection[str]]) -> OverrideHistory:
        """Return the timestamp overrides; `reached` maps the number of each source to its sinks."""
        if self._known_overrides is not NO_OVERRIDES:
            return self._known_overrides
        overrides = [one for past in self._executions.values() for one in past.overrides()]
        latest = {
            source: max(
                [MIN_TIME, *(past.latest_marker(sinks) for past in self._executions.values())]
            )
            for source, sinks in reached.items()
        }
        return OverrideHistory(
            self.latest_marker, [*map(start_override, self.orders), *overrides], latest
        )

    def of(self, sink: str, first: int) -> CommittedResults:
        """Return the committed results of a sink whose bins have numbers from `first` on."""
        executions = (
            EndedExecution(execution, past.routing(self._space), past.by_worker(sink))
            for execution, past in self._executions.items()
            if sink in past.markers
        )
        return CommittedResults(executions, first, self.claims(sink), self.replays)

    def sent(self, author: SnapshotId) -> bool:
        """Return whether the contents of an outbox are committed: all of them, or nothing."""
        past = self._executions.get(author.execution)
        return past is not None and author in past.sent

    @property
    def last_sent(self) -> int:
        """The last checkpoint with committed outbox contents; 0 without one."""
        sent = (one.checkpoint for past in self._executions.values() for one in past.sent)
        return max(sent, default=0)

    @property
    def moves(self) -> list[Moves]:
        """All moves that were not revoked, with only the bins that changed owner."""
        return [one for past in self._executions.values() for one in past.moves(self._space)]

    def timed(self, since: ExecutionId) -> set[str]:
        """Return the sinks that have markers with times since an execution."""
        executions = (past for execution, past in self._executions.items() if execution >= since)
        return {sink for past in executions for sink in past.markers}

    @property
    def replays(self) -> bool:
        """Whether the flow has run before."""
        return len(self._executions) > 1

    def claims(self, sink: str) -> dict[PreviousWorker, CommittedChecksum]:
        """Return the results of a sink that the replay has to give again, by previous worker."""
        replay_from = self._replayed_from.get(sink)
        return {
            PreviousWorker(execution, worker): out
            for execution, past in self._executions.items()
            if replay_from is not None
            for worker, out in past.claims(sink, replay_from)
        }

    def replay_from(self, sink: str) -> int:
        """Return the time from which on no earlier execution has dropped a result that matters."""
        executions = self._executions.values()
        marked = (past.latest_marker([sink]) for past in executions)
        return self._replayed_from.get(sink, max(marked, default=MIN_TIME))

    @property
    def _replayed_from(self) -> dict[str, int]:
        """The times from which on results come again in this execution, by sink."""
        last = self._last
        return {} if last is None else dict(self._executions[last].start.replay_from)

    def _add_decision(self, execution: ExecutionId, decision: Decision) -> None:
        match decision:
            case StartDecision(checkpoint=None):
                # A flow that starts from scratch has nothing to do with earlier commits.
                self.orders.clear()
                self._executions = {execution: _PastExecution(decision)}
            case StartDecision():
                self._executions[execution] = _PastExecution(decision)
            case Moves() | Revoke() if execution == self._last:
                self._executions[execution].changes.append(decision)
            case ReassignPartition(offset=int()) if execution == self._last:
                self.orders.append(decision)

    @property
    def _last(self) -> ExecutionId | None:
        """The execution that started last: later decisions of an earlier one do not count."""
        return next(reversed(self._executions), None)

    def _add_marker(self, marker: CommitMarker) -> None:
        if (past := self._executions.get(marker.execution)) is None:
            return
        for sink, time in marker.times.items():
            past.markers[sink][marker.worker] = time
            past.results[sink, marker.worker].append(marker.checksums.get(sink))
        self.latest_marker = max([self.latest_marker, *marker.times.values()])
        past.recorded_overrides.extend(marker.overrides)
        if marker.sent:
            past.sent.add(SnapshotId(marker.execution, marker.sent, marker.worker))


def logic_changes(decisions: Iterable[Written]) -> Iterator[LogicChange]:
    """Yield the changes of logic of all executions. They hold for the times that they name,
    whichever execution reads the records again."""
    last = None
    for execution, decision in effective(decisions):
        match decision:
            case StartDecision():
                last = execution
            case LogicDecision(changes) if execution == last:
                yield from changes


def joint_decisions(decisions: Iterable[Written]) -> list[JointDecision]:
    """Return the joint decisions of all executions, in order."""
    last, found = None, list[JointDecision]()
    for execution, decision in effective(decisions):
        match decision:
            case StartDecision():
                last = execution
            case JointDecision() if execution == last:
                found.append(replace(decision, execution=execution))
    return found


def effective(decisions: Iterable[Written]) -> Iterator[Written]:
    """Leave out each start of an execution that follows the start of a later execution; give the
    parts of a joint decision behind it.

    Its driver had lost the flow before the record arrived. The executions of a later claim have
    greater ids than those of an earlier claim (`app.recovery.claiming`).

    >>> early = ExecutionId(1), StartDecision(0, (), 1)
    >>> late = ExecutionId(2), StartDecision(0, (), 2)
    >>> [int(execution) for execution, _ in effective([early, late, early])]
    [1, 2]
    """
    last: ExecutionId | None = None
    for execution, decision in decisions:
        if isinstance(decision, StartDecision):
            if last is not None and execution < last:
                continue
            last = execution
        for one in with_parts(decision):
            yield execution, one


def start_override(order: ReassignPartition) -> TimestampOverride:
    """Return the timestamp override that follows from the order for a new partition.

    >>> from meander.dataflow.interfaces import Partition
    >>> start_override(ReassignPartition(0, Partition(3), 7, WorkerId(1), offset=4))
    TimestampOverride(origin=0, partition=3, offset=4, time=8, last=None)
    """
    assert order.offset is not None
    return TimestampOverride(order.source, order.partition, order.offset, order.first_time)


NO_HISTORY = History(BinSpace(0))
"""The history of a flow that starts for the first time."""
