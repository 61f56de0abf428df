"""The spill store: entries that wait on disk in key order, beside the keyed state.

Each spill store has its own range of the process's database. The ranges of operators begin with a
name, those of spill stores with NUL. Entries are removed one by one, because a deleted range slows
every read of the database until a compaction. Cost: to write, read and remove an entry takes about
3 us.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meander.state.store.store import Database

Entry = tuple[bytes, bytes]


class SpillStore:
    """A spill store that holds entries of one owner with distinct keys.

    >>> from tempfile import mkdtemp
    >>> database = Database(mkdtemp(), budget_bytes=8 << 20)
    >>> store = SpillStore(database, "per_plane")
    >>> store.put([(b"2", b"two"), (b"1", b"one")])
    >>> one, two = store.entries()
    >>> store.drop([one], first=b"2"); list(store.entries())
    [(b'2', b'two')]
    >>> database.close()
    """

    def __init__(self, database: Database, owner: str) -> None:
        self._rocks, self._prefix = database.rocks, b"\0" + owner.encode() + b"\0"
        self.first: bytes | None = None
        """The least key."""

    def put(self, entries: Sequence[Entry]) -> None:
        """Add entries, at least one."""
        self._rocks.put((self._prefix + key, data) for key, data in entries)
        least = min(key for key, _ in entries)
        self.first = least if self.first is None else min(self.first, least)

    def entries(self) -> Iterator[Entry]:
        """Return all entries in order, as of the call."""
        if self.first is None:
            return iter(())
        return self._rocks.entries(self._prefix, self.first)

    def drop(self, entries: Sequence[Entry], first: bytes | None) -> None:
        """Delete the first entries, in the order of `entries`; `first` is the first key that
        remains."""
        self._rocks.remove(self._prefix + key for key, _ in entries)
        self.first = first
