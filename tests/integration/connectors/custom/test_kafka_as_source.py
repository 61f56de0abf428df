"""Kafka fits the public interface: a position is an offset, also where records have gone."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Consumer, TopicPartition

from meander import Flow, Source, SourceRecord
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, create_topic, produce


class Topic(Source[str]):
    """A topic as a user may read it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.settings = {"bootstrap.servers": bootstrap, "group.id": "none"}
        self.topic = topic

    def partitions(self) -> Sequence[str]:
        found = self.consumer().list_topics(self.topic, timeout=30).topics[self.topic]
        return [str(partition) for partition in sorted(found.partitions)]

    def open_partition(self, name: str, position: int, until_end: bool) -> TopicReader:
        return TopicReader(self, int(name), position, until_end)

    def consumer(self) -> Consumer:
        return Consumer({**self.settings, "enable.auto.commit": False})


class TopicReader:
    """A reader of one partition."""

    def __init__(self, source: Topic, partition: int, position: int, until_end: bool) -> None:
        self._consumer = source.consumer()
        place = TopicPartition(source.topic, partition, position)
        low, high = self._consumer.get_watermark_offsets(place, timeout=30)
        place.offset = self.position = max(position, low)
        self._end = high if until_end else None
        self._consumer.assign([place])

    def read(self, most: int) -> Sequence[SourceRecord[str]]:
        found = list[SourceRecord[str]]()
        while not found and (self._end is None or self.position < self._end):
            for message in self._consumer.consume(most, 0.1):
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert isinstance(value, bytes)
                if self._end is None or offset < self._end:
                    found.append(SourceRecord(offset, value.decode(), message.timestamp()[1]))
                    self.position = offset + 1
            if self._end is None:
                break
        return found

    def close(self) -> None:
        self._consumer.close()


def test_a_topic_is_read_by_the_public_interface(broker: Broker, prefix: str) -> None:
    create_topic(broker.bootstrap, prefix + "lines", 2)
    records = [Record(b"%d" % n, partition=n % 2, timestamp=1000 + n) for n in range(100)]
    produce(broker.bootstrap, prefix + "lines", records)
    source = Topic(broker.bootstrap, prefix + "lines")
    lines = Flow("lines").source(source)
    assert sorted(map(int, lines.take(200))) == [*range(100)]
    reader = source.open_partition("1", 10, True)
    assert [one.value for one in reader.read(3)] == ["21", "23", "25"]
    assert reader.position == 13
    reader.close()
