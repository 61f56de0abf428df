"""Expiring cells: the states of a table, each with its due time.

A state expires at its due time, a logical time. The due time lies in the entry of the key: before
the state's bytes on disk and on the state topic, in an array in memory. So it spills and moves with
the state, and a new due time leaves no trail. Bytes without a due time hold a state that was
written before the operator had one; it never expires. Cost: 8 bytes per slot, 10 per entry, and an
encoding where a caller gets a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from meander.state.encoding.cells import ABSENT, INITIAL_SLOTS, Cells, Slots
from meander.state.encoding.codec import Sealed, encode_sealed
from meander.state.times.time import END_TIME

NEVER: Final = END_TIME
"""The due time of a state that does not expire."""
_MARK: Final = b"\xc1\xc1"
"""The first bytes of a state with a due time. No plain value and no upgraded state begins so."""
_BYTES: Final = 8
"""The bytes of a due time."""
_HEAD: Final = len(_MARK) + _BYTES


def codec_name(codec: str) -> str:
    """Return the name of the codec of states with due times, given that of the states."""
    return f"{codec}+ttl"


def with_due(due: int, state: bytes) -> bytes:
    """Return the bytes of a state with its due time.

    >>> split_due(with_due(7, b"state")), split_due(b"state") == (NEVER, b"state")
    ((7, b'state'), True)
    """
    return _MARK + due.to_bytes(_BYTES, "big") + state


def split_due(data: bytes) -> tuple[int, bytes]:
    """Return the due time of a state's bytes, and the bytes of the state alone."""
    if not data.startswith(_MARK):
        return NEVER, data
    return int.from_bytes(data[len(_MARK) : _HEAD], "big"), data[_HEAD:]


class ExpiringCells:
    r"""Cells that hold other cells' states with due times.

    >>> from meander.state.encoding.cells import SealedCells
    >>> cells = ExpiringCells(SealedCells())
    >>> cells.load(np.array([3]), [with_due(7, encode_sealed("a"))])
    >>> int(cells.due[3]), encode_sealed(cells.get(np.array([3]))[0]) == with_due(7, b"\xa1a")
    (7, True)
    """

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        """The states without due times."""
        self.due: npt.NDArray[np.int64] = np.full(INITIAL_SLOTS, NEVER)
        """The due time of each slot; `NEVER` for a free slot."""
        self.cell_bytes = cells.cell_bytes + self.due.itemsize

    def __len__(self) -> int:
        return len(self.due)

    def grow(self) -> None:
        """Double the number of slots."""
        self.resize(np.arange(len(self)), 2 * len(self))

    def resize(self, slots: Slots, size: int) -> None:
        """Resize to `size` slots and move the states of some slots to the first of them."""
        self.cells.resize(slots, size)
        self.due = np.concatenate([self.due[slots], np.full(size - len(slots), NEVER)])

    def get(self, slots: Slots) -> list[object]:
        """Return the states in some slots, sealed with their due times. Each slot must hold
        one."""
        states = map(encode_sealed, self.cells.get(slots))
        return list(map(Sealed, map(with_due, self.due[slots].tolist(), states)))

    def has(self, slots: Slots) -> list[bool]:
        """Return for each slot whether it holds a state."""
        return self.cells.has(slots)

    def get_or_absent(self, slots: Slots) -> list[object]:
        """Return the state in each slot, sealed with its due time, or `ABSENT`."""
        states: list[object] = [ABSENT] * len(slots)
        there = np.flatnonzero(np.array(self.has(slots), np.bool_))
        for row, state in zip(there.tolist(), self.get(slots[there]), strict=True):
            states[row] = state
        return states

    def load(self, slots: Slots, states: Sequence[bytes]) -> None:
        """Set encoded states with due times in different slots."""
        pairs = list(map(split_due, states))
        self.cells.load(slots, [state for _, state in pairs])
        self.due[slots] = [due for due, _ in pairs]

    def clear(self, slots: Slots) -> None:
        """Remove the states in some slots."""
        self.cells.clear(slots)
        self.due[slots] = NEVER

    def weigh(self, slots: Slots) -> int:
        """Return the bytes of the states in some slots; count a repeated slot once."""
        return self.cells.weigh(slots)
