"""Cells: the sealed states of a table in memory, one object per slot.

Guarantees that the weight of a state is at least its size in memory, as far as Python reports it.
Invariant: a free slot holds `ABSENT`. Cost: native code weighs states that nest one level at most.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from operator import itemgetter
from sys import getsizeof
from typing import Any, Final, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from meander.state.encoding.codec import ATOMS, Sealed, SealedCopy
from meander.state.encoding.named_types import in_use, shape_of_all
from meander.state.encoding.record import Record

T = TypeVar("T")
Slots = npt.NDArray[np.int64]
INITIAL_SLOTS: Final = 64
"""The number of slots at the start."""
ABSENT: Final = object()
"""A placeholder for a key without a state."""
EncodedState = bytes | None
"""The bytes of a key's state; None for a key without a state, such as a forgotten one."""

_NESTING: Final[frozenset[type]] = frozenset({tuple, frozenset, Record})
_SIMPLE: Final[frozenset[type]] = ATOMS | {type(ABSENT)}
_FLAT: Final[frozenset[type]] = _SIMPLE | {tuple}


def without_none(states: Sequence[EncodedState]) -> tuple[list[bytes], list[int]]:
    """Return states with empty bytes for each forgotten key, and the places of forgotten keys.

    >>> without_none([b"a", None]), with_none([b"a", b""], [1])
    (([b'a', b''], [1]), [b'a', None])
    """
    forgotten = [place for place, state in enumerate(states) if state is None]
    return [state or b"" for state in states], forgotten


def with_none(states: Sequence[bytes], forgotten: Sequence[int]) -> list[EncodedState]:
    """Undo `without_none`."""
    found: list[EncodedState] = [*states]
    for place in forgotten:
        found[place] = None
    return found


def bytes_of(states: Sequence[EncodedState]) -> int:
    """Return the bytes of encoded states.

    >>> bytes_of([b"ab", None])
    2
    """
    return sum(len(state) for state in states if state is not None)


class Cells(Protocol):
    """Cells that hold states by slot."""

    cell_bytes: int
    """The bytes of a slot that `weigh` does not count."""

    def __len__(self) -> int:
        """Return the number of slots."""

    def grow(self) -> None:
        """Double the number of slots."""

    def resize(self, slots: Slots, size: int) -> None:
        """Resize to `size` slots and move the states of some slots to the first of them."""

    def get(self, slots: Slots) -> list[object]:
        """Return the sealed states in some slots. Each slot must hold one."""

    def has(self, slots: Slots) -> list[bool]:
        """Return for each slot whether it holds a state."""

    def get_or_absent(self, slots: Slots) -> list[object]:
        """Return the sealed state in each slot, or `ABSENT`."""

    def load(self, slots: Slots, states: Sequence[bytes]) -> None:
        """Set encoded states in different slots."""

    def clear(self, slots: Slots) -> None:
        """Remove the states in some slots."""

    def weigh(self, slots: Slots) -> int:
        """Return the bytes of the states in some slots; count a repeated slot once."""


class SealedCells:
    """Cells that hold sealed states of any kind.

    >>> cells = SealedCells()
    >>> cells.states[3] = (7, 2.5)
    >>> cells.has(np.array([2, 3])), cells.get(np.array([3]))
    ([False, True], [(7, 2.5)])
    """

    cell_bytes = 8
    """The bytes of a pointer."""

    def __init__(self) -> None:
        self.states: list[object] = [ABSENT] * INITIAL_SLOTS

    def __len__(self) -> int:
        return len(self.states)

    def grow(self) -> None:
        """Double the number of slots."""
        self.states += [ABSENT] * len(self.states)

    def resize(self, slots: Slots, size: int) -> None:
        """Resize to `size` slots and move the states of some slots to the first of them."""
        self.states = [*self.get(slots), *[ABSENT] * (size - len(slots))]

    def get(self, slots: Slots) -> list[object]:
        """Return the sealed states in some slots. Each slot must hold one."""
        return pick(self.states, slots.tolist())

    def has(self, slots: Slots) -> list[bool]:
        """Return for each slot whether it holds a state."""
        return [self.states[slot] is not ABSENT for slot in slots.tolist()]

    def get_or_absent(self, slots: Slots) -> list[object]:
        """Return the sealed state in each slot, or `ABSENT`."""
        return self.get(slots)

    def load(self, slots: Slots, states: Sequence[bytes]) -> None:
        """Set encoded states in different slots."""
        for slot, data in zip(slots.tolist(), states, strict=True):
            self.states[slot] = Sealed(data)

    def clear(self, slots: Slots) -> None:
        """Remove the states in some slots."""
        for slot in slots.tolist():
            self.states[slot] = ABSENT

    def weigh(self, slots: Slots) -> int:
        """Return the bytes of the states in some slots; count a repeated slot once."""
        return _weigh_all(pick(self.states, list(set(slots.tolist()))))


def weigh(state: Any) -> int:  # noqa: ANN401 (it asks for the type)
    """Return the bytes of a sealed state in memory, with the objects that it shares."""
    kind = type(state)
    if kind in _NESTING:
        return getsizeof(state) + _weigh_parts(state)
    if kind is Sealed:
        return getsizeof(state) + getsizeof(state.data)
    if kind is SealedCopy:
        # The same state is weighed before its next change.
        state.weight = state.weight or getsizeof(state) + weigh(state.value)
        return cast(int, state.weight)
    shape = in_use().shapes.get(kind)
    if shape is None:
        return getsizeof(state)
    attributes = getsizeof(vars(state)) if shape.has_more is not None else 0
    return getsizeof(state) + attributes + _weigh_parts(shape.values(state))


def _weigh_parts(parts: Collection[object]) -> int:
    if ATOMS.issuperset(map(type, parts)):
        return sum(map(getsizeof, parts))
    shape = shape_of_all(parts)
    if shape is None or shape.has_more is not None:
        return sum(map(weigh, parts))
    return sum(map(getsizeof, parts)) + _weigh_parts([*chain(*map(shape.values, parts))])


def _weigh_all(states: Sequence[object]) -> int:
    """Return the sum of `weigh` over states, in native code where they nest one level at most."""
    kinds = {*map(type, states)}
    if kinds <= _FLAT:
        tuples = (state for state in states if type(state) is tuple) if tuple in kinds else ()
        parts = list(chain.from_iterable(tuples))
        if _SIMPLE.issuperset(map(type, parts)):
            return sum(map(getsizeof, states)) + sum(map(getsizeof, parts))
    return sum(map(weigh, states))


def group_by_bin(bins: npt.NDArray[np.int64]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the indices of items, stably sorted by bin, and for each bin the range of its items
    there.

    >>> group_by_bin(np.array([4, 3, 4]))
    ([1, 0, 2], [(3, 0, 1), (4, 1, 3)])
    """
    order = np.argsort(bins.astype(np.uint16), kind="stable")  # a radix sort
    sorted_bins = bins[order]
    ends = [*(np.flatnonzero(np.diff(sorted_bins)) + 1).tolist(), len(bins)]
    starts = [0, *ends[:-1]]
    return order.tolist(), list(zip(sorted_bins[starts].tolist(), starts, ends, strict=True))


def pick(items: Sequence[T], indices: list[int]) -> list[T]:
    """Return the items at some indices, in native code.

    >>> pick(["a", "b", "c"], [2, 0])
    ['c', 'a']
    """
    if len(indices) < 2:
        return [items[index] for index in indices]
    return list(itemgetter(*indices)(items))
