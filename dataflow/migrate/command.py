"""A migration as it is asked for, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from schemas import control
from state import codec
from state.bins import BinSpace
from state.ids import Bin, WorkerId
from state.time import from_millis

Strategy = Literal["fluid", "sudden"]


@dataclass(frozen=True, slots=True)
class Migrate:
    """Move bins to a worker: at logical time `time`, or as soon as possible.

    `fluid` moves bin after bin, each completed before the next; `sudden` all at one time.
    """

    id: str
    bins: tuple[Bin, ...]
    worker: WorkerId
    time: int | None = None
    strategy: Strategy = "fluid"

    @staticmethod
    def asked(command: control.Migrate, space: BinSpace) -> Migrate:
        """What a command of the control topic asks of a flow with these bins.

        >>> move = control.Migrate(type="migrate", id="m", worker=1, bins="all", time=5)
        >>> Migrate.asked(move, BinSpace(1))
        Migrate(id='m', bins=(0, 1), worker=1, time=5242880, strategy='fluid')
        """
        return Migrate(
            command.id,
            tuple(_bins_of(command, space)),
            WorkerId(command.worker),
            None if command.time is None else from_millis(command.time),
            command.strategy,
        )

    def check(self, count: int, workers: Sequence[WorkerId]) -> None:
        """Raises Refused unless it names some of so many bins, and one of these workers."""
        if self.worker not in workers:
            known = f"0 to {workers[-1]}" if workers == [*range(len(workers))] else str(workers)
            raise Refused(f"worker {self.worker} is unknown: name one of {known}")
        if not self.bins:
            raise Refused(f"no bins are named: name some of 0 to {count - 1}, or 'all'")
        wrong = [int(bin) for bin in self.bins if not 0 <= bin < count]
        if wrong:
            raise Refused(f"bin {wrong[0]} is out of range: name bins of 0 to {count - 1}")


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
    ...     BinSpace(2).bin_of(codec.encode(key)) for key in ("cat", "dog")
    ... ]
    True
    """
    if command.bins == "all":
        return [Bin(bin) for bin in range(space.count)]
    if command.bins is not None:
        return [Bin(bin) for bin in command.bins]
    return [space.bin_of(codec.encode(key)) for key in command.keys or ()]
