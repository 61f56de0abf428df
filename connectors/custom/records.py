"""The records of sources and sinks by the public interface, and the reader of one partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol

from typing_extensions import TypeVar

T = TypeVar("T", default=Any)
"""The type of a value."""


class SourceRecord(NamedTuple, Generic[T]):
    """A record that a partition reader has read."""

    position: int
    """Its place in the partition, greater than that of the record before."""
    value: T
    time_ms: int
    """Its time, milliseconds since 1970."""
    size: int = 100
    """About its bytes, by which a worker bounds what it has read."""


class UnreadableRecord(NamedTuple):
    """A record that a partition reader could not read. It becomes a dead letter."""

    position: int
    data: bytes
    reason: str


class PartitionReader(Protocol[T]):
    """A reader of one partition, in the order of positions. One thread calls it."""

    @property
    def position(self) -> int:
        """Return the position of the next record, or one between the last record and the next."""

    def read(self, most: int) -> Sequence[SourceRecord[T] | UnreadableRecord]:
        """Return the next records, at most `most`; none where the partition has no more now. The
        call may wait for a tenth of a second."""

    def close(self) -> None:
        """Release what the reader has open."""


class SinkRecord(NamedTuple):
    """A result on its way out."""

    value: object
    """What `Sink.encode` has made of the value."""
    key: object
    """The key of the stream; None without one."""
    time_ms: int
    """Its logical time, milliseconds since 1970."""
