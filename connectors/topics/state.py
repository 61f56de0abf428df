"""The compacted state topic: layers are appended to it, and read again from their places.

Guarantees that a place is named only once its record is durable, and that a record read is the one
that was appended (`record_fetcher`). A worker appends to one partition only, so that the chunks
of a bin lie side by side and are read in one sweep. Nothing here blocks, but for `close`. The bound
on what is under way (I6) is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.sink.record_producer import Sender
from meander.connectors.topics.record_fetcher import PlaceReader
from meander.connectors.topics.topics import MAX_STATE_RECORD, STATE_PARTITIONS
from meander.dataflow.interfaces import Wakeup
from meander.state.layers.topic import RecordLocation, Ticket


class Appending:
    """One writer's way to a compacted topic; implements `Appendable`."""

    def __init__(self, settings: Settings, topic: str, partition: int) -> None:
        self._partition = partition
        self._sender = Sender(settings, topic, message_max_bytes=MAX_STATE_RECORD)
        self._appended: dict[Ticket, RecordLocation | None] = {}
        """Where what was appended lies, and None of what is under way."""
        self._last = 0

    def append(self, key: bytes, payload: bytes) -> Ticket:
        """Send one record; its key must never have been used before.

        Raises MeanderError for more than `MAX_STATE_RECORD` bytes, key and payload together.
        """
        ticket = self._next()
        self._appended[ticket] = None
        # That it may lie there twice does no harm: compaction keeps the last of a key.
        durable = partial(self._durable, ticket, key, len(payload))
        self._sender.place(payload, key, durable, self._partition)
        return ticket

    def placed(self, ticket: Ticket) -> RecordLocation | None:
        """Where the record lies, once it is durable; the answer is given once.

        Raises MeanderError when the broker refused a record.
        """
        if self._appended[ticket] is None:
            self._sender.pump()
        place = self._appended[ticket]
        if place is not None:
            del self._appended[ticket]
        return place

    def abandon(self, ticket: Ticket) -> None:
        """Nobody asks for the answer any more; a record under way is forgotten once it is there."""
        if (place := self._appended.pop(ticket)) is not None:
            self.forget([place])

    def forget(self, places: Sequence[RecordLocation]) -> None:
        """Put a tombstone for each of some records behind it; nothing waits for these."""
        self._sender.forget(places)

    def pump(self) -> None:
        """Hear of what has become durable. Raises what the broker refused."""
        self._sender.pump()

    def close(self) -> None:
        """Give up what is under way."""
        self._sender.close()

    def _next(self) -> Ticket:
        self._last += 1
        return Ticket(self._last)

    def _durable(self, ticket: Ticket, key: bytes, size: int, offset: int) -> None:
        place = RecordLocation(key, self._partition, offset, size)
        if ticket in self._appended:
            self._appended[ticket] = place
        else:
            self.forget([place])


class KafkaStateTopic(Appending):
    """One worker's access to the state topic of its flow; implements `StateTopic`."""

    def __init__(self, settings: Settings, topic: str, worker: int, wakeup: Wakeup) -> None:
        super().__init__(settings, topic, worker % STATE_PARTITIONS)
        self._reader = PlaceReader(settings, topic, wakeup)

    def fetch(self, places: Sequence[RecordLocation]) -> Ticket:
        """Ask for records by place."""
        ticket = self._next()
        self._reader.ask(ticket, places)
        return ticket

    def fetched(self, ticket: Ticket) -> list[bytes] | None:
        """Their payloads in the order asked for, once all are here; the answer is given once.

        Raises MeanderError when one of them is gone.
        """
        return self._reader.answer(ticket)

    def abandon(self, ticket: Ticket) -> None:
        """Nobody asks for the answer any more; a record under way is forgotten once it is there."""
        if ticket in self._appended:
            super().abandon(ticket)
        else:
            self._reader.abandon(ticket)

    def close(self) -> None:
        """Give up what is under way."""
        self._reader.close()
        super().close()
