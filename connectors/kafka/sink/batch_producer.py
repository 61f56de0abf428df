"""The batch producer: sends a sink's records to Kafka in batches.

Guarantees that records arrive in the given order per key, once. `delivered` names a batch only once
all batches up to it are durable. The producer sends all waiting batches together once all earlier
records have arrived, so batches grow with the load. librdkafka then never has many pending
requests, during which its thread spins. An empty librdkafka queue proves that all records have
arrived, unless a failure is pending. Cost: about a microsecond per record, and one request per
partition and send.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message

from meander.connectors.kafka.client import Settings, is_record_refusal
from meander.connectors.kafka.sink.producer import (
    BaseProducer,
    RecordsRefused,
    batch_limit,
    is_beyond_limits,
)
from meander.connectors.kafka.sink.topic_batch import TopicBatch, records_from

SEND_INTERVAL = 0.003
"""The seconds between two sends. Requests use most of a broker's time, and a pause lets more
records travel together."""
QUEUE_CAPACITY = 20_000, 16 << 20
"""The records, and their bytes, that librdkafka's queue always accepts."""
_QUEUE_SETTINGS = {"queue.buffering.max.messages", "queue.buffering.max.kbytes"}


@dataclass(frozen=True, slots=True)
class _Batch:
    parts: Sequence[TopicBatch]
    rows: int
    size: int


class BatchProducer(BaseProducer):
    """A producer that sends batches to the topics of a sink, as far as these are known. `max_bytes`
    bounds the bytes in flight, and `max_batch_bytes` the bytes of one Kafka batch."""

    def __init__(
        self, settings: Settings, topics: Sequence[str], max_bytes: int, max_batch_bytes: int
    ) -> None:
        super().__init__(
            settings,
            topics[0] if topics else "",
            max_bytes,
            "" if len(topics) == 1 else f"topics {', '.join(topics)}",
            delivery_report_only_error=True,
            batch_size=max_batch_bytes,
        )
        self._waiting: deque[_Batch] = deque()
        self._sent: list[_Batch] = []
        self._row = 0
        """The number of sent records of the first batch."""
        self._is_split = False
        """Whether the producer sends the first batch piece by piece, as the queue has room."""
        self._has_default_queue = _QUEUE_SETTINGS.isdisjoint(settings)
        self._next_send = 0.0
        self._accepted = self._delivered = 0
        self._batch_bytes = batch_limit(settings, max_batch_bytes)
        self._refused: list[Message] = []
        """The records that the topic has refused because of its limits, which ends the
        producer."""

    def send(self, parts: Sequence[TopicBatch]) -> int:
        """Accept the records of each topic as one batch; return its number: 1, 2, 3, ...

        Raise MeanderError where the bytes in flight exceed the bound.
        """
        size = sum(part.size for part in parts)
        self._accepted += 1
        self._waiting.append(_Batch(parts, sum(map(len, parts)), size))
        self._reserve(size)
        self._send_waiting()
        return self._accepted

    def delivered(self) -> int:
        """Return the last batch up to which all are durable, and send waiting batches. Raise the
        broker's refusal, and RecordsRefused once no record is under way."""
        self._poll()
        if self._refused:
            # librdkafka sends none of the queued records any more, and keeps some.
            self._producer.purge(in_flight=False)
            if not len(self._producer):
                raise RecordsRefused(self._refused, self._batch_bytes)
            return self._delivered
        if self._sent and not len(self._producer) and self._failure is None:
            self._delivered += len(self._sent)
            self._bytes -= sum(batch.size for batch in self._sent)
            self._sent.clear()
            self._record_answer()
        self._send_waiting()
        self._check()
        return self._delivered

    def close(self) -> None:
        """Drop unsent records and release connections."""
        self._waiting.clear()
        super().close()

    def _send_waiting(self) -> None:
        """Send the waiting batches, unless earlier records are still in flight."""
        if self._is_split and not self._send_records():
            return
        if not self._waiting or self._sent or time.monotonic() < self._next_send:
            return
        self._next_send = time.monotonic() + SEND_INTERVAL
        count = size = 0
        while self._waiting:
            batch = self._waiting[0]
            count, size = count + batch.rows, size + batch.size
            fits = count <= QUEUE_CAPACITY[0] and size <= QUEUE_CAPACITY[1]
            if self._sent and not fits:
                return
            plain = all(map(_is_plain, batch.parts))
            if self._has_default_queue and fits and plain:
                self._send_first()
            elif not self._send_records():
                return

    def _send_first(self) -> None:
        """Send the whole first batch, which fits into the queue."""
        for part in self._mark_sent().parts:
            records = _for_librdkafka(part)
            if not records:
                continue
            try:
                accepted = self._producer.produce_batch(
                    part.topic, records, on_delivery=self._report
                )
            except KafkaException as error:
                self._record_failure(error.args[0])
                return
            if accepted < len(records):
                refused = next(one["_error"] for one in records if "_error" in one)
                assert isinstance(refused, KafkaError)
                self._record_failure(refused)

    def _send_records(self) -> bool:
        """Send the rest of the first batch as far as the queue has room; return whether all of it
        has been sent."""
        batch, self._is_split = self._waiting[0], True
        for record in records_from(batch.parts, self._row):
            topic, value, key, partition, headers, timestamp = record
            report = self._report
            if not self._produce(value, key, report, headers, partition, topic, timestamp):
                return False
            self._row += 1
        self._row, self._is_split = 0, False
        self._mark_sent()
        return True

    def _mark_sent(self) -> _Batch:
        self._sent.append(self._waiting.popleft())
        return self._sent[-1]

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        if is_beyond_limits(error, message):
            self._refused.append(message)
        else:
            super()._record_failure(error, str(message.topic()))

    def _record_failure(self, error: KafkaError, topic: str = "") -> None:
        # Reports name the refused records.
        if not is_record_refusal(error):
            super()._record_failure(error, topic)


def _for_librdkafka(part: TopicBatch) -> list[dict[str, object]]:
    """Return plain records in the form of `produce_batch`."""
    return [{"value": value, "key": key} for value, key in zip(part.values, part.keys, strict=True)]


def _is_plain(part: TopicBatch) -> bool:
    """Return whether records are values and keys alone: the client's batches take no headers and no
    timestamps, and send records to other partitions than these name."""
    return not (part.headers or part.timestamps or part.partitions)
