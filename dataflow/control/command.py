"""The command that moves bins, with its checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from meander.dataflow.control.colocation import DEFAULT_GROUP, ColocationGroups
from meander.dataflow.control.logic_change import LogicUpdate
from meander.dataflow.control.resources import Resources
from meander.schemas import control
from meander.state.encoding import codec
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis

PREPARE_WITHIN = 600.0
"""Seconds: a reconfiguration that is not prepared by then leaves the old plan in force."""

Strategy = Literal["all-at-once", "fluid", "batched"]
Overlap = Literal["queue", "reject"]
Order = Literal["as-listed", "hottest", "coldest"]


@dataclass(frozen=True, slots=True)
class SwitchLogic:
    """A command that replaces the logic of operators at one time, or as soon as possible."""

    id: str
    updates: Mapping[str, LogicUpdate]
    """What changes about each operator."""
    time: int | None = None
    offset: int = 0
    """The offset of the command on the control topic."""
    part_of: str = ""
    """The reconfiguration whose other parts it waits for."""

    @staticmethod
    def from_command(command: control.ChangeLogic, offset: int = 0) -> SwitchLogic:
        """Convert a command of the control topic."""
        updates = {
            operator: LogicUpdate(new.logic, new.parameters)
            for operator, new in command.operators.items()
        }
        time = None if command.time is None else from_millis(command.time)
        return SwitchLogic(command.id, updates, time, offset)


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """A command that changes logic, owners of bins and readers of partitions at one logical time,
    or none of them."""

    id: str
    logic: Mapping[str, LogicUpdate] = field(default_factory=dict)
    """What changes about each operator."""
    bins: Mapping[str, Mapping[Bin, WorkerId]] = field(default_factory=dict)
    """The new owners of bins, by group."""
    partitions: Mapping[tuple[str, int], WorkerId] = field(default_factory=dict)
    """The new readers of partitions, given by source and number."""
    removed: Collection[WorkerId] = ()
    """The workers that leave once they own and read nothing."""
    resources: Mapping[WorkerId, Resources] = field(default_factory=dict)
    """Where each worker of the new plan runs."""
    time: int | None = None
    offset: int = 0
    """The offset of the command on the control topic."""
    seconds: float = PREPARE_WITHIN
    """The time limit of the preparation."""


@dataclass(frozen=True, slots=True)
class MoveBins:
    """A command that moves bins at the logical time `time`, or as soon as possible.

    `all-at-once` moves all bins at one time. `fluid` moves one bin after another. `batched` moves
    bins in rounds, and no worker takes part in two moves of a round. With `precopy` the next owner
    prefetches bins, so that the move itself is small.
    """

    id: str
    bins: tuple[Bin, ...]
    worker: WorkerId
    time: int | None = None
    """The time of the first round, which waits for no prefetch."""
    strategy: Strategy = "batched"
    precopy: bool = True
    overlap: Overlap = "queue"
    """Whether a command without a time waits for running commands that move some of its bins."""
    order: Order = "as-listed"
    """The order of bins: as listed, or by their recent records."""
    operator: str = DEFAULT_GROUP
    """The operator that moves alone and owns these bins, or the default group."""
    others: Mapping[Bin, WorkerId] = field(default_factory=dict)
    """The targets of bins that do not move to `worker`."""
    offset: int = 0
    """The offset of the command on the control topic."""
    sources: Mapping[Bin, WorkerId] = field(default_factory=dict)
    """The owners that give bins away where workers join or leave. The command skips a bin that
    another command has moved meanwhile, and tries a failed pre-copy again."""
    part_of: str = ""
    """The reconfiguration whose other parts it waits for, once all its bins are prepared."""

    @staticmethod
    def from_command(command: control.Migrate, space: BinSpace, offset: int = 0) -> MoveBins:
        """Convert a command of the control topic.

        >>> move = control.Migrate(type="migrate", id="m", worker=1, bins="all", time=5)
        >>> MoveBins.from_command(move, BinSpace(1)).bins
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
        """Return the worker that a bin moves to."""
        return self.others.get(bin, self.worker)

    @property
    def has_to_complete(self) -> bool:
        """Return whether no other command may abort it: it moves bins for workers that join or
        leave, or is a part of a reconfiguration."""
        return bool(self.sources or self.part_of)

    def check(self, groups: ColocationGroups, workers: Sequence[WorkerId]) -> None:
        """Raise CommandError for unknown bins, workers or operators."""
        self._check_operator(groups)
        count = groups.count
        for worker in sorted({self.worker, *self.others.values()}):
            if worker not in workers:
                known = f"0 to {workers[-1]}" if workers == [*range(len(workers))] else str(workers)
                raise control.CommandError(f"worker {worker} is unknown: name one of {known}")
        if not self.bins:
            raise control.CommandError(
                f"no bins are named: name some of 0 to {count - 1}, or 'all'"
            )
        wrong = [int(bin) for bin in self.bins if not 0 <= bin < count]
        if wrong:
            raise control.CommandError(
                f"bin {wrong[0]} is out of range: name bins of 0 to {count - 1}"
            )

    def _check_operator(self, groups: ColocationGroups) -> None:
        alone = ", ".join(map(repr, groups.names[1:]))
        if self.operator not in groups.names:
            instead = f", or name one of {alone}" if alone else ""
            raise control.CommandError(
                f"operator {self.operator!r} does not move alone: leave it out{instead}"
            )
        if not (self.operator or self.has_to_complete or groups.operators(Bin(0))):
            raise control.CommandError(
                f"no operator of this flow moves with others: name one of {alone}"
            )


def bins_id(id: str, group: str) -> str:
    """Return the id of the command that moves the bins of a group for another command.

    >>> bins_id("r1", DEFAULT_GROUP), bins_id("r1", "counts")
    ('r1/bins', 'r1/bins of counts')
    """
    return f"{id}/bins of {group}" if group else f"{id}/bins"


def id_in_use(id: str) -> control.CommandError:
    """Return the error for a command whose id an earlier command has used."""
    return control.CommandError(f"id {id!r} was used before: give each command an id of its own")


def _bins_of(command: control.Migrate, space: BinSpace) -> list[Bin]:
    """Return the bins that a command names, in its order.

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
