"""RocksDB as one sorted range of bytes: opened, read and written here.

The database has no write-ahead log, because local state is a cache. Cost: a random read takes some
3 us per key.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from meander.schemas.errors import SetupError


class RocksDB:
    """A database that destroys the data of an earlier process at `path`. Raise SetupError when
    another process has it open."""

    def __init__(
        self, path: str | Path, cache_bytes: int, write_buffer_bytes: int, threads: int = 2
    ) -> None:
        self._name = f"the state database at {path}"
        self._cache = Cache(cache_bytes)
        settings = options(self._cache, write_buffer_bytes, threads)
        self._unlogged = WriteOptions()
        # The type stubs declare this property as a method.
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
        self.folder = Path(path) / "tables"
        """The folder of tables on their way in or out."""
        self._incoming = count()
        try:
            shutil.rmtree(self.folder, ignore_errors=True)
            Rdict.destroy(str(path), settings)
            self._rocks = Rdict(str(path), settings)
            self.folder.mkdir()
        except Exception as error:  # rocksdict raises nothing narrower
            raise SetupError(
                self._name, str(error), "choose a separate folder for each worker"
            ) from error

    def memory_bytes(self) -> int:
        """Return the bytes in memory."""
        return self._cache.get_usage()

    def close(self) -> None:
        """Release the files without a write."""
        self._rocks.close()

    def read(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of some keys, None for an absent key."""
        return cast(list[bytes | None], self._rocks.get([*keys]))

    def put(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write entries as one batch; None deletes a key."""
        batch = WriteBatch(raw_mode=True)
        for key, data in entries:
            if data is None:
                batch.delete(key)
            else:
                batch.put(key, data)
        with translate_errors(self._name):
            self._rocks.write(batch, self._unlogged)

    def ingest(self, tables: Sequence[bytes]) -> None:
        """Ingest tables of different keys. The database holds none of these keys, or older
        values."""
        paths = [self.folder / f"{next(self._incoming)}.incoming" for _ in tables]
        settings = IngestExternalFileOptions()
        settings.set_move_files(True)
        with translate_errors(self._name):
            for path, table in zip(paths, tables, strict=True):
                path.write_bytes(table)
            self._rocks.ingest_external_file([*map(str, paths)], settings)

    def entries(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Return all entries under a prefix, in order, as of the call, without the prefix. Omit
        those before `first`, which has no prefix either."""
        # The iterator opens here, because the body of a generator would first run at the first
        # entry.
        found = self._rocks.items(from_key=prefix + first)
        return entries_below(prefix, cast(Iterator[tuple[bytes, bytes]], found))

    def delete(self, prefix: bytes) -> None:
        """Delete all keys under a prefix. Leave no tombstone where there are none."""
        if next(self.entries(prefix), None) is not None:
            with translate_errors(self._name):
                self._rocks.delete_range(prefix, successor(prefix), self._unlogged)

    def remove(self, keys: Iterable[bytes]) -> None:
        """Delete keys as one batch."""
        self.put((key, None) for key in keys)


@contextmanager
def translate_errors(subject: str) -> Iterator[None]:
    """Raise an error of the disk as SetupError about a subject."""
    try:
        yield
    except Exception as error:  # rocksdict raises nothing narrower
        raise SetupError(
            subject, str(error), "check that its disk has room, and run the flow again"
        ) from error


def options(cache: Cache, write_buffer_bytes: int, threads: int) -> Options:
    """Return the options of an open; RocksDB has some `threads` in the background. Each open needs
    them, as rocksdict stores none for an existing database."""
    cached = block_options()
    cached.set_block_cache(cache)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(cached)
    options.set_write_buffer_manager(
        WriteBufferManager.new_write_buffer_manager_with_cache(
            write_buffer_bytes, allow_stall=False, cache=cache
        )
    )
    options.set_write_buffer_size(write_buffer_bytes // 2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_background_jobs(threads)
    options.set_max_open_files(512)
    options.set_keep_log_file_num(1)
    return options


def block_options() -> BlockBasedOptions:
    """Return the options for the layout of a file's entries."""
    options = BlockBasedOptions()
    options.set_cache_index_and_filter_blocks(True)
    options.set_bloom_filter(10, False)
    return options


def successor(prefix: bytes) -> bytes:
    """Return the least bytes after all that begin with a prefix.

    >>> successor(b"az")
    b'a{'
    """
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def entries_below(
    prefix: bytes, entries: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries whose keys begin with a prefix, without it.

    The function checks the end itself, as rocksdict reads an iterator's upper bound after freeing
    it.
    """
    for key, data in entries:
        if not key.startswith(prefix):
            return
        yield key[len(prefix) :], data
