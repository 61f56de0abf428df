"""A sink's records on their way to Kafka: they leave in lots.

Guarantees that records arrive in the order given per key, once, and that `arrived` names a lot only
once all up to it are durable. A lot leaves when all that left before has arrived, and together with
what else has been shipped meanwhile: so batches grow with the load by themselves, librdkafka, whose
thread spins while many requests wait for one another, never has many, and that all has arrived is
told by its having none left. A failure is told first, as it stays until it has been heard.
Cost: about a microsecond a record; a departure costs the broker a request per partition.
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
"""Seconds from one departure to the next: requests are what a broker's time goes into, and what
comes meanwhile leaves together."""
TOGETHER = 20_000, 16 << 20
"""Records, and bytes of them, that librdkafka's queue always takes."""
_QUEUE = {"queue.buffering.max.messages", "queue.buffering.max.kbytes"}


@dataclass(frozen=True, slots=True)
class _Lot:
    """Records that have been shipped together."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    headers: Sequence[Headers] | None
    size: int


class BatchProducer(Producing):
    """One producer for one topic; `most` bounds the bytes under way, `batch` those of one batch."""

    def __init__(self, settings: Settings, topic: str, most: int, batch: int) -> None:
        super().__init__(settings, topic, most, delivery_report_only_error=True, batch_size=batch)
        self._lots: deque[_Lot] = deque()
        self._away: list[_Lot] = []
        self._row = 0
        """Of the first lot: how many of its records have left."""
        self._partly = False
        """Whether the first lot is to leave as there is room."""
        self._roomy = _QUEUE.isdisjoint(settings)
        self._next = 0.0
        self._shipped = self._arrived = 0

    def ship(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        headers: Sequence[Headers] | None,
    ) -> int:
        """Take many records over; returns the lot's number: 1, 2, 3, ...

        Raises MeanderError where more is under way than the bound.
        """
        size = size_of(values, keys, headers)
        self._shipped += 1
        self._lots.append(_Lot(values, keys, headers, size))
        self._take_over(size)
        self._depart()
        return self._shipped

    def arrived(self) -> int:
        """The greatest lot up to which all is durable; sends what may leave. Raises what the broker
        refused."""
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
        """Give up what is under way."""
        self._lots.clear()
        super().close()

    def _depart(self) -> None:
        """Send what has been shipped, unless some of what left before is under way."""
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
        """Send the first lot, for which there is room."""
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
        """Send what of the first lot has not left, as far as there is room; whether all has."""
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
