"""I5: whoever reads the checkpoints topic finds all that is kept, also while its beginning goes."""

from __future__ import annotations

from contextlib import closing

import pytest

from app.savepoints import Known, kept
from connectors.checkpoints import CheckpointsReader, append, reading
from connectors.client import Settings
from connectors.trimmed import TrimmedTopic
from dataflow.decisions import Begins, Keeps
from state.bins import BinSpace
from state.checkpoint import Checkpoint, Cut
from state.ids import Incarnation, WorkerId
from tests.brokers import Broker
from tests.kafka_tools import consume_all, create_topic, until

LIFE = Incarnation(5)
BEGUN = Known.by([(LIFE, Begins(0, (WorkerId(0),), 1, 0)), (LIFE, Keeps("named", 3, 0))])
"""A life that has begun with what lay at offset 0, and has taken a savepoint."""


def checkpoint(number: int) -> Checkpoint:
    return Checkpoint(number, LIFE, BinSpace(1), 0, (), Cut(members=(WorkerId(0),)))


@pytest.fixture
def topic(broker: Broker, prefix: str) -> str:
    create_topic(broker.bootstrap, prefix + "checkpoints")
    for number in range(1, 10):
        append(settings(broker), prefix + "checkpoints", checkpoint(number))
    return prefix + "checkpoints"


def settings(broker: Broker) -> Settings:
    return {"bootstrap.servers": broker.bootstrap}


def cut_off(broker: Broker, topic: str, end: int) -> None:
    with closing(TrimmedTopic(settings(broker), topic)) as trimmed:
        trimmed.forget(end)
        until(lambda: consume_all(broker.bootstrap, topic)[0].offset == end, "the beginning goes")


def offsets(there: CheckpointsReader) -> list[int]:
    found = kept(there, BEGUN)
    assert not found.unreadable
    return [*found.found]


def test_what_is_kept_is_found_on_a_topic_that_begins_later(broker: Broker, topic: str) -> None:
    cut_off(broker, topic, 3)
    with reading(settings(broker), topic) as there:
        assert there.newest() == (8, checkpoint(9))
        assert offsets(there) == [3, 6, 7, 8], "the newest, and the savepoint"


def test_what_goes_while_it_is_read_is_left_out(broker: Broker, topic: str) -> None:
    with reading(settings(broker), topic) as there:
        cut_off(broker, topic, 7)
        found = kept(there, BEGUN)
        assert [*found.found] == [7, 8]
        assert [*found.unreadable] == [3], "a savepoint is missed"


def test_a_life_that_has_taken_few_has_let_go_of_what_it_began_with(
    broker: Broker, topic: str
) -> None:
    """What others have written since crowds its own out of sight."""
    cut_off(broker, topic, 3)
    for number in range(20, 26):
        other = Checkpoint(number, Incarnation(3), BinSpace(1), 0, (), Cut(members=(WorkerId(0),)))
        append(settings(broker), topic, other)
    with reading(settings(broker), topic) as there:
        assert offsets(there) == [3]
        assert there.newest(BEGUN.counts) == (8, checkpoint(9))
