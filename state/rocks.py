"""How RocksDB is opened, and what is read of a range of its keys."""

from __future__ import annotations

from collections.abc import Iterator

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, WriteBufferManager


def options(cache: Cache, write_buffer_bytes: int) -> Options:
    """Given again at every open: rocksdict keeps none of them for a database that exists."""
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_manager(
        WriteBufferManager.new_write_buffer_manager_with_cache(
            write_buffer_bytes, allow_stall=False, cache=cache
        )
    )
    options.set_write_buffer_size(write_buffer_bytes // 2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_background_jobs(2)
    options.set_max_open_files(512)
    options.set_keep_log_file_num(1)
    return options


def successor(prefix: bytes) -> bytes:
    """The least bytes after all that begin with a prefix.

    >>> successor(b"az")
    b'a{'
    """
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def below(prefix: bytes, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The entries as far as their keys begin with a prefix, without it.

    The end is looked for here, as rocksdict reads an iterator's upper bound after freeing it.
    """
    for key, data in entries:
        if not key.startswith(prefix):
            return
        yield key[len(prefix) :], data
