"""The states written since they were last spilled, in memory, per group of keys (one bin).

Invariant: `size` is the sum of the weights of what is held, and at least what it takes in memory as
far as Python tells. One memtable serves all operators of a process, so that they share one bound;
what is spilled first is the oldest group's oldest keys. Cost: a write is four look-ups and a weigh
(about 0.6 us), a spill takes time in proportion to what it takes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from sys import getsizeof
from typing import Final

from state.codec import Sealed, encoded

ENTRY_BYTES: Final = 160
"""What a key and its slots in two dictionaries take besides the key's bytes."""

_NESTING: Final[frozenset[type]] = frozenset({tuple, frozenset})


class Table:
    """The sealed states and the weights, bytes, of one group's keys."""

    __slots__ = ("states", "weights")

    def __init__(self) -> None:
        self.states: dict[bytes, object] = {}
        self.weights: dict[bytes, int] = {}


class Memtable:
    """Groups of keys, each named by the prefix that its keys have in the database.

    >>> memtable = Memtable()
    >>> memtable.write([b"a/", b"a/", b"b/"], [b"2", b"1", b"3"], [20, 10, 30])
    >>> memtable.entries(b"a/")
    [(b'1', 10), (b'2', 20)]
    >>> [key for key, _ in memtable.spill(2)], memtable.entries(b"a/")
    ([b'a/2', b'a/1'], [])
    """

    def __init__(self) -> None:
        self.tables: dict[bytes, Table] = {}
        self.size = 0
        """Bytes, estimated."""

    def write(
        self, groups: Iterable[bytes], keys: Sequence[bytes], states: Sequence[object]
    ) -> None:
        """Put the sealed states of some keys, each with its group; the later one wins."""
        tables, size = self.tables, self.size
        for group, key, state in zip(groups, keys, states, strict=True):
            table = tables.get(group)
            if table is None:
                table = tables[group] = Table()
            weight = weigh(state) + len(key) + ENTRY_BYTES
            size += weight - table.weights.get(key, 0)
            table.weights[key] = weight
            table.states[key] = state
        self.size = size

    def entries(self, group: bytes) -> list[tuple[bytes, object]]:
        """The keys and sealed states of a group, in key order, as they are now."""
        table = self.tables.get(group)
        return sorted(table.states.items(), key=itemgetter(0)) if table else []

    def forget(self, group: bytes, keys: Iterable[bytes]) -> None:
        """Drop some keys of a group, held or not."""
        table = self.tables.get(group)
        if table is not None:
            for key in keys:
                self.size -= table.weights.pop(key, 0)
                table.states.pop(key, None)
            if not table.states:
                del self.tables[group]

    def drop(self, group: bytes) -> None:
        """Drop all keys of a group."""
        table = self.tables.pop(group, None)
        if table is not None:
            self.size -= sum(table.weights.values())

    def spill(self, count: int) -> Iterator[tuple[bytes, bytes]]:
        """Take out up to `count` keys of one group: database key and encoded state."""
        group, table = next(iter(self.tables.items()))
        oldest = list(islice(table.states.items(), count))
        self.forget(group, [key for key, _ in oldest])
        return ((group + key, encoded(state)) for key, state in oldest)


def weigh(state: object) -> int:
    """Bytes that a sealed state takes in memory, what it shares with others counted too."""
    if type(state) is Sealed:
        return getsizeof(state) + getsizeof(state.data)
    if type(state) is tuple or type(state) is frozenset:
        nested = not _NESTING.isdisjoint(map(type, state))
        return getsizeof(state) + sum(map(weigh, state) if nested else map(getsizeof, state))
    return getsizeof(state)
