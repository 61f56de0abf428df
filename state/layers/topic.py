"""The state topic, as stores and migrations use it: append, fetch and forget records.

No call blocks. A write is durable once `placed` returns its location. A read is complete once
`fetched` answers. `connectors.topics.state` implements the topic on Kafka, `simulation` in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NewType, Protocol

from meander.schemas.errors import MeanderError

Ticket = NewType("Ticket", int)


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """Where one record lies: its key too, as compaction may have put another in its stead."""

    key: bytes
    partition: int
    offset: int
    size: int


UNPLACED: Final = RecordLocation(b"", 0, 0, 0)
"""Of what is not durable yet."""


class LayerUnreadable(MeanderError):
    """What lies on the topic, or did, is not to be had."""


class RecordGone(LayerUnreadable):
    """What was asked for is on the topic no longer, or something else lies at its place."""


class Appendable(Protocol):
    """A compacted topic to which records are appended."""

    def append(self, key: bytes, payload: bytes) -> Ticket:
        """Send one record; its key must never have been used before."""

    def placed(self, ticket: Ticket) -> RecordLocation | None:
        """Where the record lies, once it is durable. Asked once per ticket. Raises MeanderError
        when the broker refused it."""

    def abandon(self, ticket: Ticket) -> None:
        """Nobody asks for the answer any more; a record under way is forgotten once it is there."""

    def forget(self, places: Sequence[RecordLocation]) -> None:
        """Records that nobody refers to any more may go at the next compaction."""


class StateTopic(Appendable, Protocol):
    """The compacted topic that all of a flow's keyed state passes through."""

    def fetch(self, places: Sequence[RecordLocation]) -> Ticket:
        """Ask for records by place."""

    def fetched(self, ticket: Ticket) -> list[bytes] | None:
        """Their payloads in the order asked for, once all are here. Raises RecordGone when a record
        at a place has another key (it was compacted away)."""

    def close(self) -> None:
        """Give up what is under way."""
