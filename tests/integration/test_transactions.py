"""I8: lots become visible as a whole, in order, and none of who has lost its id to another."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from connectors.committer import Committer, Parcel
from connectors.trimmed import TrimmedTopic
from connectors.whole import whole
from schemas.errors import MeanderError
from tests.brokers import Broker
from tests.kafka_tools import PATIENCE, consume_all, create_topic, until


class Opened:
    """A committer, and how to wait for it."""

    def __init__(self, broker: Broker, id: str) -> None:
        self._ended = threading.Event()
        self.it = Committer({"bootstrap.servers": broker.bootstrap}, id, self._ended.set)

    def commit(self, topic: str, *values: bytes) -> None:
        self._ended.clear()
        self.it.commit([Parcel(topic, values, [None] * len(values))])
        assert self._ended.wait(PATIENCE)

    def close(self) -> None:
        self.it.close()


def read(broker: Broker, topic: str, *, committed: bool = True) -> list[bytes | None]:
    return [record.value for record in consume_all(broker.bootstrap, topic, committed=committed)]


def test_lots_are_visible_in_the_order_given(broker: Broker, prefix: str) -> None:
    create_topic(broker.bootstrap, prefix + "a")
    one = Opened(broker, prefix + "one")
    for n in range(5):
        one.commit(prefix + "a", b"%d" % n, b"again %d" % n)
        assert not one.it.busy
    one.close()
    wanted = [value for n in range(5) for value in (b"%d" % n, b"again %d" % n)]
    assert read(broker, prefix + "a") == wanted
    assert whole({"bootstrap.servers": broker.bootstrap}, prefix + "a") == wanted


def test_who_has_lost_its_id_commits_nothing_and_says_so(broker: Broker, prefix: str) -> None:
    create_topic(broker.bootstrap, prefix + "a")
    first = Opened(broker, prefix + "one")
    first.commit(prefix + "a", b"before")
    second = Opened(broker, prefix + "one")
    first.commit(prefix + "a", b"zombie")
    with pytest.raises(MeanderError, match="fenced by a newer instance"):
        assert first.it.busy
    second.commit(prefix + "a", b"after")
    assert not second.it.busy
    assert read(broker, prefix + "a") == [b"before", b"after"]
    first.close()
    second.close()


def test_what_a_producer_had_begun_is_undone_when_another_takes_its_id(
    broker: Broker, prefix: str
) -> None:
    create_topic(broker.bootstrap, prefix + "a")
    first = Opened(broker, prefix + "one")
    first.it._producer.begin_transaction()
    first.it._send(Parcel(prefix + "a", [b"begun"], [None]))
    first.it._producer.flush()
    until(
        lambda: read(broker, prefix + "a", committed=False) == [b"begun"],
        "it is on the topic, and open",
    )
    second = Opened(broker, prefix + "one")
    second.commit(prefix + "a", b"after")
    assert read(broker, prefix + "a") == [b"after"]
    first.close()
    second.close()


def test_marks_that_nobody_needs_go(broker: Broker, prefix: str) -> None:
    create_topic(broker.bootstrap, prefix + "marks")
    one = Opened(broker, prefix + "one")
    one.commit(prefix + "marks", b"early", b"late")
    # Kafka says that it is committed before readers come past it.
    until(lambda: read(broker, prefix + "marks") == [b"early", b"late"], "both are there")
    with closing(TrimmedTopic({"bootstrap.servers": broker.bootstrap}, prefix + "marks")) as marks:
        end = marks.ask()
        until(lambda: end() is not None, "the answer has come")
        assert end() == 3, "with the transaction's own"
        marks.forget(1)
        until(lambda: read(broker, prefix + "marks") == [b"late"], "the first has gone")
    one.close()
