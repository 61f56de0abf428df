"""I6: parcels that memory has no room for lie in a file, and come out of it as they were."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from meander.connectors.kafka.sink.producer import Headers
from meander.connectors.kafka.sink.topic_batch import TopicBatch
from meander.connectors.kafka.sink.transaction_buffer import TransactionBuffer
from meander.dataflow.backpressure.memory_limit import MemoryLimit
from meander.schemas.errors import SetupError

DISK = MemoryLimit("transactions of 'a'", 1 << 20, "max_spill")
LARGE = TopicBatch("a", [b"x" * 100_000], [None])


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process becomes larger meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_parcels_on_disk_come_out_for_every_try(tmp_path: Path) -> None:
    headers: list[Headers] = [[("one", b"1"), ("none", None)], []]
    given = [
        TopicBatch("a", [b"1", None], [None, b"key"], headers),
        TopicBatch("b", [b"x" * 300], [b""]),
        TopicBatch("c", [], []),
    ]
    with closing(TransactionBuffer(DISK, tmp_path)) as spool:
        for parcel in given:
            spool.add(parcel, max_memory=100)
        assert (spool.spilled, spool.memory_bytes) == (True, 0)
        assert [[*spool], [*spool]] == [given, given]
        begun = iter(spool)
        next(begun)
        assert [*spool] == given, "a try that was given up leaves no trace"
        assert not [*tmp_path.iterdir()], "the file has no name"


def test_a_full_disk_is_reported_where_the_batch_is_added(tmp_path: Path) -> None:
    with closing(TransactionBuffer(DISK, tmp_path)) as spool, files_of_at_most(150_000):
        spool.add(LARGE, max_memory=0)
        with pytest.raises(SetupError, match="cannot be written to .* its disk has room"):
            spool.add(LARGE, max_memory=0)


def test_a_small_batch_that_a_full_disk_refuses_is_reported_too(tmp_path: Path) -> None:
    """Where it would fit into the file's buffer."""
    little, refused = (
        TopicBatch("a", [b"x" * 200], [None]),
        pytest.raises(SetupError, match="written"),
    )
    with closing(TransactionBuffer(DISK, tmp_path)) as spool, files_of_at_most(100), refused:
        spool.add(little, max_memory=0)
