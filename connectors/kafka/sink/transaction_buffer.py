"""The transaction buffer: batches of one transaction, in memory, and on disk beyond a bound.

Guarantees that each iteration yields all batches in the given order, so a transaction can be tried
again. Beyond a bound a file without a name holds them, so a process that ends leaves no file behind
(I6). Cost: none below the bound. Beyond it each byte is written to disk once, and read once per
attempt.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, cast

from meander.connectors.kafka.sink.producer import Headers
from meander.connectors.kafka.sink.topic_batch import TopicBatch
from meander.dataflow.backpressure.memory_limit import MemoryLimit
from meander.schemas.errors import SetupError
from meander.state.encoding import codec

_LENGTH = struct.Struct(">Q")
_Column = list[bytes | None]
_Columns = tuple[str, _Column, _Column, list[Headers] | None, list[int] | None, list[int] | None]


class TransactionBuffer:
    """A transaction buffer that holds batches; `disk` bounds the bytes of its file in `folder`.

    >>> from tempfile import gettempdir
    >>> disk = MemoryLimit("transactions of 'a'", 1 << 20, "max_spill")
    >>> buffer = TransactionBuffer(disk, Path(gettempdir()))
    >>> for n in range(5):
    ...     buffer.add(TopicBatch("topic", [b"%d" % n], [None]), max_memory=200)
    >>> buffer.spilled, [batch.values for batch in buffer]
    (True, [[b'0'], [b'1'], [b'2'], [b'3'], [b'4']])
    >>> buffer.close()
    """

    def __init__(self, disk: MemoryLimit, folder: Path) -> None:
        self._disk, self._folder = disk, folder
        self._batches: list[TopicBatch] = []
        self._file: IO[bytes] | None = None
        self.size = 0
        """The bytes of all batches, approximately."""

    @property
    def spilled(self) -> bool:
        """Return whether the batches are on disk."""
        return self._file is not None

    @property
    def memory_bytes(self) -> int:
        """Return the bytes in memory, approximately."""
        return 0 if self.spilled else self.size

    def __bool__(self) -> bool:
        return bool(self._batches) or self.spilled

    def add(self, batch: TopicBatch, max_memory: int) -> None:
        """Add a batch; `max_memory` bounds the memory of all batches. Raise MeanderError where the
        disk is full."""
        self.size += batch.size
        self._batches.append(batch)
        if not self.spilled and self.size <= max_memory:
            return
        self._disk.check(self.size, "results on disk wait to be committed together")
        try:
            self._spill()
        except OSError as error:
            raise SetupError(
                self._disk.subject,
                f"results cannot be written to {str(self._folder)!r}: {error}",
                "check that its disk has room, and run the flow again",
            ) from error

    def __iter__(self) -> Iterator[TopicBatch]:
        """Yield all batches. The caller adds none meanwhile."""
        if self._file is None:
            yield from self._batches
            return
        self._file.seek(0)
        while head := self._file.read(_LENGTH.size):
            (length,) = _LENGTH.unpack(head)
            whole = codec.decode(self._file.read(length))
            yield TopicBatch(*cast(_Columns, whole))

    def close(self) -> None:
        """Drop all batches."""
        self._batches.clear()
        if self._file is not None:
            # A close repeats a write that a full disk has refused, though no reader needs it.
            with suppress(OSError):
                self._file.close()

    def _spill(self) -> None:
        if self._file is None:
            self._file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed with the buffer
        for one in self._batches:
            columns = one.values, one.keys, one.headers, one.timestamps, one.partitions
            data = codec.encode((one.topic, *(c if c is None else [*c] for c in columns)))
            self._file.write(_LENGTH.pack(len(data)))
            self._file.write(data)
        self._batches.clear()
        # The flush raises the error of a full disk here instead of in the thread that reads.
        self._file.flush()
