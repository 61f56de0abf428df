"""A migration as it is asked for, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from meander.dataflow.control.colocation import DEFAULT_GROUP, ColocationGroups
from meander.schemas import control
from meander.state.encoding import codec
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis

Strategy = Literal["all-at-once", "fluid", "batched"]
Overlap = Literal["queue", "reject"]
Order = Literal["as-listed", "hottest", "coldest"]


@dataclass(frozen=True, slots=True)
class MoveBins:
    """Move bins: at logical time `time`, or as soon as possible.

    `all-at-once` moves all at one time, `fluid` bin after bin, each completed before the next,
    `batched` round after round of bins, no worker taking part in two moves at once. With `precopy`
    bins are fetched by their next owner first, so that little is left to move.
    """

    id: str
    bins: tuple[Bin, ...]
    worker: WorkerId
    time: int | None = None
    """Of the first round; it does not wait for anything to be fetched."""
    strategy: Strategy = "batched"
    precopy: bool = True
    overlap: Overlap = "queue"
    """Whether to wait, where it has no time, for commands under way that move some of its bins."""
    order: Order = "as-listed"
    """Which bins move first: as they are named, or by how many records they had of late."""
    operator: str = DEFAULT_GROUP
    """Whose bins are meant: those of this operator, which moves alone, or of all that do not."""
    others: Mapping[Bin, WorkerId] = field(default_factory=dict)
    """The targets of bins that do not go to `worker`."""
    offset: int = 0
    """Where the command lies on the control topic."""
    sources: Mapping[Bin, WorkerId] = field(default_factory=dict)
    """From whom bins are taken, where workers come or go: one that another command has given to
    somebody else meanwhile stays there, and what cannot be read ahead is tried again."""

    @staticmethod
    def asked(command: control.Migrate, space: BinSpace, offset: int = 0) -> MoveBins:
        """What a command of the control topic asks of a flow with these bins.

        >>> move = control.Migrate(type="migrate", id="m", worker=1, bins="all", time=5)
        >>> MoveBins.asked(move, BinSpace(1)).bins
        (0, 1)
        """
        return MoveBins(
            command.id,
            tuple(dict.fromkeys(_bins_of(command, space))),
            WorkerId(command.worker),
            None if command.time is None else from_millis(command.time),
            command.strategy,
            command.precopy,
            command.overlap,
            command.order,
            command.operator or DEFAULT_GROUP,
            offset=offset,
        )

    def target(self, bin: Bin) -> WorkerId:
        """Where a bin is to go."""
        return self.others.get(bin, self.worker)

    @property
    def staffing(self) -> bool:
        """Whether it serves workers that come or go."""
        return bool(self.sources)

    @property
    def targets(self) -> set[WorkerId]:
        """Who gets bins."""
        return {self.target(bin) for bin in self.bins}

    def check(self, groups: ColocationGroups, workers: Sequence[WorkerId]) -> None:
        """Raises Refused unless it names bins that there are, and only of these workers."""
        self._check_operator(groups)
        count = groups.count
        for worker in sorted({self.worker, *self.others.values()}):
            if worker not in workers:
                known = f"0 to {workers[-1]}" if workers == [*range(len(workers))] else str(workers)
                raise Refused(f"worker {worker} is unknown: name one of {known}")
        if not self.bins:
            raise Refused(f"no bins are named: name some of 0 to {count - 1}, or 'all'")
        wrong = [int(bin) for bin in self.bins if not 0 <= bin < count]
        if wrong:
            raise Refused(f"bin {wrong[0]} is out of range: name bins of 0 to {count - 1}")

    def _check_operator(self, groups: ColocationGroups) -> None:
        alone = ", ".join(map(repr, groups.names[1:]))
        if self.operator not in groups.names:
            instead = f", or name one of {alone}" if alone else ""
            raise Refused(f"operator {self.operator!r} does not move alone: leave it out{instead}")
        if not (self.operator or self.staffing or groups.operators(Bin(0))):
            raise Refused(f"no operator of this flow moves with others: name one of {alone}")


class Refused(Exception):
    """A command that cannot be carried out; the message says what would be right."""


def used_before(id: str) -> Refused:
    """Of a command whose id another has had."""
    return Refused(f"id {id!r} was used before: give each command an id of its own")


def _bins_of(command: control.Migrate, space: BinSpace) -> list[Bin]:
    """The bins that a command names, in its order.

    >>> asked = control.Migrate(
    ...     type="migrate", id="m", worker=0, keys=["cat", "dog"], whole_bins=True
    ... )
    >>> _bins_of(asked, BinSpace(2)) == [
    ...     BinSpace(2).bin_of(codec.encode_key(key)) for key in ("cat", "dog")
    ... ]
    True
    """
    if command.bins == "all":
        return [Bin(bin) for bin in range(space.count)]
    if command.bins is not None:
        return [Bin(bin) for bin in command.bins]
    return [space.bin_of(codec.encode_key(key)) for key in command.keys or ()]
