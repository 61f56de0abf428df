"""A reader of an internal topic continues at the new start where the first records are deleted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from confluent_kafka import Consumer, TopicPartition

from meander.connectors.kafka import client
from meander.connectors.kafka.topic_metadata import group
from meander.connectors.topics.control import ControlTopic
from meander.connectors.topics.full_read import read_all
from meander.connectors.topics.internal_topics import TopicNames, ensure_internal
from meander.connectors.topics.record_fetcher import fetch_records
from meander.connectors.topics.status import StatusReader, StatusTopic
from meander.dataflow.control.decisions import CommandsDoneDecision
from meander.schemas.errors import MeanderError
from meander.schemas.status import Accepted
from meander.state.layers.topic import RecordLocation, RecordMissing
from tests.support.kafka.brokers import Broker
from tests.support.kafka.connector_rig import Rig
from tests.support.kafka.topics import PATIENCE, Record, admin, delete_topics, produce, until

RECORDS = [b"%d" % n for n in range(10)]
Delete = Callable[[str, int], None]


@pytest.fixture
def rig(broker: Broker, prefix: str) -> Rig:
    return Rig(broker.bootstrap, prefix)


@pytest.fixture
def names(rig: Rig) -> TopicNames:
    return ensure_internal(client.admin(rig.settings), rig.prefix, "flow")


@pytest.fixture
def delete_after_watermarks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Delete:
    """Delete the records of a topic before an offset, once a reader has asked for its bounds."""
    ask = client.watermarks

    def between(topic: str, end: int) -> None:
        def answer(consumer: Consumer, asked: str, partition: int) -> tuple[int, int]:
            bounds = ask(consumer, asked, partition)
            monkeypatch.setattr(client, "watermarks", ask)
            delete_before(rig, topic, end)
            return bounds

        monkeypatch.setattr(client, "watermarks", answer)

    return between


def delete_before(rig: Rig, topic: str, end: int) -> None:
    # The client lives until it has answered.
    using, place = admin(rig.bootstrap), TopicPartition(topic, 0, end)
    using.delete_records([place])[place].result(PATIENCE)


@pytest.mark.parametrize("end", [1, 4, 10])
def test_a_full_read_gives_the_records_behind_the_deleted_ones(
    rig: Rig, names: TopicNames, delete_after_watermarks: Delete, end: int
) -> None:
    produce(rig.bootstrap, names.commit_markers, map(Record, RECORDS))
    delete_after_watermarks(names.commit_markers, end)
    assert read_all(rig.settings, names.commit_markers) == RECORDS[end:]


def test_a_full_read_has_no_gap_where_records_go_as_it_reads(
    rig: Rig, names: TopicNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record before the deleted ones would claim results that those behind it deny."""
    large = [one * 200_000 for one in RECORDS]
    produce(rig.bootstrap, names.commit_markers, map(Record, large))
    small = {"fetch.message.max.bytes": "1000", "queued.min.messages": "1"}
    settings = rig.settings | small
    consumer = client.reader(settings, names.commit_markers)
    deleting = _Deleting(consumer, rig, names.commit_markers)
    monkeypatch.setattr(client, "reader", lambda *_: deleting)
    found = read_all(settings, names.commit_markers)
    assert deleting.deleted
    assert found in ([*large], large[8:])


class _Deleting:
    """A consumer during whose first record the topic loses its first eight."""

    def __init__(self, consumer: Consumer, rig: Rig, topic: str) -> None:
        self._consumer, self._rig, self._topic = consumer, rig, topic
        self.deleted = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._consumer, name)

    def consume(self, count: int, timeout: float) -> list[object]:
        if not self.deleted:
            self.deleted = True
            delete_before(self._rig, self._topic, 8)
            return []
        return list(self._consumer.consume(count, timeout))


def test_a_full_read_of_a_recreated_topic_is_an_error_that_advises_no_reset(
    rig: Rig, names: TopicNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(rig.bootstrap, names.decisions, map(Record, RECORDS))
    bounds = iter([(5, 10)])
    ask = client.watermarks
    monkeypatch.setattr(client, "watermarks", lambda *place: next(bounds, None) or ask(*place))
    delete_topics(rig.bootstrap, names.decisions)
    until(lambda: not _exists(rig, names.decisions), "the topic is gone")
    ensure_internal(client.admin(rig.settings), rig.prefix, "flow")
    with pytest.raises(MeanderError, match="recreated it") as raised:
        read_all(rig.settings, names.decisions)
    assert "reset" not in str(raised.value) and "retention" not in str(raised.value)


def _exists(rig: Rig, topic: str) -> bool:
    return topic in admin(rig.bootstrap).list_topics(timeout=PATIENCE).topics


def test_commands_behind_expired_ones_are_read(
    rig: Rig, names: TopicNames, delete_after_watermarks: Delete
) -> None:
    produce(rig.bootstrap, names.control, map(Record, RECORDS))
    found: list[bytes | None] = []
    with closing(ControlTopic(rig.settings, names.control, group(rig.prefix, "flow"))) as control:
        delete_after_watermarks(names.control, 4)
        control.start(CommandsDoneDecision(0))

        def all_read() -> bool:
            found.extend(one.value for one in control.poll())
            return len(found) == 6

        until(all_read, "the commands behind")
    assert found == RECORDS[4:]


@pytest.mark.parametrize("end", [4, 10])
def test_events_behind_expired_ones_are_read(
    rig: Rig, names: TopicNames, delete_after_watermarks: Delete, end: int
) -> None:
    with closing(StatusTopic(rig.settings, names.status)) as written:
        for n in range(10):
            written.write(Accepted(id=f"{n}", offset=n, time=5, at=5, strategy="fluid", bins=[n]))
        written.flush(PATIENCE)
    delete_after_watermarks(names.status, end)
    with closing(StatusReader(rig.settings, names.status, "flow")) as reader:
        assert (reader.low, reader.high) == (0, 10)
        assert [one.offset for one in reader.all()] == [*range(end, 10)]


def test_a_location_that_a_topic_never_had_is_a_missing_record(rig: Rig, names: TopicNames) -> None:
    beyond = RecordLocation(b"layer", 0, 1_000, 10)
    with pytest.raises(RecordMissing, match="recreated it") as raised:
        fetch_records(rig.settings, names.state, [beyond], PATIENCE)
    assert "reset" not in str(raised.value) and "lag" not in str(raised.value)
