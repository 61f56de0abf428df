"""I8: lots become visible as a whole, in order, and none of who has lost its id to another."""

from __future__ import annotations

import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.sink import transactional_producer
from meander.connectors.kafka.sink.record_limits import (
    BATCH_OVERHEAD,
    HEADER_BYTES,
    MAX_BYTES,
    RECORD_OVERHEAD,
)
from meander.connectors.kafka.sink.sink import KafkaSink
from meander.connectors.kafka.sink.topic_batch import TopicBatch
from meander.connectors.kafka.sink.transaction_buffer import TransactionBuffer
from meander.connectors.kafka.sink.transactional_producer import TransactionalProducer
from meander.connectors.kafka.sink.transactions import KafkaTransactions, StricterLimits
from meander.connectors.topics.full_read import read_all
from meander.connectors.topics.truncation import TruncatedTopic
from meander.dataflow.backpressure.memory_limit import MemoryLimit
from meander.dataflow.errors import WorkerLost
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.exactly_once.interfaces import ChecksummedWriter
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import ExecutionId, WorkerId
from meander.state.times.time import from_millis
from tests.support.kafka.brokers import Broker
from tests.support.kafka.connector_rig import Rig, batch, hidden
from tests.support.kafka.topics import (
    PATIENCE,
    admin,
    consume_all,
    create_topic,
    delete_topics,
    partitions_of,
    until,
)


class Opened:
    """A committer, and how to wait for it."""

    def __init__(self, broker: Broker, id: str) -> None:
        self._ended = threading.Event()
        self.it = TransactionalProducer(
            {"bootstrap.servers": broker.bootstrap}, id, self._ended.set
        )

    def commit(self, topic: str, *values: bytes) -> None:
        self._ended.clear()
        self.it.commit([TopicBatch(topic, values, [None] * len(values))])
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
    assert read_all({"bootstrap.servers": broker.bootstrap}, prefix + "a") == wanted


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


def test_a_deleted_topic_of_a_transaction_is_named(
    broker: Broker, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_producer, "TRANSACTION_TIMEOUT", 1.0)
    monkeypatch.setitem(client._TRANSACTIONAL_MUST, "message.timeout.ms", 1000)
    for topic in prefix + "left", prefix + "deleted":
        create_topic(broker.bootstrap, topic)
    one = Opened(broker, prefix + "one")
    one.commit(prefix + "deleted", b"before")
    delete_topics(broker.bootstrap, prefix + "deleted")
    until(lambda: not partitions_of(admin(broker.bootstrap), prefix + "deleted"), "it is gone")
    one.it.commit([TopicBatch(prefix + name, [b"a"], [None]) for name in ("left", "deleted")])
    told = f"^topic '{prefix}deleted': it was deleted while the flow ran; create it again"
    with pytest.raises(MeanderError, match=told):
        until(lambda: not one.it.busy, "the refusal")
    assert read(broker, prefix + "left") == []
    one.close()


def test_a_refused_topic_is_named_where_its_transaction_cannot_be_aborted(
    broker: Broker, prefix: str
) -> None:
    create_topic(broker.bootstrap, prefix + "a")
    one = Opened(broker, prefix + "one")
    one.it._report(prefix + "a", KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), Message())
    fenced = KafkaException(KafkaError(KafkaError._FENCED, fatal=True))
    with pytest.raises(WorkerLost, match=f"^topic '{prefix}a': the broker refused access"):
        one.it._abort(fenced, 0.0)
    one.close()


def test_what_a_producer_had_begun_is_undone_when_another_takes_its_id(
    broker: Broker, prefix: str
) -> None:
    create_topic(broker.bootstrap, prefix + "a")
    first = Opened(broker, prefix + "one")
    first.it._producer.begin_transaction()
    first.it._send(TopicBatch(prefix + "a", [b"begun"], [None]))
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


def test_unneeded_commit_markers_are_deleted(broker: Broker, prefix: str) -> None:
    create_topic(broker.bootstrap, prefix + "commit_markers")
    one = Opened(broker, prefix + "one")
    one.commit(prefix + "commit_markers", b"early", b"late")
    # Kafka says that it is committed before readers come past it.
    until(lambda: read(broker, prefix + "commit_markers") == [b"early", b"late"], "both are there")
    with closing(
        TruncatedTopic({"bootstrap.servers": broker.bootstrap}, prefix + "commit_markers")
    ) as markers:
        end = markers.request_end()
        until(lambda: end() is not None, "the answer has come")
        assert end() == 3, "with the transaction's own"
        markers.truncate(1)
        until(lambda: read(broker, prefix + "commit_markers") == [b"late"], "the first has gone")
    one.close()


def test_a_time_of_many_bounds_leaves_in_one_transaction(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    """I6: what memory has no room for lies on disk until then, and readers see all or nothing."""
    rig, most = Rig(broker.bootstrap, prefix), 100_000
    topic, markers = rig.topic("large"), rig.topic("commit_markers")
    spools = partial(
        TransactionBuffer, MemoryLimit("transactions of 'one'", 1 << 20, "max_spill"), tmp_path
    )
    made = KafkaTransactions(
        rig.settings, prefix + "one", markers, rig.wakeup, most, spools, 1 << 20
    )
    writer = made.writer(KafkaSink(topic, value="bytes"), rig.context())
    values: list[bytes | None] = [b"%d" % n * 1000 for n in range(100, 300)]
    for value in values:
        assert writer.write(batch([value], millis=7)) == 1
        assert made._waiting.memory_bytes <= most
    assert (made._waiting.spilled, writer.full, made.busy) == (True, True, False)
    made.commit(mark(8))
    until(lambda: writer.delivered() == 1, "it is committed")
    until(lambda: read(broker, topic) == values, "all of it is there, in order")
    assert writer.write(batch([b"small"], millis=9)) == 2
    made.commit(mark(10))
    until(lambda: read(broker, topic) == [*values, b"small"], "the next follows")
    too_many = batch(values * 3, millis=11)
    with pytest.raises(MeanderError, match="results on disk wait .* raise the flow's max_spill"):
        writer.write(too_many)
    made.close()
    assert read(broker, topic) == [*values, b"small"], "nothing leaves that is not committed"


def transactions(
    broker: Broker, prefix: str, folder: Path
) -> tuple[KafkaTransactions, ChecksummedWriter, str]:
    """With a sink whose topic accepts less than is known of it."""
    rig = Rig(broker.bootstrap, prefix)
    topic, marks = rig.topic("out", max_message_bytes="2000"), rig.topic("marks")
    buffers = partial(TransactionBuffer, MemoryLimit("'one'", 1 << 20, "max_spill"), folder)
    made = KafkaTransactions(
        rig.settings, prefix + "one", marks, rig.wakeup, 1 << 24, buffers, 1 << 20
    )
    return made, made.writer(KafkaSink(topic, value="bytes"), rig.context()), topic


def test_a_batch_that_a_topic_refuses_is_committed_in_smaller_ones(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    made, writer, topic = transactions(broker, prefix, tmp_path)
    values = [b"%d" % n for n in range(1_000)]
    assert writer.write(batch(values)) == 1
    made.commit(mark(1))
    until(lambda: writer.delivered() == 1, "it is committed")
    until(lambda: read(broker, topic) == values, "all of it is there, in order")
    made.close()


@pytest.mark.parametrize("visible", [True, False], ids=["a limit that is seen", "a hidden one"])
def test_a_record_that_a_topic_refuses_ends_the_execution_with_the_lower_limit(
    broker: Broker, prefix: str, tmp_path: Path, visible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: nothing of the transaction is visible."""
    if not visible:
        monkeypatch.setattr(topic_metadata, "configs", hidden)
    made, writer, topic = transactions(broker, prefix, tmp_path)
    writer.write(batch([*(b"%d" % n for n in range(1_000)), b"x" * 5_000]))
    made.commit(mark(1))
    with pytest.raises(StricterLimits) as raised:
        until(lambda: writer.delivered() == 1, "the refusal")
    learned = 5_000 + RECORD_OVERHEAD + HEADER_BYTES + BATCH_OVERHEAD - 1
    assert raised.value.limits == {topic: {MAX_BYTES: str(2000 if visible else learned)}}
    assert read(broker, topic) == []
    made.close()


def mark(millis: int) -> CommitMarker:
    return CommitMarker(ExecutionId(1), WorkerId(0), {"sink": from_millis(millis)}, ())
