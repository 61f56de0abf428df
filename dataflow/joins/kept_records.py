"""The records of one key that wait for others: two sides, each in the order of own times.

The state of the key holds a side of few records. More of them lie in blocks, each an entry of its
own, and the state lists the first own times and numbers of the blocks. Guarantees the order of own
times, then of arrival. Invariants: a block has `ROWS` records at most, and `BYTES` unless it has
one record; only a side of one block is part of the state. Cost per record: one block, and one pass
over the list of blocks, which is `ROWS` / 2 times shorter than that of the records, or less.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from meander.schemas.errors import MeanderError
from meander.state.encoding.timers import ROW

ROWS: Final = 64
"""The most records of a block."""
BYTES: Final = 32 << 10
"""The most bytes of the values of a block with several records."""
MAX_BLOCKS: Final = 1 << 13
"""The most blocks of a side. So both sides together have less records than an input may have
outputs."""
INLINE: Final = 0
"""The number of the block that is part of the state of its key."""
_BLOCK: Final = ROW + b"j"
_NUMBER_BYTES: Final = 5

ReadBlock = Callable[[int], Any]
"""Returns the stored form of a block, by its number."""


def block_key(key: bytes, number: int) -> bytes:
    r"""Return the key of the entry of a block. It belongs to the bin of the key.

    >>> block_key(b"\xa1k", 7)
    b'\xc1j\xa1k\x00\x00\x00\x00\x07'
    """
    return _BLOCK + key + number.to_bytes(_NUMBER_BYTES, "big")


class TooManyRecordsError(MeanderError):
    """An error for a record that finds too many of its key and side that wait."""

    def __init__(self) -> None:
        super().__init__(
            "a key of a join",
            f"{MAX_BLOCKS:,} blocks of up to {ROWS} of its records wait for others",
            "join by a finer key, or within a shorter time",
        )


class Block:
    """A block of records: their own times, whether anything has paired with them, and their encoded
    values."""

    __slots__ = "changed", "paired", "times", "values"

    def __init__(self, times: list[int], paired: list[bool], values: list[bytes]) -> None:
        self.times, self.paired, self.values = times, paired, values
        self.changed = False

    @property
    def stored(self) -> Sequence[object]:
        """Return the stored form."""
        return [self.times, self.paired, self.values]

    @property
    def is_full(self) -> bool:
        """Return whether it has more than it may have."""
        return len(self.times) > ROWS or sum(map(len, self.values)) > BYTES

    def insert(self, place: int, time: int, paired: bool, value: bytes) -> None:
        """Insert a record."""
        self.times.insert(place, time)
        self.paired.insert(place, paired)
        self.values.insert(place, value)
        self.changed = True

    def pop_from(self, place: int) -> Block:
        """Remove the records from a place on, and return them as a block."""
        rest = Block(self.times[place:], self.paired[place:], self.values[place:])
        self.drop(slice(place, None))
        return rest

    def drop(self, places: slice) -> None:
        """Remove records."""
        del self.times[places], self.paired[places], self.values[places]
        self.changed = True


class Side:
    """The records of a side of one key."""

    __slots__ = "_blocks", "_firsts", "_number", "_numbers", "_read", "removed"

    def __init__(self, stored: Any, read: ReadBlock, number: Callable[[], int]) -> None:  # noqa: ANN401 (as stored)
        """`stored` is the stored form, which the side may change. `number` returns a number that no
        block of the key has."""
        self._read, self._number = read, number
        self.removed = list[int]()
        """The numbers of blocks that are stored and no longer needed."""
        self._firsts = list[int]()
        self._numbers = list[int]()
        self._blocks = list[Block | None]()
        if len(stored) == _LISTS:
            self._firsts, self._numbers = stored
            self._blocks = [None] * len(self._numbers)
        elif stored[0]:
            self._add(0, INLINE, Block(*stored))

    @property
    def stored(self) -> Sequence[object]:
        """Return the stored form: that of its only block, or a list of blocks."""
        if not self._numbers:
            return _EMPTY
        if self._numbers[0] == INLINE:
            return self._block(0).stored
        return [self._firsts, self._numbers]

    @property
    def first(self) -> int | None:
        """Return the least own time, or None without records."""
        return self._firsts[0] if self._firsts else None

    @property
    def is_full(self) -> bool:
        """Return whether it may hold no more records."""
        return len(self._numbers) >= MAX_BLOCKS

    def between(self, first: int, last: int) -> Iterator[tuple[Block, int]]:
        """Yield the records with own times from the first to the last one: block and place."""
        at = max(bisect_left(self._firsts, first) - 1, 0)
        while at < len(self._firsts) and self._firsts[at] <= last:
            block = self._block(at)
            times = block.times
            for place in range(bisect_left(times, first), bisect_right(times, last)):
                yield block, place
            at += 1

    def insert(self, time: int, paired: bool, value: bytes) -> None:
        """Insert a record behind those with equal own times."""
        if not self._firsts:
            self._add(0, INLINE, Block([], [], []), time)
        at = max(bisect_right(self._firsts, time) - 1, 0)
        block = self._block(at)
        place = bisect_right(block.times, time)
        block.insert(place, time, paired, value)
        self._firsts[at] = block.times[0]
        if block.is_full:
            # Most records come in the order of their times, and full blocks stay as they are then.
            is_last = at + 1 == len(self._firsts) and place + 1 == len(block.times)
            self._divide(at, place if is_last else len(block.times) // 2)

    def drop_until(self, last: int) -> bool:
        """Remove the records with own times up to the last one. Return whether there were any."""
        dropped = False
        while self._firsts and self._firsts[0] <= last:
            dropped, block = True, self._block(0)
            block.drop(slice(bisect_right(block.times, last)))
            if block.times:
                self._firsts[0] = block.times[0]
                break
            if self._numbers[0] != INLINE:
                self.removed.append(self._numbers[0])
            del self._firsts[0], self._numbers[0], self._blocks[0]
        return dropped

    def changed(self) -> Iterator[tuple[int, Block]]:
        """Yield the changed blocks that are entries of their own, with their numbers."""
        for number, block in zip(self._numbers, self._blocks, strict=True):
            if number != INLINE and block is not None and block.changed:
                yield number, block

    def _add(self, at: int, number: int, block: Block, first: int | None = None) -> None:
        self._firsts.insert(at, block.times[0] if first is None else first)
        self._numbers.insert(at, number)
        self._blocks.insert(at, block)

    def _block(self, at: int) -> Block:
        block = self._blocks[at]
        if block is None:
            block = self._blocks[at] = Block(*self._read(self._numbers[at]))
        return block

    def _divide(self, at: int, place: int) -> None:
        """Divide a block, and make both parts entries of their own."""
        block = self._block(at)
        if self._numbers[at] == INLINE:
            self._numbers[at] = self._number()
        if 0 < place < len(block.times):
            rest = block.pop_from(place)
            rest.changed = True
            self._add(at + 1, self._number(), rest)


_EMPTY: Final[Sequence[object]] = ([], [], [])
_LISTS: Final = 2
"""The parts of the stored form of a side in blocks; a side of one block has those of the block."""


class KeptRecords:
    """The records of one key that wait for others.

    >>> kept = KeptRecords(None, read={}.__getitem__)
    >>> kept.sides[0].insert(7, False, b"x"); kept.sides[0].insert(5, True, b"y")
    >>> [(block.times[i], block.paired[i]) for block, i in kept.sides[0].between(0, 9)]
    [(5, True), (7, False)]
    >>> kept.sides[0].drop_until(7), kept.stored
    (True, None)
    """

    __slots__ = "_last", "changed", "sides"

    def __init__(self, stored: Any, read: ReadBlock) -> None:  # noqa: ANN401 (as stored)
        """`stored` is None for a key without records. `read` reads its blocks."""
        self._last: int
        self._last, left, right = (INLINE, _EMPTY, _EMPTY) if stored is None else stored
        number = self._next_number
        self.sides = Side(left, read, number), Side(right, read, number)
        self.changed = False

    @property
    def stored(self) -> Sequence[object] | None:
        """Return the stored form, None without records."""
        left, right = self.sides
        if left.first is None and right.first is None:
            return None
        return [self._last, left.stored, right.stored]

    def _next_number(self) -> int:
        self._last += 1
        return self._last
