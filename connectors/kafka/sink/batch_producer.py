"""The batch producer: sends a sink's records to Kafka in batches.

Guarantees that records arrive in the given order per key, once. `arrived` names a batch only once
all batches up to it are durable. All waiting batches leave together once all earlier records have
arrived, so batches grow with the load. librdkafka then never has many pending requests, during
which its thread spins. An empty librdkafka queue proves that all records have arrived. A failure is
checked first, as it stays until it is raised. Cost: about a microsecond per record, and one request
per partition and departure.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message

from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.sink.producer import Headers, Producing, size_of

EVERY = 0.003
"""The seconds between two departures. Requests use most of a broker's time, and a pause lets more
records leave together."""
TOGETHER = 20_000, 16 << 20
"""The records, and their bytes, that librdkafka's queue always accepts."""
_QUEUE = {"queue.buffering.max.messages", "queue.buffering.max.kbytes"}


@dataclass(frozen=True, slots=True)
class _Lot:
    """A batch that holds records of one call."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    headers: Sequence[Headers] | None
    size: int


class BatchProducer(Producing):
    """A producer that sends batches to one topic. `most` bounds the bytes in flight, `batch` those
    of one Kafka batch."""

    def __init__(self, settings: Settings, topic: str, most: int, batch: int) -> None:
        super().__init__(settings, topic, most, delivery_report_only_error=True, batch_size=batch)
        self._lots: deque[_Lot] = deque()
        self._away: list[_Lot] = []
        self._row = 0
        """The number of records of the first batch that have left."""
        self._partly = False
        """Whether the first batch leaves piece by piece as there is room."""
        self._roomy = _QUEUE.isdisjoint(settings)
        self._next = 0.0
        self._shipped = self._arrived = 0

    def ship(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        headers: Sequence[Headers] | None,
    ) -> int:
        """Accept records as a batch; return its number: 1, 2, 3, ...

        Raise MeanderError where the bytes in flight exceed the bound.
        """
        size = size_of(values, keys, headers)
        self._shipped += 1
        self._lots.append(_Lot(values, keys, headers, size))
        self._take_over(size)
        self._depart()
        return self._shipped

    def arrived(self) -> int:
        """Return the last batch up to which all are durable, and send waiting ones. Raise the
        broker's refusal."""
        self._poll()
        if self._away and not len(self._producer) and self._failure is None:
            self._arrived += len(self._away)
            self._bytes -= sum(lot.size for lot in self._away)
            self._away.clear()
            self._heard()
        self._depart()
        self._check()
        return self._arrived

    def close(self) -> None:
        """Drop unsent records and release connections."""
        self._lots.clear()
        super().close()

    def _depart(self) -> None:
        """Send the waiting batches, unless earlier records are still in flight."""
        if self._partly and not self._send_each():
            return
        if not self._lots or self._away or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        count = size = 0
        while self._lots:
            lot = self._lots[0]
            count, size = count + len(lot.values), size + lot.size
            fits = count <= TOGETHER[0] and size <= TOGETHER[1]
            if self._away and not fits:
                return
            if self._roomy and fits and lot.headers is None:
                self._send_all()
            elif not self._send_each():
                return

    def _send_all(self) -> None:
        """Send the whole first batch, for which there is room."""
        lot = self._left()
        records: list[dict[str, object]] = [
            {"value": value, "key": key} for value, key in zip(lot.values, lot.keys, strict=True)
        ]
        if not records:
            return
        try:
            taken = self._producer.produce_batch(self.topic, records, on_delivery=self._report)
        except KafkaException as error:
            self._failed(error.args[0])
            return
        if taken < len(records):
            refused = next(one["_error"] for one in records if "_error" in one)
            assert isinstance(refused, KafkaError)
            self._failed(refused)

    def _send_each(self) -> bool:
        """Send the rest of the first batch as far as there is room; return whether all of it has
        left."""
        lot, self._partly = self._lots[0], True
        for row in range(self._row, len(lot.values)):
            self._row = row
            headers = None if lot.headers is None else lot.headers[row]
            if not self._produce(lot.values[row], lot.keys[row], self._report, headers):
                return False
        self._row, self._partly = 0, False
        self._left()
        return True

    def _left(self) -> _Lot:
        self._away.append(self._lots.popleft())
        return self._away[-1]

    def _report(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed(error)
