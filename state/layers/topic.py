"""The state topic, as stores and migrations use it: append, fetch and forget records.

No call blocks. A write is durable once `appended` returns its location. A read is complete once
`fetched` answers. `connectors.topics.state` implements the topic on Kafka, `simulation` in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NewType, Protocol

from meander.schemas.errors import MeanderError

Ticket = NewType("Ticket", int)
MAX_STATE_RECORD: Final = (8 << 20) + (64 << 10)
"""The most bytes of a record on the topic: the greatest state alone in its chunk, and its head."""


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """A record location that names one record. It includes the key, as another record may replace
    it after a compaction."""

    key: bytes
    partition: int
    offset: int
    size: int


UNPLACED: Final = RecordLocation(b"", 0, 0, 0)
"""The location of a record that is not durable yet."""


class LayerUnreadableError(MeanderError):
    """An error that reports a record on the topic that is missing or unreadable."""


class RecordMissing(LayerUnreadableError):
    """An error that reports a record that the topic has lost, or another record at its location."""


class Appendable(Protocol):
    """A compacted topic that records are appended to."""

    def append(self, key: bytes, payload: bytes) -> Ticket:
        """Send one record and return its ticket. The key must never have been used before."""

    def appended(self, ticket: Ticket) -> RecordLocation | None:
        """Return the location of the record once it is durable. Callers ask once per ticket. Raise
        MeanderError when the broker refused the record."""

    def abandon(self, ticket: Ticket) -> None:
        """Drop a ticket and its answer; the topic deletes a record in flight once it arrives."""

    def delete(self, locations: Sequence[RecordLocation]) -> None:
        """Let the next compaction delete records without references."""


class StateTopic(Appendable, Protocol):
    """A compacted topic that holds the layers of all bins of a flow."""

    def fetch(self, locations: Sequence[RecordLocation]) -> Ticket:
        """Request records by location; return a ticket."""

    def fetched(self, ticket: Ticket) -> list[bytes] | None:
        """Return the payloads in the order of the request, once all have arrived. Raise
        RecordMissing where a location holds another key, because of a compaction."""

    def close(self) -> None:
        """Cancel open requests."""
