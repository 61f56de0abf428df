"""Chunks: the decoded records of a topic with their times. Dead letters hold unreadable records.

Guarantees that each record enters a chunk or a dead letter, once, in offset order. A dead letter
holds the bytes of its record and the reason. With `fail_fast` an unreadable record ends the flow.
The module uses no consumer: its callers supply the messages. Cost: that of the formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller

import numpy as np

from meander.connectors.kafka.client import ConsumedMessage
from meander.connectors.kafka.dead_letter import MalformedRecord
from meander.connectors.kafka.source.deserializer import Deserializer, Readable
from meander.dataflow.interfaces import Chunk, DeadLetterTopic, Partition
from meander.dataflow.records.batch import Batch, Int64s
from meander.schemas.control import MAX_MILLIS
from meander.schemas.errors import MeanderError
from meander.state.times.time import MIN_TIME, from_millis

RECORD_OVERHEAD = 64
"""The estimated bytes of a record's key and headers; each exact length would cost a call."""

_OFFSET = methodcaller("offset")


class ChunkReader:
    """A chunk reader that decodes the records of one topic for one worker."""

    def __init__(
        self,
        topic: str,
        deserializer: Deserializer,
        fail_fast: bool,
        dead: DeadLetterTopic,
    ) -> None:
        self.unreadable = 0
        """The number of unreadable records so far."""
        self._topic, self._deserializer = topic, deserializer
        self._fail_fast, self._dead = fail_fast, dead

    def read(self, partition: Partition, messages: list[ConsumedMessage]) -> Chunk:
        """Return the readable records among a partition's next messages as a chunk.

        Raise MeanderError for an unreadable record, where it ends the flow.
        """
        size = size_of(messages)
        read = self._deserializer.read_all(messages)
        if read is None:
            readable = [(m, r) for m in messages if (r := self._read_one(m)) is not None]
            messages = [message for message, _ in readable]
            read = [value for _, (value, _) in readable], [millis for _, (_, millis) in readable]
        values, times = read
        offsets = np.fromiter(map(_OFFSET, messages), np.int64, len(messages))
        return Chunk(partition, offsets, times_of(times), values, size)

    def _read_one(self, message: ConsumedMessage) -> Readable | None:
        try:
            return self._deserializer.read_one(message)
        except ValueError as error:
            self._write_dead_letter(message, str(error))
            return None

    @property
    def dead_letters_durable(self) -> bool:
        """Return whether all dead letters are durable."""
        return not self.unreadable or self._dead.delivered() == self._dead.added

    def _write_dead_letter(self, message: ConsumedMessage, reason: str) -> None:
        partition, offset = message.partition(), message.offset()
        if self._fail_fast:
            raise MeanderError(
                f"topic {self._topic!r}, partition {partition}, offset {offset}",
                reason,
                "correct the source's value, key or time, or send unreadable records to the "
                "dead-letter topic (fail_fast=False)",
            )
        self.unreadable += 1
        record = MalformedRecord(
            self._topic, message.key(), message.value(), list(message.headers() or ())
        )
        one = np.array([0], np.int64)
        asked = times_of([message.timestamp()[1]])
        row = Batch(asked, one, one + partition, one + offset, one, [record])
        self._dead.add(f"source {self._topic}", row, 0, reason, "")


def times_of(millis: Sequence[int]) -> Int64s:
    """Return the logical times of milliseconds since 1970. A timestamp before 1970 (-1 means none)
    or beyond the range, such as microseconds, becomes the nearest time.

    >>> times_of([-1, 7, 1 << 60]).tolist() == [0, from_millis(7), from_millis(MAX_MILLIS)]
    True
    """
    return from_millis(1) * np.clip(np.array(millis, np.int64), MIN_TIME, MAX_MILLIS)


def size_of(messages: Sequence[ConsumedMessage]) -> int:
    """Return the bytes of messages, approximately."""
    return sum(map(len, messages)) + RECORD_OVERHEAD * len(messages)
