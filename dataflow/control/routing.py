"""The routing: the owner of each bin at a time, as the exchange and the migrator of one worker
share it.

Guarantees I2: `owner(bin, time)` is one worker, and the same on every worker once the control
frontier has passed `time`. Decisions reach all workers, and their order of arrival does not matter.
Cost: a look-up per record, plus one mask per pending move.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meander.dataflow.control.reassignment import Moves
from meander.dataflow.records.batch import Int64s
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.antichain import Antichain

NO_OWNER = WorkerId(-2)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer that changes the owner of one bin at a time."""

    bin: Bin
    time: int
    source: WorkerId
    target: WorkerId
    command: str


def initial_owners(space: BinSpace, workers: int, groups: int = 1) -> tuple[WorkerId, ...]:
    """Return the owner of each bin of each group before the first move.

    >>> initial_owners(BinSpace(1), workers=2)
    (0, 1)
    """
    return tuple(space.first_owner(Bin(b), workers) for b in range(space.count)) * groups


class Routing:
    """A routing that maps each bin of all groups and each logical time to an owner.

    >>> routing = Routing(BinSpace(1), initial_owners(BinSpace(1), workers=2))
    >>> routing.add(Moves("m", 150, WorkerId(1), (Bin(0),)))
    >>> [routing.owner(Bin(0), t) for t in (149, 150)], routing.owner(Bin(1), 0)
    ([0, 1], 1)
    """

    def __init__(self, space: BinSpace, owners: Sequence[WorkerId]) -> None:
        """`owners` are the initial owners of all bins, group after group."""
        self.space = space
        self._owners: Int64s = np.array(owners, np.int64)
        self._sole = _sole_of(self._owners)
        self._changes: list[tuple[int, str, Moves, npt.NDArray[np.bool_]]] = []

    @staticmethod
    def unknown(space: BinSpace, groups: int) -> Routing:
        """Return the routing of a joining worker, which learns the owners from moves."""
        return Routing(space, [NO_OWNER] * (space.count * groups))

    def add(self, moves: Moves) -> None:
        """Add moves, in any order of arrival."""
        member = np.zeros(len(self._owners), np.bool_)
        member[list(moves.bins)] = True
        insort(self._changes, (moves.time, moves.command, moves, member), key=lambda c: c[:2])

    def revoke(self, command: str, time: int) -> None:
        """Remove the moves of a command at a time that no frontier has passed."""
        self._changes = [c for c in self._changes if c[:2] != (time, command)]

    def destinations(self, bins: Int64s, times: Int64s) -> Int64s:
        """Return the owner of each record's bin at the record's time, all of shape (n,)."""
        owners = self._owners[bins]
        for time, _, moves, member in self._changes:
            owners[(times >= time) & member[bins]] = moves.target
        return owners

    def owner(self, bin: Bin, time: int) -> WorkerId:
        """Return the owner of a bin at a time."""
        return self._owner(bin, before=time + 1)

    def owners(self, time: int) -> list[WorkerId]:
        """Return the owner of every bin at a time."""
        return [self.owner(Bin(b), time) for b in range(len(self._owners))]

    def transfers(self, moves: Moves) -> list[Transfer]:
        """Return the changes of owners that moves cause. Call this once the control frontier has
        passed their time."""
        found = []
        for bin in moves.bins:
            source = self._owner(bin, before=moves.time)
            if source != moves.target:
                found.append(Transfer(bin, moves.time, source, moves.target, moves.command))
        return found

    def compact(self, frontier: Antichain) -> None:
        """Apply the moves that a frontier has passed: they are final, and all further records are
        later."""
        while self._changes and not frontier.less_equal(self._changes[0][0]):
            _, _, moves, member = self._changes.pop(0)
            self._owners[member] = moves.target
            self._sole = _sole_of(self._owners)

    @property
    def sole_owner(self) -> WorkerId | None:
        """Return the owner of all bins at all times from now on, or None.

        >>> space = BinSpace(1)
        >>> [Routing(space, initial_owners(space, workers)).sole_owner for workers in (1, 2)]
        [0, None]
        """
        return None if self._changes else self._sole

    @property
    def has_pending(self) -> bool:
        """Return whether a move is pending."""
        return bool(self._changes)

    def pending(self) -> list[Moves]:
        """Return the moves that no frontier has passed, in order."""
        return [moves for _, _, moves, _ in self._changes]

    def _owner(self, bin: Bin, before: int) -> WorkerId:
        owner = int(self._owners[bin])
        for time, _, moves, member in self._changes:
            if time < before and member[bin]:
                owner = moves.target
        return WorkerId(owner)


def _sole_of(owners: Int64s) -> WorkerId | None:
    """Return the owner of all bins, or None; a flow without keys has no bins."""
    distinct = np.unique(owners)
    return WorkerId(int(distinct[0])) if len(distinct) == 1 else None
