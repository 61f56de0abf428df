"""How far a flow is behind its sources, as lag tools see it: end of the log minus committed.

Nothing here blocks: questions to the broker are asked in the background and answered when they are.
A broker that does not answer leaves the last answer standing. Cost: two requests per look.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from connectors import client, topics
from connectors.client import Settings

Ends = dict[TopicPartition, Future[ListOffsetsResultInfo]]


class Lag:
    """The lag of one flow over all its source topics, in records."""

    def __init__(self, settings: Settings, group: str, sources: Sequence[str]) -> None:
        self._settings = settings
        self._admin: AdminClient = client.admin(settings)
        self._group = group
        self._partitions = [
            TopicPartition(topic, partition)
            for topic in sources
            for partition in range(topics.partitions_of(self._admin, topic))
        ]
        self._ends: Ends = {}
        self._committed: Future[ConsumerGroupTopicPartitions] | None = None
        self.partitions: dict[tuple[str, int], int] = {}
        """The newest answer, by topic and partition; without those of which nothing was committed
        yet."""

    @property
    def records(self) -> int:
        """Of all partitions together."""
        return sum(self.partitions.values())

    def look(self) -> None:
        """Take in answers that have come, and ask anew."""
        if self._committed is not None:
            if not self._committed.done() or not all(map(Future.done, self._ends.values())):
                return
            self._take(self._committed)
        if self._partitions:
            request = ConsumerGroupTopicPartitions(self._group, self._partitions)
            self._committed = self._admin.list_consumer_group_offsets([request])[self._group]
            latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            self._ends = self._admin.list_offsets(dict.fromkeys(self._partitions, latest))

    def _take(self, committed: Future[ConsumerGroupTopicPartitions]) -> None:
        try:
            places = committed.result().topic_partitions or []
            ends = {(p.topic, p.partition): f.result().offset for p, f in self._ends.items()}
        except KafkaException as error:
            if client.refused(error.args[0]):
                raise client.translate(error, "the lag of the flow") from None
            # What this client knows of the leaders may be out of date, and would stay so.
            # Whether a topic is gone is for its readers to say.
            self._admin = client.admin(self._settings)
            return
        self.partitions = {
            (place.topic, place.partition): max(
                0, ends[place.topic, place.partition] - place.offset
            )
            for place in places
            if place.offset >= 0
        }
