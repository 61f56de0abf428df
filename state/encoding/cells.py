"""Cells: the sealed states of a table in memory, one object per slot.

Guarantees that the weight of a state is at least its size in memory, as far as Python reports it.
Invariant: a free slot holds `ABSENT`. Cost: native code weighs states that nest one level at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from sys import getsizeof
from typing import Final, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from meander.state.encoding.codec import Sealed

T = TypeVar("T")
Slots = npt.NDArray[np.int64]
FIRST: Final = 64
"""Slots to begin with."""
ABSENT: Final = object()
"""In place of the state of a key that has none."""

_NESTING: Final[frozenset[type]] = frozenset({tuple, frozenset})
_WEIGHED: Final[frozenset[type]] = frozenset({tuple, frozenset, Sealed})
_ONLY_TUPLES: Final[frozenset[type]] = frozenset({tuple})


class Cells(Protocol):
    """States by slot."""

    cell_bytes: int
    """What a slot takes besides what `weigh` says."""

    def __len__(self) -> int:
        """How many slots there are."""

    def grow(self) -> None:
        """Make it twice as many."""

    def keep(self, slots: Slots, most: int) -> None:
        """Make it so many, the first of which have the states that some slots had."""

    def take(self, slots: Slots) -> list[object]:
        """The sealed states in some slots, all of which have one."""

    def has(self, slots: Slots) -> list[bool]:
        """Whether each of some slots has a state."""

    def before(self, slots: Slots) -> list[object]:
        """The sealed state in each of some slots, or `ABSENT`."""

    def load(self, slots: Slots, states: Sequence[bytes]) -> None:
        """Set encoded states in some slots, all different."""

    def vacate(self, slots: Slots) -> None:
        """Forget the states in some slots."""

    def weigh(self, slots: Slots) -> int:
        """Bytes that the states in some slots take; what is named twice counts once."""


class SealedCells:
    """Sealed states of any kind.

    >>> cells = SealedCells()
    >>> cells.states[3] = (7, 2.5)
    >>> cells.has(np.array([2, 3])), cells.take(np.array([3]))
    ([False, True], [(7, 2.5)])
    """

    cell_bytes = 8
    """A pointer."""

    def __init__(self) -> None:
        self.states: list[object] = [ABSENT] * FIRST

    def __len__(self) -> int:
        return len(self.states)

    def grow(self) -> None:
        """Make it twice as many slots."""
        self.states += [ABSENT] * len(self.states)

    def keep(self, slots: Slots, most: int) -> None:
        """Make it so many slots, the first of which have the states that some had."""
        self.states = [*self.take(slots), *[ABSENT] * (most - len(slots))]

    def take(self, slots: Slots) -> list[object]:
        """The sealed states in some slots, all of which have one."""
        return pick(self.states, slots.tolist())

    def has(self, slots: Slots) -> list[bool]:
        """Whether each of some slots has a state."""
        return [self.states[slot] is not ABSENT for slot in slots.tolist()]

    def before(self, slots: Slots) -> list[object]:
        """The sealed state in each of some slots, or `ABSENT`."""
        return self.take(slots)

    def load(self, slots: Slots, states: Sequence[bytes]) -> None:
        """Set encoded states in some slots, all different."""
        for slot, data in zip(slots.tolist(), states, strict=True):
            self.states[slot] = Sealed(data)

    def vacate(self, slots: Slots) -> None:
        """Forget the states in some slots."""
        for slot in slots.tolist():
            self.states[slot] = ABSENT

    def weigh(self, slots: Slots) -> int:
        """Bytes that the states in some slots take; what is named twice counts once."""
        return _weigh_all(pick(self.states, list(set(slots.tolist()))))


def weigh(state: object) -> int:
    """Bytes that a sealed state takes in memory, what it shares with others counted too."""
    if type(state) is Sealed:
        return getsizeof(state) + getsizeof(state.data)
    if type(state) is tuple or type(state) is frozenset:
        nested = not _NESTING.isdisjoint(map(type, state))
        return getsizeof(state) + sum(map(weigh, state) if nested else map(getsizeof, state))
    return getsizeof(state)


def _weigh_all(states: Sequence[object]) -> int:
    """As `weigh`, for many; in native code where they nest one level at most."""
    if _WEIGHED.isdisjoint(map(type, states)):
        return sum(map(getsizeof, states))
    if _ONLY_TUPLES.issuperset(map(type, states)):
        parts = list(chain.from_iterable(cast(Sequence[tuple[object, ...]], states)))
        if _WEIGHED.isdisjoint(map(type, parts)):
            return sum(map(getsizeof, states)) + sum(map(getsizeof, parts))
    return sum(map(weigh, states))


def runs(bins: npt.NDArray[np.int64]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """The places of items in the order of their bins, else as they are; and of each bin where its
    own begin and end among these.

    >>> runs(np.array([4, 3, 4]))
    ([1, 0, 2], [(3, 0, 1), (4, 1, 3)])
    """
    order = np.argsort(bins.astype(np.uint16), kind="stable")  # a radix sort
    sorted_bins = bins[order]
    ends = [*(np.flatnonzero(np.diff(sorted_bins)) + 1).tolist(), len(bins)]
    starts = [0, *ends[:-1]]
    return order.tolist(), list(zip(sorted_bins[starts].tolist(), starts, ends, strict=True))


def pick(items: Sequence[T], places: list[int]) -> list[T]:
    """The items at some places, in native code.

    >>> pick(["a", "b", "c"], [2, 0])
    ['c', 'a']
    """
    if len(places) < 2:
        return [items[place] for place in places]
    return list(itemgetter(*places)(items))
