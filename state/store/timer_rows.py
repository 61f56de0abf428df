"""The far timers and alarms of one operator, as rows of its store (`state/encoding/timers.py`).

So far timers spill with the states. Layers, deltas, checkpoints, moves and rollbacks take them as
they take any entry. Invariants: a far timer with a name has an index row with its clock and time,
and no other row has one. After `settle` the store holds all rows, and a count of them for each bin
that has some. Changes wait in memory before that, at most `PENDING_ROWS`; those that cancel each
other out are never written. Cost: a write and a removal per row, and a read of the database to find
a timer by its name, or to see whether one without a name is there already.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from meander.state.encoding.timers import (
    COUNT_ROW,
    ROW,
    Clock,
    Timer,
    index_key,
    index_value,
    row_key,
    row_of,
    split_index,
)
from meander.state.keys.ids import Bin
from meander.state.store.store import RowChange, Store

PENDING_ROWS: Final = 1024
"""The most changed rows in memory."""
_COUNT_BYTES: Final = 8
_NAMED: Final = {False: b"\0", True: b"\1"}
"""The value of the row of a timer, by whether it has a name."""


class TimerRows:
    """The rows of the far timers and alarms of one operator on one worker.

    >>> from tempfile import mkdtemp
    >>> from meander.state.encoding.timers import TIMER
    >>> from meander.state.store.store import Database
    >>> database = Database(mkdtemp(), budget_bytes=8 << 20)
    >>> rows = TimerRows(database.store("seen"))
    >>> for time in (9, 7, 8): rows.add(Bin(3), TIMER, (time, b"k"))
    >>> rows.load(Bin(3), TIMER, since=(0, b""), until=9, count=5)
    ([((7, b'k'), False), ((8, b'k'), False)], (9, b'k'))
    >>> rows.first(Bin(3), TIMER)
    (9, b'k')
    >>> database.close()
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: dict[bytes, RowChange] = {}
        """The changes that the store has not got, by row. A row belongs to one bin, as its key
        does."""
        self._unread: set[bytes] = set()
        """Those of them whose values before are not known."""
        self._counts: dict[int, int] = {}
        """The number of rows of each bin in the store."""
        self._settled: dict[int, int] = {}
        """The same numbers as the store has them."""

    def add(
        self, bin: Bin, clock: Clock, timer: Timer, *, named: bool = False, new: bool = False
    ) -> None:
        """Add a timer; with `new` there is none of its time and tag. A tag with a name must have no
        other time."""
        key = row_key(clock, *timer)
        if not (new or named or key in self._pending):
            self._unread.add(key)
        self._set(RowChange(bin, key, None, _NAMED[named]))
        if named:
            self._set(RowChange(bin, index_key(timer[1]), None, index_value(clock, timer[0])))

    def cancel(self, bin: Bin, tag: bytes) -> bool:
        """Remove the timer or alarm of a tag with a name. Return whether there was one."""
        found = self._find(bin, index_key(tag))
        if found is not None:
            clock, time = split_index(found)
            self._set(RowChange(bin, row_key(clock, time, tag), _NAMED[True], None))
            self._set(RowChange(bin, index_key(tag), found, None))
        return found is not None

    def load(
        self, bin: Bin, clock: Clock, since: Timer, until: int, count: int
    ) -> tuple[list[tuple[Timer, bool]], Timer | None]:
        """Remove and return the first timers of a bin from `since` on and before a time, at most
        `count`, each with whether it has a name. Return the first one that remains, too."""
        self._write()
        rows = self._store.rows(bin, ROW + clock, row_key(clock, *since))
        found, rest = list[tuple[Timer, bool]](), None
        for key, value in islice(rows, count + 1):
            timer, named = row_of(key), value == _NAMED[True]
            if len(found) == count or timer[0] >= until:
                rest = timer
                break
            found.append((timer, named))
            self._pending[key] = RowChange(bin, key, value, None)
            if named:
                index = index_key(timer[1])
                self._pending[index] = RowChange(bin, index, index_value(clock, timer[0]), None)
        return found, rest

    def first(self, bin: Bin, clock: Clock) -> Timer | None:
        """Return the first timer of a bin, or None."""
        self._write()
        first = next(self._store.rows(bin, ROW + clock, ROW + clock), None)
        return None if first is None else row_of(first[0])

    def open(self, bin: Bin) -> bool:
        """Begin with a bin that has been installed. Return whether it has any rows."""
        (count,) = self._store.read_rows([(bin, COUNT_ROW)])
        if count is not None:
            self._counts[bin] = self._settled[bin] = int.from_bytes(count, "big")
            self._store.note_rows(bin, self._counts[bin] + 1)
        return count is not None

    def close(self, bin: Bin) -> None:
        """End with a bin that has left. It has settled, and its rows stay in the store."""
        self._counts.pop(bin, None)
        self._settled.pop(bin, None)

    def settle(self, bin: Bin | None = None) -> None:
        """Write the rows of a bin, or of all bins, to the store."""
        self._write()
        bins = [*self._counts] if bin is None else [bin]
        counts = [(one, self._settled.get(one, 0), self._counts.get(one, 0)) for one in bins]
        changed = [(one, before, after) for one, before, after in counts if before != after]
        self._store.write_rows(
            [RowChange(one, COUNT_ROW, _count(old), _count(new)) for one, old, new in changed]
        )
        self._settled.update((one, after) for one, _, after in changed)

    def _find(self, bin: Bin, key: bytes) -> bytes | None:
        if (pending := self._pending.get(key)) is not None:
            return pending.after
        return self._store.read_rows([(bin, key)])[0] if self._counts.get(bin) else None

    def _set(self, change: RowChange) -> None:
        bin, key, _, after = change
        earlier = self._pending.get(key)
        if earlier is not None:
            change = RowChange(bin, key, earlier.before, after)
        self._pending[key] = change
        if len(self._pending) >= PENDING_ROWS:
            self._write()

    def _write(self) -> None:
        if not self._pending:
            return
        rows = [self._pending.pop(key) for key in self._unread]
        values = self._store.read_rows([(row.bin, row.key) for row in rows])
        read = [row._replace(before=value) for row, value in zip(rows, values, strict=True)]
        changed = [row for row in (*self._pending.values(), *read) if row.before != row.after]
        self._pending.clear()
        self._unread.clear()
        self._store.write_rows(changed)
        for row in changed:
            more = (row.after is not None) - (row.before is not None)
            self._counts[row.bin] = self._counts.get(row.bin, 0) + more


def _count(rows: int) -> bytes | None:
    return rows.to_bytes(_COUNT_BYTES, "big") if rows else None
