"""A broker that goes away and comes back costs time, and nothing else."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from meander import KafkaSink, KafkaSource
from meander.connectors.kafka import client, original_reads
from meander.connectors.kafka.dead_letter import KafkaDeadLetters
from meander.connectors.kafka.original_reads import UNANSWERED
from meander.connectors.kafka.origins import Origin
from meander.connectors.kafka.sink import transactional_producer
from meander.connectors.kafka.sink.topic_batch import TopicBatch
from meander.connectors.kafka.sink.transaction_buffer import TransactionBuffer
from meander.connectors.kafka.sink.transactional_producer import (
    TransactionalProducer,
    TransactionBatch,
)
from meander.connectors.local_broker.broker import LocalBroker
from meander.connectors.topics import internal_topics
from meander.connectors.topics.internal_topics import STATE_PARTITIONS
from meander.connectors.topics.state import KafkaStateTopic
from meander.dataflow.backpressure.memory_limit import MemoryLimit
from meander.dataflow.errors import WorkerLost
from meander.dataflow.interfaces import Partition
from meander.schemas.errors import SetupError
from meander.state.layers.topic import RecordLocation, Ticket
from tests.support.kafka.connector_rig import Reading, Rig, await_ticket, batch
from tests.support.kafka.topics import Record, consume_all, ends, produce, until

COUNT = 4_000
T = TypeVar("T")


def wait_for(caplog: pytest.LogCaptureFixture, words: str, reading: Reading) -> None:
    """Goes on reading until the log says so: librdkafka reports from within its calls."""
    reading.until(lambda: any(words in record.message for record in caplog.records), words)


def placed(state: KafkaStateTopic, ticket: Ticket) -> RecordLocation:
    return awaited(lambda: state.appended(ticket))


def fetched(state: KafkaStateTopic, ticket: Ticket) -> list[bytes]:
    return awaited(lambda: state.fetched(ticket))


def awaited(ask: Callable[[], T | None]) -> T:
    found: list[T] = []

    def answered() -> bool:
        answer = ask()
        found.extend([] if answer is None else [answer])
        return bool(found)

    until(answered, "an answer")
    return found[0]


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.message for record in caplog.records)


def in_order(records: list[Record], numbers: Iterable[object]) -> bool:
    """Whether these numbers are there, each once, and those of a partition in this order (I9)."""
    place = {number: n for n, number in enumerate(numbers)}
    found = [(record.partition or 0, place[int(record.value or b"")]) for record in records]
    return found == sorted(found) and sorted(n for _, n in found) == [*range(len(place))]


def test_a_broker_killed_in_mid_run_and_back_loses_and_doubles_nothing(
    own_broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "meander.kafka")
    rig = Rig(own_broker.bootstrap, "t.")
    source, sink = rig.topic("in", 2), rig.topic("out", 2)
    rig.topic("flow.dead")
    produce(rig.bootstrap, source, [Record(b"%d" % i, partition=i % 2) for i in range(COUNT)])
    writer = KafkaSink(sink).open(rig.context())
    # A broker that starts forgets a producer whose records are older than a day.
    now = partial(batch, millis=int(time.time() * 1000))
    with rig.reading(KafkaSource(source), rig.context(until_end=False)) as reading:
        reading.until(lambda: bool(reading.values), "some are read")
        before = len(reading.values)
        writer.write(now(reading.values))
        own_broker.kill()
        wait_for(caplog, "broker_lost", reading)
        # What is read now was fetched before; results go on being taken over meanwhile.
        ticket = writer.write(now(reading.values[before:]))
        assert writer.delivered() < ticket
        read = len(reading.values)

        own_broker.start()
        wait_for(caplog, "broker_returned", reading)
        produce(
            rig.bootstrap, source, [Record(b"%d" % i, partition=0) for i in range(COUNT, 5_000)]
        )
        reading.until(lambda: len(reading.values) >= 5_000, "all is read")
        await_ticket(writer, writer.write(now(reading.values[read:])))
    writer.close()
    read_of = [[value for chunk in reading.of(p) for value in chunk.values] for p in range(2)]
    assert read_of == [[*range(0, COUNT, 2), *range(COUNT, 5_000)], [*range(1, COUNT, 2)]]
    assert in_order(consume_all(rig.bootstrap, sink), reading.values)
    assert said(caplog, "broker_lost") == 1
    assert said(caplog, "broker_returned") == 1


def test_state_is_appended_and_fetched_across_an_outage(own_broker: LocalBroker) -> None:
    rig = Rig(own_broker.bootstrap, "s.")
    topic = rig.topic("state", STATE_PARTITIONS, cleanup_policy="compact")
    state = KafkaStateTopic(rig.settings, topic, 0, rig.wakeup)
    first = placed(state, state.append(b"a", b"before"))

    own_broker.kill()
    fetching = state.fetch([first])
    appending = state.append(b"b", b"meanwhile")
    assert (state.fetched(fetching), state.appended(appending)) == (None, None)
    own_broker.start()

    assert fetched(state, fetching) == [b"before"]
    second = placed(state, appending)
    assert fetched(state, state.fetch([second, first])) == [b"meanwhile", b"before"]
    state.close()


def test_what_is_given_up_while_no_broker_answers_does_not_hold_up_the_end(
    own_broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(own_broker.bootstrap, "g.")
    source, sink = rig.topic("in"), rig.topic("out")
    rig.topic("flow.dead")
    produce(rig.bootstrap, source, [Record(b"1")])
    writer = KafkaSink(sink).open(rig.context())
    with rig.reading(KafkaSource(source), rig.context(until_end=False)) as reading:
        reading.until(lambda: bool(reading.values), "a record")
        await_ticket(writer, writer.write(batch([0])))
        reading.reader.passed(Partition(0), 1)
        own_broker.kill()
        wait_for(caplog, "broker_lost", reading)
        ticket = writer.write(batch([1] * 1_000))
    assert writer.delivered() < ticket
    writer.close()
    assert "broker_returned" not in caplog.text, "giving up is not an answer"


def test_no_broker_at_the_start_is_a_sentence_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(internal_topics, "REQUEST_TIMEOUT", 0.5)
    rig = Rig("127.0.0.1:1", "t.")
    with pytest.raises(
        SetupError, match="no broker answers at 127.0.0.1:1 .*; start one with meander"
    ):
        KafkaSink("out").open(rig.context())


def test_an_unknown_setting_is_a_sentence_that_names_it() -> None:
    rig = Rig("127.0.0.1:1", "t.")
    with pytest.raises(SetupError, match='No such configuration property: "linger.hours"'):
        KafkaSink("out").open(rig.context(settings={"linger.hours": "1"}))


def test_a_transaction_is_committed_once_a_broker_that_was_killed_is_back(
    own_broker: LocalBroker,
) -> None:
    rig = Rig(own_broker.bootstrap, "x.")
    topic, ended = rig.topic("out", 2), threading.Event()
    committer = TransactionalProducer(rig.settings, "x.worker-0", ended.set)
    own_broker.kill()
    committer.commit([TopicBatch(topic, [b"%d" % n for n in range(COUNT)], [None] * COUNT)])
    own_broker.start()
    until(ended.is_set, "it has ended")
    assert not committer.busy
    committer.close()

    # Kafka says that it is committed before readers come past it.
    until(
        lambda: in_order(consume_all(rig.bootstrap, topic), range(COUNT)), "all is there, in order"
    )


PARCELS, ROWS = 40, 100
"""Of a lot that lies on disk, and of each of its parcels."""
ALL = [*range(PARCELS * ROWS)]


class Interrupted:
    """A lot on disk, each value its number; something happens in the midst of the first try."""

    def __init__(self, rig: Rig, folder: Path, happens: Callable[[], None]) -> None:
        self._rig, self._topic, self._happens = rig, rig.topic("out"), happens
        self._tries = 0
        self._spool = TransactionBuffer(
            MemoryLimit("transactions of 'x'", 1 << 20, "max_spill"), folder
        )
        for first in range(0, PARCELS * ROWS, ROWS):
            values = [b"%d" % n for n in range(first, first + ROWS)]
            self._spool.add(TopicBatch(self._topic, values, [None] * ROWS), max_memory=0)
        assert self._spool.spilled

    def __iter__(self) -> Iterator[TopicBatch]:
        self._tries += 1
        for n, parcel in enumerate(self._spool):
            if n == PARCELS // 2 and self._tries == 1:
                until(self._half, "the first half has arrived")
                self._happens()
            yield parcel

    def _half(self) -> bool:
        return self.values(committed=False) == ALL[: len(ALL) // 2]

    @property
    def end(self) -> int:
        """Where the topic ends, with what Kafka itself notes there."""
        return ends(self._rig.bootstrap, self._topic)

    def values(self, *, committed: bool = True) -> list[int]:
        """What readers see."""
        found = consume_all(self._rig.bootstrap, self._topic, committed=committed)
        return [int(record.value or b"") for record in found]


def commit(rig: Rig, lot: TransactionBatch) -> TransactionalProducer:
    """A committer that has tried to commit a lot."""
    ended = threading.Event()
    committing = TransactionalProducer(rig.settings, f"{rig.prefix}worker-0", ended.set)
    committing.commit(lot)
    until(ended.is_set, "it has ended")
    committing.close()
    return committing


def test_a_lot_on_disk_comes_whole_though_the_broker_is_killed_in_its_midst(
    own_broker: LocalBroker, tmp_path: Path
) -> None:
    rig = Rig(own_broker.bootstrap, "killed.")

    def kill() -> None:
        own_broker.kill()
        own_broker.start()

    lot = Interrupted(rig, tmp_path, kill)
    assert not commit(rig, lot).busy
    until(lambda: lot.values() == ALL, "all is there, once")


def test_a_transaction_past_its_timeout_is_lost_and_the_next_execution_commits_it(
    own_broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an outage longer than that makes it: Kafka has given it up meanwhile."""
    rig = Rig(own_broker.bootstrap, "late.")
    monkeypatch.setattr(transactional_producer, "TRANSACTION_TIMEOUT", 5.0)
    for setting in ("transaction.timeout.ms", "message.timeout.ms"):
        monkeypatch.setitem(client._TRANSACTIONAL_MUST, setting, 5_000)

    def outlast() -> None:
        end = lot.end
        until(lambda: lot.end > end, "Kafka has noted that it is given up")

    lot = Interrupted(rig, tmp_path, outlast)
    with pytest.raises(WorkerLost, match="one took .* s, and Kafka ends it after 5 s"):
        assert commit(rig, lot).busy
    assert not lot.values(), "nothing of it is visible"
    assert not commit(rig, lot).busy
    until(lambda: lot.values() == ALL, "all of it is, once")


@contextmanager
def silent(broker: LocalBroker) -> Iterator[None]:
    """A broker that answers nothing while the block lasts, while all connections stay."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_letter_of_a_silent_broker_names_its_record_and_later_ones_carry_theirs(
    own_broker: LocalBroker, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(original_reads, "ANSWER_TIMEOUT", 1.0)
    rig = Rig(own_broker.bootstrap, prefix)
    orders = rig.topic("orders")
    rig.topic("flow.dead")
    produce(rig.bootstrap, orders, [Record(b"v0"), Record(b"v1")])
    origins = {3: Origin("source", orders, rig.id_of(orders))}
    dead = KafkaDeadLetters.open(rig.context(), rig.dead_topic, origins)

    def add(offset: int) -> None:
        seen = replace(batch([{"seen": offset}]), partitions=np.array([0]))
        dead.add("map", replace(seen, offsets=np.array([offset])), 0, "KeyError", "trace")

    def last() -> Record:
        until(lambda: dead.delivered() == dead.added, "it is durable")
        return consume_all(rig.bootstrap, rig.dead_topic)[-1]

    with silent(own_broker):
        add(0)
        late = time.monotonic() + original_reads.ANSWER_TIMEOUT
        until(lambda: time.monotonic() > late and dead.has_room(), "the wait is over")
        assert dead.delivered() == 0
    first = last()
    assert dict(first.headers)["meander.not_carried"] == UNANSWERED.encode()
    assert first.value == b'{"seen":0}'

    def carried() -> bool:
        add(1)
        return last().value == b"v1"

    until(carried, "a later dead letter carries its record")
    dead.close()
