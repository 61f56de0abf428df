"""I5: whoever reads the checkpoints topic finds all that is kept, also while its beginning goes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from meander.app.recovery.checkpoint_index import CheckpointIndex, retained_checkpoints
from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.sink.record_producer import RecordProducer
from meander.connectors.topics.checkpoints import (
    CheckpointsReader,
    CheckpointsTopic,
    CheckpointUnreadable,
    append,
    delete_records,
    open_checkpoints,
)
from meander.connectors.topics.internal_topics import TopicNames, topic_names
from meander.connectors.topics.truncation import TruncatedTopic
from meander.dataflow.checkpoint.record_writer import Recorded
from meander.dataflow.control.decisions import SavepointDecision, StartDecision
from meander.state.checkpoint.checkpoint import Checkpoint, Cut
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, ExecutionId, WorkerId
from meander.state.layers import parts
from meander.state.layers.manifest import Manifest
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import consume_all, create_topic, until

LIFE = ExecutionId(5)
BEGUN = CheckpointIndex.of(
    [(LIFE, StartDecision(0, (WorkerId(0),), 1, 0)), (LIFE, SavepointDecision("named", 3, 0))]
)
"""A life that has begun with what lay at offset 0, and has taken a savepoint."""


def checkpoint(number: int) -> Checkpoint:
    return Checkpoint(number, LIFE, BinSpace(1), 0, (), Cut(members=(WorkerId(0),)))


@pytest.fixture
def flow(broker: Broker, prefix: str) -> TopicNames:
    """A flow that has taken nine checkpoints."""
    flow = topic_names(prefix, "flow")
    create_topic(broker.bootstrap, flow.checkpoints)
    create_topic(broker.bootstrap, flow.in_flight)
    for number in range(1, 10):
        append(settings(broker), flow, checkpoint(number))
    return flow


def settings(broker: Broker) -> Settings:
    return {"bootstrap.servers": broker.bootstrap}


def cut_off(broker: Broker, flow: TopicNames, end: int) -> None:
    topic = flow.checkpoints
    with closing(TruncatedTopic(settings(broker), topic)) as trimmed:
        trimmed.truncate(end)
        until(lambda: consume_all(broker.bootstrap, topic)[0].offset == end, "the beginning goes")


def offsets(there: CheckpointsReader) -> list[int]:
    found = retained_checkpoints(there, BEGUN)
    assert not found.unreadable
    return [*found.found]


def test_what_is_kept_is_found_on_a_topic_that_begins_later(
    broker: Broker, flow: TopicNames
) -> None:
    cut_off(broker, flow, 3)
    with open_checkpoints(settings(broker), flow) as there:
        assert there.newest() == (8, checkpoint(9))
        assert offsets(there) == [3, 6, 7, 8], "the newest, and the savepoint"


def test_what_goes_while_it_is_read_is_left_out(broker: Broker, flow: TopicNames) -> None:
    with open_checkpoints(settings(broker), flow) as there:
        cut_off(broker, flow, 7)
        found = retained_checkpoints(there, BEGUN)
        assert [*found.found] == [7, 8]
        assert [*found.unreadable] == [3], "a savepoint is missed"


def test_the_newest_is_found_where_a_running_flow_has_replaced_all_that_were_there(
    broker: Broker, flow: TopicNames
) -> None:
    with open_checkpoints(settings(broker), flow) as there:
        append(settings(broker), flow, checkpoint(10))
        cut_off(broker, flow, 9)
        assert there.newest() == (9, checkpoint(10))


def test_an_execution_with_few_checkpoints_has_released_its_first(
    broker: Broker, flow: TopicNames
) -> None:
    """What others have written since crowds its own out of sight."""
    cut_off(broker, flow, 3)
    for number in range(20, 26):
        other = Checkpoint(number, ExecutionId(3), BinSpace(1), 0, (), Cut(members=(WorkerId(0),)))
        append(settings(broker), flow, other)
    with open_checkpoints(settings(broker), flow) as there:
        assert offsets(there) == [3]
        assert there.newest(BEGUN.is_usable) == (8, checkpoint(9))


MANIFESTS = tuple(Manifest("totals", Bin(bin), 0, ()) for bin in range(64))
LARGE = replace(checkpoint(10), manifests=MANIFESTS)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 200)


@pytest.mark.usefixtures("small_parts")
def test_a_checkpoint_of_more_than_a_record_lies_in_parts_on_the_in_flight_topic(
    broker: Broker, flow: TopicNames
) -> None:
    assert append(settings(broker), flow, LARGE) == 9
    with open_checkpoints(settings(broker), flow) as there:
        found = there.at(9)
        assert there.newest() == (9, found) and found == replace(
            LARGE, parts=tuple(found.locations)
        )
        assert there.number == 10 and offsets(there) == [3, 7, 8, 9]
    lying = consume_all(broker.bootstrap, flow.in_flight)
    assert [record.key for record in lying] == [place.key for place in found.parts]
    assert b"".join(record.value or b"" for record in lying) == LARGE.to_bytes()
    # A part that is gone, and one that is another, make it unreadable.
    delete_records(settings(broker), flow.in_flight, found.parts[2:3])
    with open_checkpoints(settings(broker), flow) as there:
        assert there.at(9) == found, "compaction has yet to come by"
    key, *others = found.parts
    lost = replace(LARGE, parts=(replace(key, key=b"another"), *others)).header(LARGE.to_bytes())
    spoilt = replace(LARGE, parts=(*others, key)).header(LARGE.to_bytes())
    with closing(RecordProducer(settings(broker), flow.checkpoints)) as sender:
        for record in (lost, spoilt):
            sender.append(record, None, lambda _: None)
        sender.flush(10)
    with open_checkpoints(settings(broker), flow) as there:
        assert "it has no record of key 'another'" in str(there.read(10))
        assert "differ from the written ones" in str(there.read(11))
        assert isinstance(there.read(10), CheckpointUnreadable) and isinstance(
            there.read(11), CheckpointUnreadable
        )


@pytest.mark.usefixtures("small_parts")
def test_a_driver_that_dies_as_it_writes_parts_leaves_no_checkpoint(
    broker: Broker, flow: TopicNames
) -> None:
    with closing(CheckpointsTopic(settings(broker), flow)) as written:
        recorded: Callable[[], Recorded | None] = written.write(LARGE)
        written._in_flight._producer.flush(10)
        assert len(consume_all(broker.bootstrap, flow.in_flight)) > 3
        assert len(consume_all(broker.bootstrap, flow.checkpoints)) == 9
        with open_checkpoints(settings(broker), flow) as there:
            assert there.newest() == (8, checkpoint(9))

        def goes_on() -> bool:
            written.pump()
            return recorded() is not None

        until(goes_on, "it becomes durable")
    with open_checkpoints(settings(broker), flow) as there:
        assert there.at(9).manifests == MANIFESTS
