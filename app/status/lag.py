"""How far a flow is behind its sources, as lag tools see it: end of the log minus committed.

Nothing here blocks: a thread asks the broker, and a later call takes the answer. A broker that does
not answer leaves the last answer standing. A consumer asks: librdkafka's admin client ends the
process where a group's coordinator is loading (librdkafka #5040). Cost: one request per partition
and look, and one for the group.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.inquiry import Inquiry

PATIENCE = 1.0
"""Seconds after which a question counts as not answered."""

Lags = dict[tuple[str, int], int]
"""Records behind, by topic and partition."""


class _Answer(NamedTuple):
    asked_at: float
    lags: Lags
    ends: Lags


class Lag:
    """The lag of one flow over all its source topics, in records."""

    def __init__(self, settings: Settings, group: str, sources: Sequence[str]) -> None:
        self._consumer = client.consumer(settings, group)
        self._inquiry = Inquiry[_Answer]("lag")
        admin = client.admin(settings)
        self._partitions = [
            TopicPartition(topic, partition)
            for topic in sources
            for partition in range(topic_metadata.partitions_of(admin, topic))
        ]
        self.partitions: Lags = {}
        """The newest answer; without partitions of which nothing was committed yet."""
        self.ends: Lags = {}
        """The ends of the logs in the same answer."""
        self.asked_at: float | None = None
        """The time of the question to that answer, in seconds of the monotonic clock."""

    @property
    def records(self) -> int:
        """Of all partitions together."""
        return sum(self.partitions.values())

    def add(self, topic: str, partition: int) -> None:
        """A partition has come to a topic, and is read."""
        if (place := TopicPartition(topic, partition)) not in self._partitions:
            self._partitions.append(place)

    def look(self) -> None:
        """Take an answer that has arrived, and send the next request."""
        if (answer := self._inquiry.take()) is not None:
            self._take(answer)
        if self._partitions and not self._inquiry.running:
            self._inquiry.ask(partial(self._ask, [*self._partitions]))

    def _ask(self, partitions: list[TopicPartition]) -> _Answer:
        asked_at = time.monotonic()
        places = self._consumer.committed(partitions, timeout=PATIENCE)
        ends = {(place.topic, place.partition): self._end(place) for place in places}
        lags = {
            at: max(0, ends[at] - place.offset)
            for place in places
            if place.offset >= 0
            for at in [(place.topic, place.partition)]
        }
        return _Answer(asked_at, lags, ends)

    def _end(self, place: TopicPartition) -> int:
        at = TopicPartition(place.topic, place.partition)
        try:
            offsets = self._consumer.get_watermark_offsets(at, timeout=PATIENCE)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._UNKNOWN_PARTITION:
                # The client asks no broker again for a partition that it once did not know.
                self._consumer.list_topics(place.topic, timeout=PATIENCE)
            raise
        if offsets is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return offsets[1]

    def _take(self, answer: Future[_Answer]) -> None:
        try:
            found = answer.result()
            self.partitions, self.ends, self.asked_at = found.lags, found.ends, found.asked_at
        except KafkaException as error:
            # Whether a topic is gone is for its readers to say.
            if client.is_refused(error.args[0]):
                raise client.translate(error, "the lag of the flow") from None
