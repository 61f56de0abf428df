"""The states written since they were last spilled, in memory: a table per operator.

Invariant: `size` is the sum of the weights of what is held, and at least what it takes in memory as
far as Python tells. One memtable serves all operators of a process, so that they share one bound;
what is spilled first is the oldest bin's oldest keys. A key's bin follows from the key, so one
dictionary holds the states of all bins, and each bin knows its keys. Cost: a batch is written in
native code (about 0.3 us a key), a key's first write and its spill cost about a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from operator import is_
from sys import getsizeof
from typing import Final, Protocol, TypeVar, cast

from schemas.errors import MeanderError
from state.codec import Sealed, encoded

ENTRY_BYTES: Final = 160
"""What a key and its slots in two dictionaries take besides the key's bytes."""

_NESTING: Final[frozenset[type]] = frozenset({tuple, frozenset})
_WEIGHED: Final[frozenset[type]] = frozenset({tuple, frozenset, Sealed})
_ONLY_TUPLES: Final[frozenset[type]] = frozenset({tuple})
ABSENT: Final = object()
"""In place of the state of a key that is not held."""
BIN_BYTES: Final = 2
T = TypeVar("T", bound="Held")


class Held(Protocol):
    """The states of one operator's keys, and the keys of each of its bins."""

    prefix: bytes
    """Of its keys in the database; a bin's two bytes follow."""
    bins: dict[int, dict[bytes, None]]

    def take(self, keys: Sequence[bytes]) -> list[object]:
        """The sealed states of some keys, all of which are held."""

    def remove(self, keys: Sequence[bytes]) -> int:
        """Drop the states of some keys, all of which are held; how many bytes they took."""


class Table:
    """Sealed states of any kind, by their keys."""

    __slots__ = ("bins", "prefix", "states")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.states: dict[bytes, object] = {}
        self.bins: dict[int, dict[bytes, None]] = {}

    def get(self, keys: Sequence[bytes]) -> list[object]:
        """The sealed state of each key, `ABSENT` for those that are not held."""
        return list(map(self.states.get, keys, repeat(ABSENT)))

    def take(self, keys: Sequence[bytes]) -> list[object]:
        """The sealed states of some keys, all of which are held."""
        return list(map(self.states.__getitem__, keys))

    def remove(self, keys: Sequence[bytes]) -> int:
        """Drop the states of some keys, all of which are held; how many bytes they took."""
        return _weigh_all(list(map(self.states.pop, keys)))


class Memtable:
    r"""Tables within one bound.

    >>> memtable = Memtable()
    >>> table = memtable.add(Table(b"a/"))
    >>> memtable.write(table, [7, 7, 8], [b"2", b"1", b"3"], [20, 10, 30])
    >>> memtable.entries(table, 7)
    [(b'1', 10), (b'2', 20)]
    >>> group, spilled = memtable.spill(2)
    >>> group, [key for key, _ in spilled], memtable.entries(table, 7)
    (b'a/\x00\x07', [b'a/\x00\x072', b'a/\x00\x071'], [])
    """

    def __init__(self) -> None:
        self.tables: dict[bytes, Held] = {}
        self.size = 0
        """Bytes, estimated."""

    def add(self, table: T) -> T:
        """One more table. Raises MeanderError where another has its prefix."""
        if self.tables.setdefault(table.prefix, table) is not table:
            raise MeanderError(f"table {table.prefix!r}", "it is open already", "open it once")
        return table

    def write(
        self, table: Table, bins: Sequence[int], keys: Sequence[bytes], states: Sequence[object]
    ) -> None:
        """Put the sealed states of some keys, all different, each with its bin."""
        before = table.get(keys)
        table.states.update(zip(keys, states, strict=True))
        self.settle(table, dict(zip(keys, bins, strict=True)).__getitem__, keys, before)

    def settle(
        self,
        table: Table,
        bin_of: Callable[[bytes], int],
        keys: Sequence[bytes],
        before: Sequence[object],
    ) -> None:
        """Account for what has become of some keys, all different, whose states, as of `Table.get`,
        were `before`."""
        after = table.get(keys)
        if lacking(before):
            states = zip(keys, before, after, strict=True)
            new = [k for k, was, now in states if was is ABSENT and now is not ABSENT]
            self.note(table, bin_of, new)
            before = [state for state in before if state is not ABSENT]
            after = [state for state in after if state is not ABSENT]
        self.size += _weigh_all(after) - _weigh_all(before)

    def note(self, table: Held, bin_of: Callable[[bytes], int], keys: Sequence[bytes]) -> None:
        """Some keys, all different, are held from now on; their states have yet to be weighed."""
        for key in keys:
            table.bins.setdefault(bin_of(key), {})[key] = None
        self.size += ENTRY_BYTES * len(keys) + sum(map(len, keys))

    def entries(self, table: Held, bin: int) -> list[tuple[bytes, object]]:
        """The keys and sealed states of a bin, in key order, as they are now."""
        keys = sorted(table.bins.get(bin, ()))
        return list(zip(keys, table.take(keys), strict=True))

    def forget(self, table: Held, bin: int, keys: Iterable[bytes]) -> None:
        """Drop some keys of a bin, held or not."""
        held = table.bins.get(bin, {})
        gone = [key for key in keys if held.pop(key, ABSENT) is None]
        self.size -= table.remove(gone) + sum(map(len, gone)) + ENTRY_BYTES * len(gone)
        if not held:
            table.bins.pop(bin, None)

    def drop(self, table: Held, bin: int) -> None:
        """Drop all keys of a bin."""
        self.forget(table, bin, list(table.bins.get(bin, ())))

    def spill(self, count: int) -> tuple[bytes, Iterator[tuple[bytes, bytes]]]:
        """Take out up to `count` keys of one bin: the prefix of their database keys, and these with
        the encoded states."""
        table = next(table for table in self.tables.values() if table.bins)
        bin, held = next(iter(table.bins.items()))
        keys = list(islice(held, count))
        states = table.take(keys)
        self.forget(table, bin, keys)
        group = table.prefix + bin.to_bytes(BIN_BYTES, "big")
        oldest = zip(keys, states, strict=True)
        return group, ((group + key, encoded(state)) for key, state in oldest)


def lacking(states: Sequence[object]) -> bool:
    """Whether any of these, as of `Table.get`, is not held."""
    return any(map(is_, states, repeat(ABSENT)))


def _weigh_all(states: Sequence[object]) -> int:
    """As `weigh`, for many; in native code where they nest one level at most."""
    if _WEIGHED.isdisjoint(map(type, states)):
        return sum(map(getsizeof, states))
    if _ONLY_TUPLES.issuperset(map(type, states)):
        parts = list(chain.from_iterable(cast(Sequence[tuple[object, ...]], states)))
        if _WEIGHED.isdisjoint(map(type, parts)):
            return sum(map(getsizeof, states)) + sum(map(getsizeof, parts))
    return sum(map(weigh, states))


def weigh(state: object) -> int:
    """Bytes that a sealed state takes in memory, what it shares with others counted too."""
    if type(state) is Sealed:
        return getsizeof(state) + getsizeof(state.data)
    if type(state) is tuple or type(state) is frozenset:
        nested = not _NESTING.isdisjoint(map(type, state))
        return getsizeof(state) + sum(map(weigh, state) if nested else map(getsizeof, state))
    return getsizeof(state)
