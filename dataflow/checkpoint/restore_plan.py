"""Who begins with what: a checkpoint laid out over the workers of a new life.

Guarantees that each bin, partition and record in flight is one worker's, and that as little as
possible is another's than before: the n-th worker is the n-th of the checkpoint's, what those had
who are no more is shared out, and newcomers get their share. Cost: O(bins), once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.compatibility import fitting
from meander.dataflow.control.balance import share_of, shared_out
from meander.dataflow.control.decisions import Begins
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.routing import evenly_owned
from meander.dataflow.control.timestamp_overrides import NO_PAST, OverrideHistory
from meander.dataflow.exactly_once.commit_history import NO_HISTORY, History
from meander.dataflow.records.loop_times import outer
from meander.state.checkpoint.checkpoint import BEGINNING, Checkpoint, Cut, Position
from meander.state.keys.ids import CheckpointId, ExecutionId, WorkerId
from meander.state.layers.manifest import Manifest
from meander.state.times.time import MIN_TIME

T = TypeVar("T")
UNBORN: Final = ExecutionId(0)
"""Before all lives."""
Place = tuple[str, int]
"""A source's name, and one of its partitions."""


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What all workers begin with."""

    workers: int
    owners: tuple[WorkerId, ...]
    """Of each bin, group after group."""
    readers: Mapping[Place, WorkerId]
    """Of the partitions that have been read before."""
    manifests: Sequence[Manifest] = ()
    cut: Cut = BEGINNING
    number: int = 0
    """The checkpoint's; 0 where there is none."""
    life: ExecutionId = UNBORN
    """That which has taken it."""
    history: History = NO_HISTORY
    past: OverrideHistory = NO_PAST
    """What sources have ruled in earlier lives."""
    sources: tuple[str, ...] = ()
    """Of the flow, by number."""
    groups: tuple[str, ...] = ()
    retained: int = 3
    """How many of this life's checkpoints stay."""

    @staticmethod
    def of(
        plan: Plan, workers: int, checkpoint: Checkpoint | None = None,
        history: History = NO_HISTORY,
    ) -> RestorePlan:  # fmt: skip
        """A checkpoint over so many workers; None of a flow that has no past and no states."""
        checkpoint = None if checkpoint is None else fitting(checkpoint, plan)
        cut = BEGINNING if checkpoint is None else checkpoint.cut
        cut = without_what_is_out(plan, cut, history)
        number = 0 if checkpoint is None else checkpoint.number
        life = UNBORN if checkpoint is None else checkpoint.execution
        manifests = () if checkpoint is None else checkpoint.manifests
        begun = RestorePlan(
            workers, evenly_owned(plan.flow.space, workers, len(plan.groups.names)), readers={},
            manifests=manifests, number=number, life=life, history=history,
            past=history.past(plan.reached), sources=tuple(one.name for one in plan.sources),
            groups=tuple(plan.groups.names), retained=plan.flow.checkpoints.retained,
        )  # fmt: skip
        if cut == BEGINNING:
            return begun
        cut = _with_newer_partitions(plan, cut, history)
        ranks = {old: WorkerId(rank) for rank, old in enumerate(sorted(cut.members))}
        bins = {number: ranks[owner] for number, owner in enumerate(cut.owners)}
        readers = {(one.source, one.partition): ranks[one.worker] for one in cut.positions}
        owned = laid_out(bins, len(ranks), workers)
        return replace(
            begun, cut=cut, owners=tuple(owned[number] for number in range(len(bins))),
            readers=laid_out(readers, len(ranks), workers),
        )  # fmt: skip

    def joining(self, plan: Plan) -> RestorePlan:
        """What a worker begins with that joins later: others tell it all, but what was before."""
        return RestorePlan.of(plan, self.workers, history=self.history)

    @property
    def at(self) -> CheckpointId:
        """The checkpoint."""
        return CheckpointId(self.life, self.number)

    @property
    def begins(self) -> Begins:
        """What the journal is told of it."""
        number = self.number if self.resumes else None
        names = self.sources, self.groups
        anew, retained = self.cut.anew, self.retained
        return Begins(self.time, self.owners, self.workers, number, *names, anew, retained)

    @property
    def time(self) -> int:
        """No command of an earlier time is outstanding, and none may come: what is out was decided
        without it."""
        mark = self.history.mark
        return max(self.cut.time, mark + (mark > MIN_TIME))

    @property
    def resumes(self) -> bool:
        """Whether the flow has run before."""
        return self.cut != BEGINNING

    @property
    def moves(self) -> list[Moves]:
        """Those around which records in flight of one bin may be of two workers."""
        least = min((outer(piece.time) for piece in self.cut.pieces), default=self.cut.time)
        return [one for one in self.history.moves if least < one.time < self.cut.time]

    def rank(self, old: WorkerId) -> WorkerId:
        """Who takes the place of one of the checkpoint's workers."""
        return WorkerId(sorted(self.cut.members).index(old) % self.workers)


def without_what_is_out(plan: Plan, cut: Cut, history: History) -> Cut:
    """Without what has left the outboxes since the cut."""
    return replace(
        cut,
        pieces=tuple(
            piece for piece in cut.pieces
            if not (plan.in_outbox(piece) and history.sent(piece.author))
        ),
    )  # fmt: skip


def _with_newer_partitions(plan: Plan, cut: Cut, history: History) -> Cut:
    """With the partitions that an earlier life began to read after the cut: at the same time."""
    known = {(one.source, one.partition) for one in cut.positions}
    newer = list[Position]()
    for order in history.orders:
        place = plan.sources[order.source].name, int(order.partition)
        if place not in known and order.offset is not None:
            known.add(place)
            newer.append(
                Position(
                    *place, cut.members[len(newer) % len(cut.members)], order.offset, None,
                    MIN_TIME, MIN_TIME, order.begins,
                )
            )  # fmt: skip
    return replace(cut, positions=(*cut.positions, *newer))


def laid_out(held: Mapping[T, WorkerId], before: int, workers: int) -> dict[T, WorkerId]:
    """Who has what, when there were so many workers and now are others.

    >>> held = {"a": WorkerId(0), "b": WorkerId(0), "c": WorkerId(1), "d": WorkerId(2)}
    >>> laid_out(held, 3, 2), laid_out(held, 3, 4)
    ({'a': 0, 'b': 0, 'c': 1, 'd': 0}, {'a': 0, 'b': 3, 'c': 1, 'd': 2})
    """
    staying = [WorkerId(worker) for worker in range(min(before, workers))]
    orphans = [thing for thing, worker in held.items() if worker >= workers]
    given = shared_out(orphans, staying)
    found = dict(held) | {thing: worker for worker, some in given.items() for thing in some}
    newcomers = [WorkerId(worker) for worker in range(before, workers)]
    shares = share_of(found, newcomers, [*staying, *newcomers]) if newcomers else {}
    return found | {thing: worker for worker, some in shares.items() for thing in some}
