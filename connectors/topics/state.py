"""The state topic on Kafka: appends layers, and reads them again from their locations.

Guarantees that a location is returned only once its record is durable, and that a read returns the
record that was appended (`record_fetcher`). A worker appends to one partition only, so one sweep
reads the adjacent chunks of a bin. No call blocks except `close`. The caller bounds the records in
flight (I6).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.sink.record_producer import RecordProducer
from meander.connectors.topics.internal_topics import STATE_PARTITIONS
from meander.connectors.topics.record_fetcher import RecordFetcher
from meander.dataflow.interfaces import Wakeup
from meander.state.layers.topic import MAX_STATE_RECORD, RecordLocation, Ticket


class TopicAppender:
    """A writer that appends to a compacted topic; implements `Appendable`."""

    def __init__(self, settings: Settings, topic: str, partition: int) -> None:
        self._partition = partition
        self._producer = RecordProducer(settings, topic, message_max_bytes=MAX_STATE_RECORD)
        self._appended: dict[Ticket, RecordLocation | None] = {}
        """The location of each record, None for a record in flight."""
        self._last = 0

    def append(self, key: bytes, payload: bytes) -> Ticket:
        """Send one record and return its ticket. The key must never have been used before.

        Raise MeanderError for more than `MAX_STATE_RECORD` bytes of key and payload.
        """
        ticket = self._next_ticket()
        self._appended[ticket] = None
        # A repeated record does no harm: compaction keeps the last record of a key.
        durable = partial(self._durable, ticket, key, len(payload))
        self._producer.append(payload, key, durable, self._partition)
        return ticket

    def appended(self, ticket: Ticket) -> RecordLocation | None:
        """Return the location of a record once it is durable, and only once.

        Raise MeanderError when the broker refused a record.
        """
        if self._appended[ticket] is None:
            self._producer.pump()
        place = self._appended[ticket]
        if place is not None:
            del self._appended[ticket]
        return place

    def abandon(self, ticket: Ticket) -> None:
        """Give up the answer to a ticket; a tombstone deletes a record in flight once it has
        arrived."""
        if (location := self._appended.pop(ticket)) is not None:
            self.delete([location])

    def delete(self, locations: Sequence[RecordLocation]) -> None:
        """Send a tombstone for each of some records to its partition, without a callback."""
        self._producer.delete(locations)

    def pump(self) -> None:
        """Process delivery reports. Raise the broker's refusal."""
        self._producer.pump()

    def close(self) -> None:
        """Drop unsent records and release connections."""
        self._producer.close()

    def _next_ticket(self) -> Ticket:
        self._last += 1
        return Ticket(self._last)

    def _durable(self, ticket: Ticket, key: bytes, size: int, offset: int) -> None:
        location = RecordLocation(key, self._partition, offset, size)
        if ticket in self._appended:
            self._appended[ticket] = location
        else:
            self.delete([location])


class KafkaStateTopic(TopicAppender):
    """A state topic that serves one worker of a flow; implements `StateTopic`."""

    def __init__(self, settings: Settings, topic: str, worker: int, wakeup: Wakeup) -> None:
        super().__init__(settings, topic, worker % STATE_PARTITIONS)
        self._fetcher = RecordFetcher(settings, topic, wakeup)

    def fetch(self, locations: Sequence[RecordLocation]) -> Ticket:
        """Request records by location; return a ticket."""
        ticket = self._next_ticket()
        self._fetcher.fetch(ticket, locations)
        return ticket

    def fetched(self, ticket: Ticket) -> list[bytes] | None:
        """Return the payloads in the order of the request once all have arrived, and only once.

        Raise MeanderError where one of them is missing.
        """
        return self._fetcher.fetched(ticket)

    def abandon(self, ticket: Ticket) -> None:
        """Give up the answer to a ticket; a tombstone deletes a record in flight once it has
        arrived."""
        if ticket in self._appended:
            super().abandon(ticket)
        else:
            self._fetcher.abandon(ticket)

    def close(self) -> None:
        """Cancel open requests and release connections."""
        self._fetcher.close()
        super().close()
