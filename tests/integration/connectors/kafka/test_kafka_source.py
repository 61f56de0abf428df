"""A source hands out each record once, with the time it asks for, and knows where its log ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from meander import Flow, KafkaSource, header
from meander.connectors.kafka import topic_metadata
from meander.connectors.kafka.formats import TimeExtractor
from meander.connectors.kafka.source import reader
from meander.connectors.kafka.source.source import assigned, start_offsets
from meander.dataflow.api.plan import Plan
from meander.dataflow.interfaces import Partition
from meander.dataflow.keepalive import Keepalive
from meander.schemas.errors import MeanderError, SetupError
from tests.support.kafka.brokers import Broker
from tests.support.kafka.connector_rig import Rig
from tests.support.kafka.topics import (
    PATIENCE,
    Record,
    admin,
    consume_all,
    partitions_of,
    produce,
    until,
)

NOON = 1_357_041_600_000
"""Noon of 1 January 2013."""


@pytest.fixture
def rig(broker: Broker, prefix: str) -> Rig:
    made = Rig(broker.bootstrap, prefix)
    made.topic("flow.dead")
    return made


def numbers(count: int, partitions: int = 1) -> list[Record]:
    return [Record(b"%d" % i, partition=i % partitions, timestamp=NOON + i) for i in range(count)]


def test_each_record_of_each_partition_comes_once_and_in_order(rig: Rig) -> None:
    topic = rig.topic("in", 3)
    produce(rig.bootstrap, topic, numbers(5_000, 3))
    with rig.reading(KafkaSource(topic)) as reading:
        reading.to_end()
        for partition in range(3):
            chunks = reading.of(partition)
            values = [value for chunk in chunks for value in chunk.values]
            assert values == list(range(partition, 5_000, 3))
            offsets = [int(offset) for chunk in chunks for offset in chunk.offsets]
            assert offsets == list(range(len(values)))


def test_two_workers_share_a_topic_and_leave_nothing_out(rig: Rig) -> None:
    topic = rig.topic("in", 5)
    produce(rig.bootstrap, topic, numbers(500, 5))
    read: list[object] = []
    for worker in range(2):
        with rig.reading(KafkaSource(topic), rig.context(worker=worker, workers=2)) as reading:
            assert reading.reader.partitions == assigned(topic, 5, worker, 2)
            read += reading.to_end().values
    assert sorted(read, key=str) == sorted(range(500), key=str)


def test_partitions_go_from_reader_to_reader_and_each_record_comes_once_and_in_order(
    rig: Rig,
) -> None:
    topic, partition = rig.topic("in", 2), Partition(1)
    produce(rig.bootstrap, topic, numbers(6_000, 2))
    here, there = rig.context(worker=0, workers=2), rig.context(worker=1, workers=2)
    with (
        rig.reading(KafkaSource(topic), here) as one,
        rig.reading(KafkaSource(topic), there) as two,
    ):
        holder, other = (one, two) if partition in one.reader.partitions else (two, one)
        read: list[object] = []

        def more() -> list[object]:
            return [value for chunk in holder.of(partition) for value in chunk.values]

        while len(read) < 3_000:
            holder.chunks.clear()
            enough = min(500, 3_000 - len(read))
            holder.until(lambda: len(more()) >= enough, "more records")  # noqa: B023
            read += more()
            rest = holder.reader.release(partition)
            assert rest.offset == len(read)
            # There and back at once: nothing fetched before may come twice.
            holder.reader.adopt(partition, rest)
            other.reader.adopt(partition, holder.reader.release(partition))
            holder, other = other, holder
        assert read == list(range(1, 6_000, 2))
        assert partition not in other.reader.partitions
        holder.to_end()


def test_a_sleeping_worker_wakes_up_and_loses_no_record_that_woke_it(rig: Rig) -> None:
    topic = rig.topic("in")
    with rig.reading(KafkaSource(topic), rig.context(until_end=False)) as reading:

        def values() -> list[object]:
            return [value for chunk in reading.chunks for value in chunk.values]

        for number in range(20):
            produce(rig.bootstrap, topic, [Record(b"%d" % number, timestamp=NOON)])
            while len(values()) <= number:
                reading.reader.watch()
                assert rig.wakeup.wait(PATIENCE)
                rig.wakeup.clear()
                reading.reader.watch()
                reading.chunks += reading.reader.poll()
        assert values() == list(range(20))


def test_a_worker_without_a_partition_has_nothing_to_do(rig: Rig) -> None:
    topic = rig.topic("in")
    idler = next(worker for worker in range(2) if not assigned(topic, 1, worker, 2))
    with rig.reading(KafkaSource(topic), rig.context(worker=idler, workers=2)) as reading:
        assert reading.reader.partitions == []
        assert [reading.reader.poll() for _ in range(3)] == [[], [], []]


def test_small_topics_are_spread_over_the_workers() -> None:
    owners = {assigned(f"topic-{i}", 1, worker, 3) == [0] and worker
              for i in range(30) for worker in range(3)}  # fmt: skip
    assert owners >= {1, 2}
    for i in range(30):
        assert sum(len(assigned(f"topic-{i}", 1, worker, 3)) for worker in range(3)) == 1


TIMES: dict[str, tuple[TimeExtractor | None, Record]] = {
    "timestamp": (None, Record(b"{}", timestamp=NOON)),
    "header": (header("at"), Record(b"{}", headers=[("at", b"1"), ("at", b"%d" % NOON)])),
}


@pytest.mark.parametrize(("extract", "record"), TIMES.values(), ids=TIMES)
def test_a_records_time_is_where_the_user_says(
    rig: Rig, extract: TimeExtractor | None, record: Record
) -> None:
    topic = rig.topic("in")
    produce(rig.bootstrap, topic, [record])
    with rig.reading(KafkaSource(topic, time=extract)) as reading:
        assert reading.to_end().millis == [NOON]


def test_pairs_have_the_key_too(rig: Rig) -> None:
    topic = rig.topic("in")
    produce(rig.bootstrap, topic, [Record(b"1", b"a"), Record(b"2"), Record(None, b"c")])
    with rig.reading(KafkaSource(topic, pairs=True)) as reading:
        assert reading.to_end().values == [("a", 1), (None, 2), ("c", None)]


@pytest.mark.parametrize(
    ("start", "first"), [("earliest", 0), ("latest", None), (str(NOON + 60), 60), ("0", 0),
                         (str(NOON + 1000), None)],
)  # fmt: skip
def test_a_bounded_run_reads_from_its_start_to_what_was_there(
    rig: Rig, start: str, first: int | None
) -> None:
    topic = rig.topic("in")
    produce(rig.bootstrap, topic, numbers(100))
    with rig.reading(KafkaSource(topic), rig.context(start=start)) as reading:
        produce(rig.bootstrap, topic, [Record(b"999")])
        expected = [] if first is None else list(range(first, 100))
        assert reading.to_end().values == expected


def test_an_unbounded_run_from_the_latest_reads_what_comes_then(rig: Rig) -> None:
    topic = rig.topic("in")
    produce(rig.bootstrap, topic, numbers(10))
    context = rig.context(start="latest", until_end=False)
    with rig.reading(KafkaSource(topic), context) as reading:
        produce(rig.bootstrap, topic, [Record(b"999")])
        reading.until(lambda: bool(reading.values), "a record")
        assert reading.values == [999]
        assert not reading.reader.ended(Partition(0))


@pytest.mark.parametrize(("own", "count"), [("earliest", 10), ("latest", 0), (0, 10)])
def test_a_source_with_a_start_does_not_follow_that_of_the_run(
    rig: Rig, own: str | int, count: int
) -> None:
    topic = rig.topic("in")
    produce(rig.bootstrap, topic, numbers(10))
    context = rig.context(start="earliest" if own == "latest" else "latest")
    with rig.reading(KafkaSource(topic, start=own), context) as reading:
        assert len(reading.to_end().values) == count


def test_a_run_keeps_the_offsets_that_it_chose_first(rig: Rig) -> None:
    topic, other = rig.topic("in"), rig.topic("other")
    produce(rig.bootstrap, topic, numbers(10))
    flow = Flow("flow")
    for name, source in (
        ("late", KafkaSource(topic)), ("timed", KafkaSource(topic, start=NOON + 1000)),
        ("early", KafkaSource(other, start="earliest")),
    ):  # fmt: skip
        flow.source(source, name=name)
    chosen = start_offsets(rig.settings, Plan(flow).sources, "latest")
    assert chosen == {"late": [10], "timed": [10]}

    produce(rig.bootstrap, topic, numbers(3))
    client = admin(rig.bootstrap)
    client.create_partitions([NewPartitions(topic, 2)])[topic].result(PATIENCE)
    until(lambda: partitions_of(client, topic) == [0, 1], "there are two")
    produce(rig.bootstrap, topic, [Record(b"7", partition=1)])
    context = rig.context(start="latest", start_offsets=chosen["late"])
    with rig.reading(KafkaSource(topic), context) as reading:
        reading.to_end()
        assert [[*one.offsets] for one in reading.of(0)] == [[10, 11, 12]]
        assert [[*one.offsets] for one in reading.of(1)] == [[0]], "a new partition has no start"


@pytest.mark.parametrize("start", ["noon", "", "-5", "1.5", "9" * 14, "9" * 5000])
def test_a_start_that_is_no_position_is_refused(rig: Rig, start: str) -> None:
    topic = rig.topic("in")
    with (
        pytest.raises(SetupError, match="give earliest, latest, milliseconds since 1970, or"),
        rig.reading(KafkaSource(topic), rig.context(start=start)),
    ):
        pass


def transaction(rig: Rig, topic: str, values: range, finish: Callable[[Producer], None]) -> None:
    producer = Producer(rig.settings | {"transactional.id": f"{topic}.{values}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, b"%d" % value, partition=0)
    assert producer.flush(30) == 0
    finish(producer)


def test_markers_at_the_end_of_a_log_do_not_hide_the_end(rig: Rig) -> None:
    topic = rig.topic("in")
    transaction(rig, topic, range(3), lambda producer: producer.commit_transaction(30))
    transaction(rig, topic, range(3, 5), lambda producer: producer.abort_transaction(30))
    with rig.reading(KafkaSource(topic)) as reading:
        assert reading.to_end().values == [0, 1, 2]


def test_a_bounded_run_ends_before_what_is_not_yet_committed(rig: Rig) -> None:
    topic = rig.topic("in")
    produce(rig.bootstrap, topic, numbers(3))
    opened: list[Producer] = []
    transaction(rig, topic, range(3, 5), opened.append)
    with rig.reading(KafkaSource(topic)) as reading:
        assert reading.to_end().values == [0, 1, 2]
    opened[0].abort_transaction(30)


def test_a_paused_partition_keeps_what_it_has_while_others_go_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_PAUSED_BYTES", 10_000)
    topic = rig.topic("in", 2)
    wide = [Record(b'"%0200d"' % i, partition=i % 2) for i in range(20_000)]
    produce(rig.bootstrap, topic, wide)
    with rig.reading(KafkaSource(topic)) as reading:
        reading.reader.pause(Partition(0))
        reading.until(lambda: reading.reader.ended(Partition(1)), "the end of partition 1")
        assert not reading.of(0)
        assert not reading.reader.idle(Partition(0))
        assert not reading.reader.ended(Partition(0))
        reading.reader.resume(Partition(0))
        reading.to_end()
        assert sum(len(chunk.values) for chunk in reading.of(0)) == 10_000
        offsets = [int(offset) for chunk in reading.of(0) for offset in chunk.offsets]
        assert offsets == list(range(10_000))


def test_what_is_read_of_a_paused_partition_is_bounded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_PAUSED_BYTES", 10_000)
    topic = rig.topic("in", 2)
    wide = [Record(b'"%01000d"' % i, partition=i % 2) for i in range(10_000)]
    produce(rig.bootstrap, topic, wide)
    with rig.reading(KafkaSource(topic)) as reading:
        reading.reader.pause(Partition(0))
        reading.until(lambda: reading.reader.ended(Partition(1)), "the end of partition 1")
        held = reading.reader.held(Partition(0))
        assert 10_000 < held < 10_000 + reader.MAX_POLL_BYTES


def test_idle_means_that_all_there_was_has_been_handed_out(rig: Rig) -> None:
    topic = rig.topic("in")
    produce(rig.bootstrap, topic, numbers(2_500))
    with rig.reading(KafkaSource(topic), rig.context(until_end=False)) as reading:
        assert not reading.reader.idle(Partition(0))
        assert len(reading.to_idle().values) == 2_500
        produce(rig.bootstrap, topic, [Record(b"1")])
        reading.until(lambda: len(reading.values) == 2_501, "one more")
        reading.to_idle()


def test_an_empty_topic_is_idle_and_ended(rig: Rig) -> None:
    topic = rig.topic("in", 2)
    with rig.reading(KafkaSource(topic)) as reading:
        assert reading.to_idle().to_end().values == []


UNREADABLE = {
    "value": (KafkaSource("in"), Record(b"{oops", b"k"), "its value cannot be read: DecodeError"),
    "key": (KafkaSource("in", pairs=True), Record(b"1", b"\xff"), "its key cannot be read"),
}


@pytest.mark.parametrize(("source", "record", "reason"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_set_aside_as_it_was_with_the_reason(
    rig: Rig, source: KafkaSource, record: Record, reason: str
) -> None:
    topic = rig.topic("in")
    headed = Record(record.value, record.key, headers=[("mine", b"kept")])
    produce(rig.bootstrap, topic, [headed, Record(b"7", b"k")])
    with rig.reading(replace(source, topic=topic)) as reading:
        assert len(reading.to_end().values) == 1
        assert reading.offsets == [1]
        assert reading.reader.unreadable == 1
        (dead,) = consume_all(rig.bootstrap, rig.dead_topic)
    headers = dict(dead.headers)
    why = headers["meander.reason"]
    assert (dead.value, dead.key, headers["mine"]) == (record.value, record.key, b"kept")
    assert isinstance(why, bytes) and why.decode().startswith(reason)
    where = [headers[f"meander.{name}"] for name in ("topic", "partition", "offset")]
    assert where == [topic.encode(), b"0", b"0"]


def test_fail_fast_names_the_record(rig: Rig) -> None:
    topic = rig.topic("in")
    produce(rig.bootstrap, topic, [Record(b"7"), Record(b"{oops")])
    with (
        rig.reading(KafkaSource(topic, fail_fast=True)) as reading,
        pytest.raises(MeanderError, match=f"'{topic}', partition 0, offset 1: its value cannot"),
    ):
        reading.to_end()


def test_a_worker_is_heard_of_before_each_record_that_a_users_function_reads(rig: Rig) -> None:
    topic, heard = rig.topic("in"), list[None]()
    produce(rig.bootstrap, topic, [Record(b"7")] * 30)
    context = rig.context(pulse=Keepalive(lambda: heard.append(None), due=True))
    with rig.reading(KafkaSource(topic, value=int), context) as reading:
        reading.to_end()
    assert len(heard) == 30


def test_a_topic_full_of_what_cannot_be_read_still_ends(rig: Rig) -> None:
    topic = rig.topic("in")
    produce(rig.bootstrap, topic, [Record(b"{oops")] * 3_000)
    with rig.reading(KafkaSource(topic)) as reading:
        assert reading.to_end().values == []
    assert len(consume_all(rig.bootstrap, rig.dead_topic)) == 3_000


def test_a_missing_topic_is_a_sentence_and_is_not_created(rig: Rig) -> None:
    missing = rig.prefix + "nowhere"
    with (
        pytest.raises(SetupError, match=f"topic '{missing}': it does not exist; create it"),
        rig.reading(KafkaSource(missing)),
    ):
        pass
    assert missing not in admin(rig.bootstrap).list_topics(timeout=PATIENCE).topics


def committed(rig: Rig, group: str, topic: str) -> int:
    """What a lag tool sees, or less than 0."""
    consumer = Consumer(rig.settings | {"group.id": group})
    (place,) = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE)
    consumer.close()
    return place.offset


def test_what_has_passed_is_seen_by_lag_tools(rig: Rig) -> None:
    topic = rig.topic("in")
    transaction(rig, topic, range(10), lambda producer: producer.commit_transaction(30))
    group = topic_metadata.group(rig.prefix, "flow")
    with rig.reading(KafkaSource(topic), rig.context(flow="flow")) as reading:
        reading.to_end().reader.passed(Partition(0), 4)
        reading.until(lambda: committed(rig, group, topic) == 4, "4 are committed")
        reading.reader.passed(Partition(0), 10)
    # The marker counts too, or lag would never be 0.
    until(lambda: committed(rig, group, topic) == 11, "all is committed")
