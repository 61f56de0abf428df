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

from meander.state.store.rocksdb import block_options, translate_errors

TABLE_BYTES: Final = 1 << 20
"""The most bytes of a table, approximately, unless one state exceeds them."""
EMPTY_TABLE_BYTES: Final = 4096
"""The bytes of a table besides its entries."""
_NUMBERS: Final = count()


class TableWriter:
    """A table writer that writes one table: `put` entries in key order, then `finish`.

    >>> from tempfile import mkdtemp
    >>> from meander.state.store.rocksdb import RocksDB
    >>> rocks, writer = RocksDB(mkdtemp(), 1 << 20, 1 << 20), TableWriter(Path(mkdtemp()), b"op")
    >>> writer.put([b"1", b"2"], [b"one", b"two"])
    >>> rocks.ingest([writer.finish()])
    >>> list(rocks.entries(b"op"))
    [(b'1', b'one'), (b'2', b'two')]
    >>> rocks.close()
    """

    def __init__(self, folder: Path, prefix: bytes) -> None:
        """Open a table in an existing folder; `prefix` precedes all keys. Raise SetupError where
        the disk refuses more bytes, as `put` and `finish` do."""
        self._path, self._prefix = folder / f"{next(_NUMBERS)}.writing", prefix
        self._name = f"the table {self._path}"
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(block_options())
        options.set_compression_type(DBCompressionType.none())
        self._writer = SstFileWriter(options)
        with translate_errors(self._name):
            self._writer.open(str(self._path))

    def put(self, keys: Sequence[bytes], states: Sequence[bytes]) -> None:
        """Add the next entries."""
        prefix, writer = self._prefix, self._writer
        with translate_errors(self._name):
            for key, state in zip(keys, states, strict=True):
                writer[prefix + key] = state

    def finish(self) -> bytes:
        """Return the bytes of the table, which has at least one entry, and delete its file."""
        with translate_errors(self._name):
            self._writer.finish()
        table = self._path.read_bytes()
        self.discard()
        return table

    def discard(self) -> None:
        """Discard the table."""
        self._path.unlink()
