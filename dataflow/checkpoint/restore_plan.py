"""The restore plan assigns a checkpoint to the workers of a new execution.

Guarantees that each bin, partition and in-flight record belongs to one worker, and that as few as
possible change their worker. The n-th worker takes the share of the checkpoint's n-th worker. The
shares of missing workers are distributed, and additional workers get their share. Cost: O(bins),
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.compatibility import restorable_parts
from meander.dataflow.control.balance import distribute, shares_for_joining
from meander.dataflow.control.decisions import (
    JointDecision,
    StartDecision,
    WorkersPlan,
    ranks_of,
)
from meander.dataflow.control.logic_change import LogicChange
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.resources import Resources
from meander.dataflow.control.routing import initial_owners
from meander.dataflow.control.timestamp_overrides import NO_OVERRIDES, OverrideHistory
from meander.dataflow.exactly_once.commit_history import NO_HISTORY, History
from meander.dataflow.records.loop_times import outer_time
from meander.state.checkpoint.checkpoint import INITIAL_CUT, Checkpoint, Cut, Position
from meander.state.keys.ids import CheckpointId, ExecutionId, WorkerId
from meander.state.layers.manifest import Manifest
from meander.state.times.time import MIN_TIME

T = TypeVar("T")
NO_EXECUTION: Final = ExecutionId(0)
"""The id before all executions."""
Place = tuple[str, int]
"""The name of a source, and one of its partitions."""


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A plan of what each worker starts with."""

    workers: int
    owners: tuple[WorkerId, ...]
    """The owner of each bin, group after group."""
    readers: Mapping[Place, WorkerId]
    """The readers of partitions that have been read before, or that a plan names."""
    manifests: Sequence[Manifest] = ()
    cut: Cut = INITIAL_CUT
    members: tuple[WorkerId, ...] = ()
    """The members of the cut whose places the workers take, in order."""
    number: int = 0
    """The number of the checkpoint; 0 without one."""
    execution: ExecutionId = NO_EXECUTION
    """The execution that took the checkpoint."""
    history: History = NO_HISTORY
    override_history: OverrideHistory = NO_OVERRIDES
    """The timestamp overrides of earlier executions."""
    sources: tuple[str, ...] = ()
    """The names of the flow's sources, by number."""
    groups: tuple[str, ...] = ()
    retained: int = 3
    """The number of retained checkpoints of this execution."""
    logic_changes: tuple[LogicChange, ...] = ()
    """The changes of logic in earlier executions, in the order of their decisions."""
    reconfigured: Mapping[str, JointDecision] = field(default_factory=dict)
    """The reconfigurations that earlier executions have decided, by id."""
    resources: Mapping[WorkerId, Resources] = field(default_factory=dict)
    """Where each worker has to run."""

    @staticmethod
    def of(
        plan: Plan, workers: int, checkpoint: Checkpoint | None = None,
        history: History = NO_HISTORY, joint: JointDecision | None = None,
    ) -> RestorePlan:  # fmt: skip
        """Assign a checkpoint to some workers; without one the flow has neither past nor states.

        `joint` is the last joint decision. Its owners and readers hold where the checkpoint does
        not have them already.
        """
        decided = plan_in_force(joint, plan, checkpoint)
        # The driver finds the same members without the history and the flow's operators.
        members = () if checkpoint is None else remaining_members(checkpoint.cut, workers)
        checkpoint = None if checkpoint is None else restorable_parts(checkpoint, plan)
        cut = INITIAL_CUT if checkpoint is None else checkpoint.cut
        cut = without_sent_results(plan, cut, history)
        number = 0 if checkpoint is None else checkpoint.number
        execution = NO_EXECUTION if checkpoint is None else checkpoint.execution
        manifests = () if checkpoint is None else checkpoint.manifests
        plan_start = RestorePlan(
            workers, initial_owners(plan.flow.space, workers, len(plan.groups.names)), readers={},
            manifests=manifests, number=number, execution=execution, history=history,
            override_history=history.override_history(plan.reached_sinks),
            sources=tuple(one.name for one in plan.sources),
            groups=tuple(plan.groups.names), retained=plan.flow.checkpoints.retained,
        )  # fmt: skip
        if cut == INITIAL_CUT:
            if decided is None:
                return plan_start
            # Nothing is read before the first checkpoint, so the plan names all readers.
            return replace(plan_start, readers=decided.readers)._with_workers(decided)
        cut = _with_newer_partitions(plan, cut, history, members)
        ranks = ranks_of(members)
        bins = {number: ranks[owner] for number, owner in enumerate(cut.owners)}
        readers = {(one.source, one.partition): ranks[one.worker] for one in cut.positions}
        owned = redistributed(bins, len(ranks), workers)
        restored = replace(
            plan_start, cut=cut, members=members,
            owners=tuple(owned[number] for number in range(len(bins))),
            readers=redistributed(readers, len(ranks), workers),
        )  # fmt: skip
        return restored if decided is None else restored._with_workers(decided)

    def _with_workers(self, decided: WorkersPlan) -> RestorePlan:
        """Return the plan with the owners and readers of a decision."""
        ranks = decided.ranks
        bins = {number: ranks[owner] for number, owner in enumerate(decided.owners)}
        owned = redistributed(bins, len(ranks), self.workers)
        readers = redistributed(
            {place: ranks[one] for place, one in decided.readers.items()}, len(ranks), self.workers
        )
        return replace(
            self, owners=tuple(owned[number] for number in range(len(bins))),
            readers={place: readers.get(place, one) for place, one in self.readers.items()},
        )  # fmt: skip

    def with_logic(self, plan: Plan, changes: Iterable[LogicChange]) -> RestorePlan:
        """Return the plan with the changes of logic of operators that the flow has."""
        known = tuple(one for one in changes if one.operator in plan.logics)
        return replace(self, logic_changes=known)

    def with_reconfigurations(self, decided: Iterable[JointDecision]) -> RestorePlan:
        """Return the plan with the ids of the reconfigurations that earlier executions decided."""
        known = {one.id: one for one in decided}
        last = next(reversed(known.values()), None)
        return replace(self, reconfigured=known, resources=resources_of(last, self.workers))

    def joining(self, plan: Plan) -> RestorePlan:
        """Return the plan of a worker that joins later: it knows the history and receives all
        else."""
        return RestorePlan.of(plan, self.workers, history=self.history)

    @property
    def at(self) -> CheckpointId:
        """The id of the checkpoint."""
        return CheckpointId(self.execution, self.number)

    @property
    def start_decision(self) -> StartDecision:
        """The decision that records the start of this execution."""
        number = self.number if self.resumes else None
        names = self.sources, self.groups
        replay_from, retained = self.cut.replay_starts, self.retained
        return StartDecision(
            self.time, self.owners, self.workers, number, *names, replay_from, retained
        )

    @property
    def time(self) -> int:
        """The least time for new commands: none is outstanding there, and results before it are
        committed."""
        marker = self.history.latest_marker
        return max(self.cut.time, marker + (marker > MIN_TIME))

    @property
    def resumes(self) -> bool:
        """Whether the flow has run before."""
        return self.cut != INITIAL_CUT

    @property
    def moves(self) -> list[Moves]:
        """The moves around which two workers may have in-flight records of one bin."""
        least = min((outer_time(piece.time) for piece in self.cut.pieces), default=self.cut.time)
        return [one for one in self.history.moves if least < one.time < self.cut.time]

    def rank(self, old: WorkerId) -> WorkerId:
        """Return the worker that takes the place of one of the checkpoint's workers."""
        ranks = ranks_of(self.members)
        every = ranks_of(sorted(self.cut.members))
        return WorkerId(ranks.get(old, every[old]) % self.workers)


def remaining_members(cut: Cut, workers: int) -> tuple[WorkerId, ...]:
    """Return the members of a cut whose places the workers of a restart take, in order.

    Where there are fewer workers than members, a member that owns neither bins nor partitions, and
    holds no records in flight, has no place: it was leaving.
    """
    members = sorted(cut.members)
    readers, holders = (one.worker for one in cut.positions), (one.worker for one in cut.pieces)
    owning = {*cut.owners, *readers, *holders}
    idle = [one for one in members if one not in owning]
    excess = max(0, len(members) - workers)
    return tuple(one for one in members if one not in idle[:excess])


def resources_of(joint: JointDecision | None, workers: int) -> dict[WorkerId, Resources]:
    """Return where the last joint decision lets each of some workers run. Fewer workers are the
    first ones, and more workers may run anywhere.

    A rescale adds and removes the workers with the highest ids, so the others keep their ranks.
    """
    if joint is None:
        return {}
    ranks, resources = joint.plan.ranks, joint.plan.resources
    return {rank: resources[one] for one, rank in ranks.items()
            if rank < workers and one in resources}  # fmt: skip


def plan_in_force(
    joint: JointDecision | None, plan: Plan, checkpoint: Checkpoint | None
) -> WorkersPlan | None:
    """Return what a joint decision makes of the workers; None where the checkpoint has it already,
    or other bins."""
    if joint is None or len(joint.plan.owners) != plan.groups.total:
        return None
    if checkpoint is None:
        return joint.plan
    # A later execution has started with the decision, whatever the times of its checkpoints.
    is_later = joint.execution > checkpoint.execution
    is_behind = joint.execution == checkpoint.execution and joint.time >= checkpoint.cut.time
    return joint.plan if is_later or is_behind else None


def without_sent_results(plan: Plan, cut: Cut, history: History) -> Cut:
    """Return the cut without outbox contents that have been committed since."""
    return replace(
        cut,
        pieces=tuple(
            piece for piece in cut.pieces
            if not (plan.in_outbox(piece) and history.sent(piece.snapshot))
        ),
    )  # fmt: skip


def _with_newer_partitions(
    plan: Plan, cut: Cut, history: History, members: Sequence[WorkerId]
) -> Cut:
    """Add the partitions that an earlier execution started to read after the cut, at the same
    times."""
    known = {(one.source, one.partition) for one in cut.positions}
    newer = list[Position]()
    for order in history.orders:
        place = plan.sources[order.source].name, int(order.partition)
        if place not in known and order.offset is not None:
            known.add(place)
            newer.append(
                Position(
                    *place, members[len(newer) % len(members)], order.offset, None,
                    MIN_TIME, MIN_TIME, order.first_time,
                )
            )  # fmt: skip
    return replace(cut, positions=(*cut.positions, *newer))


def redistributed(assigned: Mapping[T, WorkerId], before: int, workers: int) -> dict[T, WorkerId]:
    """Return the owner of each thing when the number of workers changes.

    >>> assigned = {"a": WorkerId(0), "b": WorkerId(0), "c": WorkerId(1), "d": WorkerId(2)}
    >>> redistributed(assigned, 3, 2), redistributed(assigned, 3, 4)
    ({'a': 0, 'b': 0, 'c': 1, 'd': 0}, {'a': 0, 'b': 3, 'c': 1, 'd': 2})
    """
    remaining = [WorkerId(worker) for worker in range(min(before, workers))]
    unowned = [thing for thing, worker in assigned.items() if worker >= workers]
    shared = distribute(unowned, remaining)
    found = dict(assigned) | {thing: worker for worker, some in shared.items() for thing in some}
    joining = [WorkerId(worker) for worker in range(before, workers)]
    shares = shares_for_joining(found, joining, [*remaining, *joining]) if joining else {}
    return found | {thing: worker for worker, some in shares.items() for thing in some}
