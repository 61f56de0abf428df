"""Sorted tables: many entries in one RocksDB file, which a store ingests as a whole.

Guarantees that an ingested table equals its entries written one by one. A table holds each key with
the name of its operator and its bin, as the database does, so it fits any worker. Nothing is
compressed: moving tables are short-lived, and Kafka compresses by the batch. Cost: an entry takes
0.3 us to write. A table of any size takes some milliseconds to ingest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

from rocksdict import DBCompressionType, Options, SstFileWriter

from meander.state.store.rocksdb import blocks, heard

TABLE_BYTES: Final = 1 << 20
"""About the most that a table takes, unless one state alone takes more."""
EMPTY_BYTES: Final = 4096
"""What a table takes besides its entries."""
_NUMBERS: Final = count()


class TableWriter:
    """One table on its way: `put` entries in the order of their keys, then `finish`.

    >>> from tempfile import mkdtemp
    >>> from meander.state.store.rocksdb import Rocks
    >>> rocks, writer = Rocks(mkdtemp(), 1 << 20, 1 << 20), TableWriter(Path(mkdtemp()), b"op")
    >>> writer.put([b"1", b"2"], [b"one", b"two"])
    >>> rocks.ingest([writer.finish()])
    >>> list(rocks.entries(b"op"))
    [(b'1', b'one'), (b'2', b'two')]
    >>> rocks.close()
    """

    def __init__(self, folder: Path, group: bytes) -> None:
        """It lies in a folder that exists until it is finished; `group` stands before all keys.
        Raises SetupError where the disk takes no more, as `put` and `finish` do."""
        self._path, self._group = folder / f"{next(_NUMBERS)}.writing", group
        self._name = f"the table {self._path}"
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(blocks())
        options.set_compression_type(DBCompressionType.none())
        self._writer = SstFileWriter(options)
        with heard(self._name):
            self._writer.open(str(self._path))

    def put(self, keys: Sequence[bytes], states: Sequence[bytes]) -> None:
        """Add what comes next."""
        group, writer = self._group, self._writer
        with heard(self._name):
            for key, state in zip(keys, states, strict=True):
                writer[group + key] = state

    def finish(self) -> bytes:
        """All of it, at least one entry; the file is gone."""
        with heard(self._name):
            self._writer.finish()
        table = self._path.read_bytes()
        self.discard()
        return table

    def discard(self) -> None:
        """It is not wanted, after all."""
        self._path.unlink()
