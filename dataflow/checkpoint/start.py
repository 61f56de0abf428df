"""Who begins with what: a checkpoint laid out over the workers of a new life.

Guarantees that each bin, partition and record in flight is one worker's, and that as little as
possible is another's than before: the n-th worker is the n-th of the checkpoint's, what those had
who are no more is shared out, and newcomers get their share. Cost: O(bins), once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dataflow.migrate.routing import evenly_owned
from dataflow.plan import Plan
from dataflow.staff import share_of, shared_out
from state.checkpoint import BEGINNING, Checkpoint, Cut
from state.ids import WorkerId
from state.manifest import Manifest

T = TypeVar("T")
Place = tuple[str, int]
"""A source's name, and one of its partitions."""


@dataclass(frozen=True, slots=True)
class Start:
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

    @staticmethod
    def of(plan: Plan, workers: int, checkpoint: Checkpoint | None = None) -> Start:
        """A checkpoint over so many workers; None of a flow that has no past and no states."""
        cut = BEGINNING if checkpoint is None else checkpoint.cut
        number = 0 if checkpoint is None else checkpoint.number
        manifests = () if checkpoint is None else checkpoint.manifests
        if cut == BEGINNING:
            evenly = evenly_owned(plan.flow.space, workers, len(plan.groups.names))
            return Start(workers, evenly, {}, manifests, number=number)
        ranks = {old: WorkerId(rank) for rank, old in enumerate(sorted(cut.members))}
        bins = {number: ranks[owner] for number, owner in enumerate(cut.owners)}
        readers = {(one.source, one.partition): ranks[one.worker] for one in cut.positions}
        owned = laid_out(bins, len(ranks), workers)
        return Start(
            workers, tuple(owned[number] for number in range(len(bins))),
            laid_out(readers, len(ranks), workers), manifests, cut, number,
        )  # fmt: skip

    @property
    def resumes(self) -> bool:
        """Whether the flow has run before."""
        return self.cut != BEGINNING

    def rank(self, old: WorkerId) -> WorkerId:
        """Who takes the place of one of the checkpoint's workers."""
        return WorkerId(sorted(self.cut.members).index(old) % self.workers)


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
