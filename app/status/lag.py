"""How far a flow is behind its sources, as lag tools see it: end of the log minus committed.

Nothing here blocks: questions to the broker are asked in the background and answered when they are.
A broker that does not answer leaves the last answer standing. What is committed is asked through a
consumer, with a thread to wait: asked for it through an admin client, librdkafka dies where a
group's coordinator has moved or is loading (librdkafka #5040). Cost: two requests per look.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.client import Settings

PATIENCE = 1.0
"""Seconds after which a question counts as not answered."""

Ends = dict[TopicPartition, Future[ListOffsetsResultInfo]]


class Lag:
    """The lag of one flow over all its source topics, in records."""

    def __init__(self, settings: Settings, group: str, sources: Sequence[str]) -> None:
        self._settings = settings
        self._admin: AdminClient = client.admin(settings)
        self._consumer = client.consumer(settings, group)
        self._asking = ThreadPoolExecutor(1, "lag")
        self._partitions = [
            TopicPartition(topic, partition)
            for topic in sources
            for partition in range(topic_metadata.partitions_of(self._admin, topic))
        ]
        self._ends: Ends = {}
        self._committed: Future[list[TopicPartition]] | None = None
        self.partitions: dict[tuple[str, int], int] = {}
        """The newest answer, by topic and partition; without those of which nothing was committed
        yet."""

    @property
    def records(self) -> int:
        """Of all partitions together."""
        return sum(self.partitions.values())

    def add(self, topic: str, partition: int) -> None:
        """A partition has come to a topic, and is read."""
        if (place := TopicPartition(topic, partition)) not in self._partitions:
            self._partitions.append(place)

    def look(self) -> None:
        """Take in answers that have come, and ask anew."""
        if self._committed is not None:
            if not self._committed.done() or not all(map(Future.done, self._ends.values())):
                return
            self._take(self._committed)
        if self._partitions:
            ask = partial(self._consumer.committed, [*self._partitions], timeout=PATIENCE)
            self._committed = self._asking.submit(ask)
            latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            self._ends = self._admin.list_offsets(dict.fromkeys(self._partitions, latest))

    def close(self) -> None:
        """Ask no more; a question under way is waited for by nobody."""
        self._asking.shutdown(wait=False, cancel_futures=True)

    def _take(self, committed: Future[list[TopicPartition]]) -> None:
        try:
            places = committed.result()
            ends = {(p.topic, p.partition): f.result().offset for p, f in self._ends.items()}
        except KafkaException as error:
            if client.is_refused(error.args[0]):
                raise client.translate(error, "the lag of the flow") from None
            # What this client knows of the leaders may be out of date, and would stay so.
            # Whether a topic is gone is for its readers to say.
            self._admin = client.Admin(self._settings)
            return
        self.partitions = {
            (place.topic, place.partition): max(
                0, ends[place.topic, place.partition] - place.offset
            )
            for place in places
            if place.offset >= 0
        }
