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
from operator import attrgetter
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
"""The number of a block that is part of the state of its key."""
_BLOCK: Final = ROW + b"j"
_NUMBER_BYTES: Final = 4
_first: Final = attrgetter("first")

ReadBlock = Callable[[int, int], Any]
"""Returns the stored form of a block, by the number of its side and its own number."""


def block_key(key: bytes, side: int, number: int) -> bytes:
    r"""Return the key of the entry of a block. It belongs to the bin of the key.

    >>> block_key(b"\xa1k", 1, 7)
    b'\xc1j\xa1k\x01\x00\x00\x00\x07'
    """
    return b"%b%b%c%b" % (_BLOCK, key, side, number.to_bytes(_NUMBER_BYTES, "big"))


def key_of_kept(entry: bytes) -> bytes | None:
    r"""Return the encoded key whose records lie in an entry, the state of the key or a block of it;
    None for another entry.

    >>> key_of_kept(block_key(b"\xa1k", 1, 7)), key_of_kept(b"\xa1k"), key_of_kept(ROW + b"t...")
    (b'\xa1k', b'\xa1k', None)
    """
    if entry.startswith(_BLOCK):
        return entry[len(_BLOCK) : -1 - _NUMBER_BYTES]
    return None if entry.startswith(ROW) else entry


def kept_in(entry: bytes, stored: Any) -> Iterator[tuple[int, int, bytes]]:  # noqa: ANN401 (as stored)
    """Yield the records that lie in the state of a key or in a block: the number of the side, the
    own time and the encoded value."""
    is_block = entry.startswith(_BLOCK)
    sides = [(entry[-1 - _NUMBER_BYTES], stored)] if is_block else enumerate(stored)
    for side, block in sides:
        if len(block) != _LISTS:
            yield from ((side, time, value) for time, _, value in zip(*block, strict=True))


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
    values. A block that has not been read has only a number and its first own time."""

    __slots__ = "changed", "first", "number", "paired", "size", "times", "values"

    def __init__(
        self, number: int, first: int, times: list[int], paired: list[bool], values: list[bytes]
    ) -> None:
        self.number, self.first, self.changed = number, first, False
        self.times, self.paired, self.values = times, paired, values
        self.size = sum(map(len, values))

    @property
    def stored(self) -> Sequence[object]:
        """Return the stored form."""
        return [self.times, self.paired, self.values]

    @property
    def is_full(self) -> bool:
        """Return whether it has more than it may have."""
        return len(self.times) > ROWS or self.size > BYTES

    def insert(self, place: int, time: int, paired: bool, value: bytes) -> None:
        """Insert a record."""
        self.times.insert(place, time)
        self.paired.insert(place, paired)
        self.values.insert(place, value)
        self.size += len(value)
        self.first, self.changed = self.times[0], True

    def pop_from(self, place: int, number: int) -> Block:
        """Remove the records from a place on, and return them as a block of a number."""
        times, paired, values = self.times[place:], self.paired[place:], self.values[place:]
        rest = Block(number, times[0], times, paired, values)
        rest.changed = True
        self.drop(slice(place, None))
        return rest

    def drop(self, places: slice) -> None:
        """Remove some records, but not all."""
        del self.times[places], self.paired[places], self.values[places]
        self.size = sum(map(len, self.values))
        self.first, self.changed = self.times[0], True


class KeptSide:
    """The records of a side of one key."""

    __slots__ = "_blocks", "_number", "_read", "removed"

    def __init__(self, number: int, stored: Any, read: ReadBlock) -> None:  # noqa: ANN401 (as stored)
        """`stored` is the stored form, which the side may change."""
        self._number, self._read = number, read
        self.removed: Sequence[int] = ()
        """The numbers of stored blocks that it has no longer."""
        if len(stored) == _LISTS:
            self._blocks = [Block(n, first, [], [], []) for first, n in zip(*stored, strict=True)]
        elif stored[0]:
            self._blocks = [Block(INLINE, stored[0][0], *stored)]
        else:
            self._blocks = list[Block]()

    @property
    def stored(self) -> Sequence[object]:
        """Return the stored form: that of its only block, or the first times and the numbers of its
        blocks."""
        blocks = self._blocks
        if not blocks:
            return _EMPTY
        if blocks[0].number == INLINE:
            return blocks[0].stored
        return [[one.first for one in blocks], [one.number for one in blocks]]

    @property
    def first(self) -> int | None:
        """Return the least own time, or None without records."""
        return self._blocks[0].first if self._blocks else None

    @property
    def is_full(self) -> bool:
        """Return whether it may hold no more records."""
        return len(self._blocks) >= MAX_BLOCKS

    def between(self, first: int, last: int) -> Iterator[tuple[Block, int]]:
        """Yield the records with own times from the first to the last one: block and place."""
        at = max(bisect_left(self._blocks, first, key=_first) - 1, 0)
        while at < len(self._blocks) and self._blocks[at].first <= last:
            block = self._block(at)
            times = block.times
            for place in range(bisect_left(times, first), bisect_right(times, last)):
                yield block, place
            at += 1

    def insert(self, time: int, paired: bool, value: bytes) -> None:
        """Insert a record behind those with equal own times."""
        if not self._blocks:
            self._blocks.append(Block(INLINE, time, [], [], []))
        at = max(bisect_right(self._blocks, time, key=_first) - 1, 0)
        block = self._block(at)
        place = bisect_right(block.times, time)
        block.insert(place, time, paired, value)
        if block.is_full:
            # Most records come in the order of their times, and full blocks stay as they are then.
            is_last = at + 1 == len(self._blocks) and place + 1 == len(block.times)
            self._divide(at, place if is_last else len(block.times) // 2)

    def drop_until(self, last: int) -> bool:
        """Remove the records with own times up to the last one. Return whether there were any."""
        dropped = False
        while self._blocks and self._blocks[0].first <= last:
            dropped, block = True, self._block(0)
            count = bisect_right(block.times, last)
            if count < len(block.times):
                block.drop(slice(count))
                break
            if block.number != INLINE:
                self.removed = [*self.removed, block.number]
            del self._blocks[0]
        return dropped

    def changed(self) -> Iterator[Block]:
        """Yield the changed blocks that are entries of their own."""
        if self._blocks and self._blocks[0].number != INLINE:
            yield from (block for block in self._blocks if block.changed)

    def _block(self, at: int) -> Block:
        """Return a block with its records."""
        block = self._blocks[at]
        if not block.times and block.number != INLINE:
            stored = self._read(self._number, block.number)
            block = self._blocks[at] = Block(block.number, block.first, *stored)
        return block

    def _divide(self, at: int, place: int) -> None:
        """Divide a block, and make both parts entries of their own."""
        block = self._block(at)
        last = max(one.number for one in self._blocks)
        if block.number == INLINE:
            block.number = last = last + 1
        if 0 < place < len(block.times):
            self._blocks.insert(at + 1, block.pop_from(place, last + 1))


_EMPTY: Final[Sequence[Sequence[object]]] = ([], [], [])
_LISTS: Final = 2
"""The parts of the stored form of a side in blocks; a side of one block has those of the block."""


class KeptRecords:
    """The records of one key that wait for others.

    >>> kept = KeptRecords(None, read=lambda side, number: None)
    >>> kept.sides[0].insert(7, False, b"x"); kept.sides[0].insert(5, True, b"y")
    >>> [(block.times[i], block.paired[i]) for block, i in kept.sides[0].between(0, 9)]
    [(5, True), (7, False)]
    >>> kept.sides[0].drop_until(7), kept.stored
    (True, None)
    """

    __slots__ = "changed", "sides"

    def __init__(self, stored: Any, read: ReadBlock) -> None:  # noqa: ANN401 (as stored)
        """`stored` is None for a key without records. `read` reads its blocks."""
        left, right = (_EMPTY, _EMPTY) if stored is None else stored
        self.sides = KeptSide(0, left, read), KeptSide(1, right, read)
        self.changed = False

    @property
    def stored(self) -> Sequence[object] | None:
        """Return the stored form, None without records."""
        left, right = self.sides
        if left.first is None and right.first is None:
            return None
        return [left.stored, right.stored]
