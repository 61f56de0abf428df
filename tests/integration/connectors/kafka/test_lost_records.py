"""A place in a source topic that is no more is told, each by itself: no record is left out unless
that is allowed, and none of a topic made anew is handed out."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import TopicPartition

from meander.connectors.kafka.source.lost_records import LostRecords
from meander.connectors.kafka.source.source import KafkaSource, assigned, lost_records
from meander.dataflow.interfaces import Rest
from meander.schemas.errors import SetupError
from tests.support.kafka.brokers import Broker
from tests.support.kafka.connector_rig import Rig
from tests.support.kafka.topics import PATIENCE, Record, admin, create_topic, produce, until


def test_each_lost_offset_is_reported(broker: Broker, prefix: str) -> None:
    settings, topic = {"bootstrap.servers": broker.bootstrap}, prefix + "lines"
    create_topic(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, [Record(b"%d" % n, partition=n % 2) for n in range(20)])
    assert lost_records(settings, topic, {0: 0, 1: 10}) == ([], [])
    expire(broker, topic, 0, 4)

    def told() -> tuple[list[LostRecords], list[int]]:
        return lost_records(settings, topic, {0: 3, 1: 11, 2: 0})

    until(lambda: len(told()[0]) == 2, f"the log names both losses: {told()}")
    (late, early), absent = told()
    assert "at offset 3 of partition 0, which holds 4 to 10: retention has" in str(late)
    assert "at offset 11 of partition 1, which holds 0 to 10: the topic was rec" in str(early)
    assert absent == [2]
    assert lost_records(settings, topic, {0: 4, 1: 10}) == ([], [])


def expire(broker: Broker, topic: str, partition: int, end: int) -> None:
    """Retention deletes the records of a partition before an offset."""
    client, place = admin(broker.bootstrap), TopicPartition(topic, partition, end)
    client.delete_records([place])[place].result(PATIENCE)


class Expired:
    """A topic of two partitions with ten records each; one has lost its first six."""

    def __init__(self, broker: Broker, prefix: str) -> None:
        self.rig = Rig(broker.bootstrap, prefix)
        self.topic = self.rig.topic("numbers", 2)
        records = [Record(b"%d" % (n // 2), partition=n % 2) for n in range(20)]
        produce(broker.bootstrap, self.topic, records)
        (self.there,), (self.lost,) = (assigned(self.topic, 2, worker, 2) for worker in (0, 1))
        expire(broker, self.topic, self.lost, 6)
        self.where = f"topic {self.topic!r}, partition {self.lost}"

    def told(self, error: SetupError) -> bool:
        return str(error).startswith(
            f"{self.where}: it is to be read at offset 3 of partition {self.lost}, which holds 6 to"
            " 10: retention has deleted 3 records; lengthen its retention, and skip the lost"
            " records with --skip-lost, or run meander reset"
        )

    def warned(self, caplog: pytest.LogCaptureFixture) -> bool:
        said = f"partition={self.lost} first_offset=3 next_offset=6 reason="
        return any("records_skipped" in line and said in line for line in caplog.messages)


@pytest.fixture
def expired(broker: Broker, prefix: str) -> Expired:
    return Expired(broker, prefix)


@pytest.mark.parametrize("skip", [False, True])
def test_a_reader_that_opens_passes_over_what_is_lost_where_that_is_allowed(
    expired: Expired, caplog: pytest.LogCaptureFixture, skip: bool
) -> None:
    rests = {expired.lost: Rest(3, None)}
    context, source = expired.rig.context(skip_lost=skip), KafkaSource(expired.topic)
    if not skip:
        with pytest.raises(SetupError) as caught, expired.rig.reading(source, context, rests):
            pass
        assert expired.told(caught.value)
        return
    with caplog.at_level(logging.WARNING), expired.rig.reading(source, context, rests) as reading:
        reading.until(lambda: len(reading.of(expired.lost)) > 0, "what is left")
        assert expired.warned(caplog)
        assert [int(one) for one in reading.of(expired.lost)[0].offsets] == [6, 7, 8, 9]


@pytest.mark.parametrize("skip", [False, True])
def test_a_reader_whose_next_offset_goes_passes_over_what_is_lost_where_that_is_allowed(
    expired: Expired, caplog: pytest.LogCaptureFixture, skip: bool
) -> None:
    """Retention passes it while the flow runs; what it reads besides goes on."""
    context = expired.rig.context(workers=2, until_end=False, skip_lost=skip)
    source = KafkaSource(expired.topic)
    with caplog.at_level(logging.WARNING), expired.rig.reading(source, context) as reading:
        reading.until(lambda: reading.offsets == [*range(10)], "the partition that is whole")
        reading.reader.adopt(expired.lost, Rest(3, None))
        if not skip:
            with pytest.raises(SetupError) as caught:
                reading.until(lambda: bool(reading.of(expired.lost)), "it is told")
            assert expired.told(caught.value)
            return
        reading.until(lambda: len(reading.offsets) == 14, "what is left")
        assert expired.warned(caplog)
        assert [int(one) for c in reading.of(expired.lost) for one in c.offsets] == [6, 7, 8, 9]
        assert reading.reader.rest(expired.lost).offset == 10
        produce(expired.rig.bootstrap, expired.topic, [Record(b"10", partition=expired.lost)])
        reading.until(lambda: len(reading.offsets) == 15, "and what comes then")


def test_no_record_of_a_recreated_topic_is_read(broker: Broker, prefix: str) -> None:
    """The reader stands still meanwhile, as in a process that is stopped: its client fetches what
    lies at its offset by then."""
    rig = Rig(broker.bootstrap, prefix)
    topic = rig.topic("numbers", 1)
    produce(broker.bootstrap, topic, [Record(b"%d" % n) for n in range(3)])
    source, context = KafkaSource(topic), rig.context(until_end=False)
    with rig.reading(source, context) as reading:
        reading.to_idle()
        # Nobody polls from here on, so the waiter rests.
        made_anew(broker, topic)
        produce(broker.bootstrap, topic, [Record(b"%d" % n) for n in range(100, 110)])
        with pytest.raises(SetupError, match=f"{topic}': it has been deleted and recreated"):
            reading.until(lambda: len(reading.offsets) > 3, "what lies there now")
        assert reading.values == [0, 1, 2]
    id = rig.id_of(topic)
    context = rig.context(topics={topic: "of the topic that was there"})
    with pytest.raises(SetupError, match="recreated"), rig.reading(source, context):
        pass
    with rig.reading(source, rig.context(topics={topic: id})) as reading:
        assert reading.to_end().values == [*range(100, 110)]


def made_anew(broker: Broker, topic: str) -> None:
    client = admin(broker.bootstrap)
    client.delete_topics([topic])[topic].result(PATIENCE)
    until(lambda: topic not in client.list_topics().topics, "it is gone")
    create_topic(broker.bootstrap, topic)
