"""The state topic gives back what was appended, or says that it is gone: never something else; so
do the broker's and the one in memory, on which flows are simulated."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import KafkaError, Message

from meander.connectors.kafka import client
from meander.connectors.kafka.sink.record_producer import Delivered, RecordProducer
from meander.connectors.topics import record_fetcher
from meander.connectors.topics.internal_topics import (
    STATE_PARTITIONS,
    ensure_internal,
)
from meander.connectors.topics.state import KafkaStateTopic
from meander.dataflow.checkpoint.upload import Upload
from meander.dataflow.simulation.simulator import SimTopic
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import ExecutionId, LayerId, WorkerId
from meander.state.layers.parts import read_values
from meander.state.layers.topic import (
    MAX_STATE_RECORD,
    RecordLocation,
    RecordMissing,
    StateTopic,
    Ticket,
)
from tests.support.kafka.brokers import Broker
from tests.support.kafka.connector_rig import Rig
from tests.support.kafka.topics import Record, consume_all, produce, until

CHUNK = 512 * 1024
SEQUENCE = count(2)


@pytest.fixture
def rig(broker: Broker, prefix: str) -> Rig:
    return Rig(broker.bootstrap, prefix)


@pytest.fixture
def state(rig: Rig) -> Iterator[KafkaStateTopic]:
    made = ensure_internal(client.admin(rig.settings), rig.prefix, "flow")
    topic = KafkaStateTopic(rig.settings, made.state, 0, rig.wakeup)
    yield topic
    topic.close()


@pytest.fixture(params=["Kafka", "memory"])
def either(request: pytest.FixtureRequest) -> StateTopic:
    """Whoever keeps it."""
    if request.param == "memory":
        return SimTopic(random.Random(0))
    found: StateTopic = request.getfixturevalue("state")
    return found


def append_all(state: StateTopic, records: list[tuple[bytes, bytes]]) -> list[RecordLocation]:
    tickets = [state.append(key, payload) for key, payload in records]
    placed: dict[Ticket, RecordLocation] = {}

    def all_placed() -> bool:
        for ticket in tickets:
            place = None if ticket in placed else state.appended(ticket)
            if place is not None:
                placed[ticket] = place
        return len(placed) == len(tickets)

    until(all_placed, "all is durable")
    return [placed[ticket] for ticket in tickets]


def fetch(state: StateTopic, wanted: list[RecordLocation]) -> list[bytes]:
    ticket = state.fetch(wanted)
    found: list[list[bytes]] = []

    def here() -> bool:
        answer = state.fetched(ticket)
        found.extend([] if answer is None else [answer])
        return bool(found)

    until(here, "all is here")
    return found[0]


def layer(sequence: int, payloads: list[bytes]) -> list[tuple[bytes, bytes]]:
    name = LayerId(ExecutionId(1), WorkerId(0), sequence)
    return [(name.key(chunk), payload) for chunk, payload in enumerate(payloads)]


def test_what_is_appended_is_fetched_in_the_order_asked_for(either: StateTopic) -> None:
    payloads = [os.urandom(50) for _ in range(500)]
    placed = append_all(either, layer(0, payloads))
    assert fetch(either, placed) == payloads
    backwards = placed[::-1]
    assert fetch(either, backwards) == payloads[::-1]
    assert fetch(either, [placed[7], placed[7], placed[499]]) == [
        payloads[7], payloads[7], payloads[499],
    ]  # fmt: skip
    assert fetch(either, []) == []


def test_places_far_apart_are_found_too(
    state: KafkaStateTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_fetcher, "GAP", 100)
    payloads = [os.urandom(50) for _ in range(300)]
    placed = append_all(state, layer(0, payloads))
    assert fetch(state, placed[::37]) == payloads[::37]


def test_workers_read_what_others_wrote(rig: Rig, state: KafkaStateTopic) -> None:
    other = KafkaStateTopic(rig.settings, rig.prefix + "flow.state", 1, rig.wakeup)
    mine = append_all(state, layer(0, [b"mine"]))
    theirs = append_all(other, [(b"layer/1/1/0/0", b"theirs")])
    assert mine[0].partition != theirs[0].partition
    assert fetch(state, mine + theirs) == [b"mine", b"theirs"]
    assert fetch(other, theirs + mine) == [b"theirs", b"mine"]
    other.close()


def test_chunks_of_one_worker_lie_side_by_side(either: StateTopic) -> None:
    placed = append_all(either, layer(0, [b"a", b"b", b"c"]))
    assert [place.offset - placed[0].offset for place in placed] == [0, 1, 2]
    assert len({place.partition for place in placed}) == 1


def test_what_the_broker_has_but_does_not_say_where_is_written_once_more(
    state: KafkaStateTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered, lost = RecordProducer._delivered, iter([None])

    def told(
        sender: RecordProducer, done: Delivered, size: int, error: KafkaError | None, said: Message
    ) -> None:
        where = next(lost, said.offset())
        message = cast(Message, SimpleNamespace(offset=lambda: where))
        delivered(sender, done, size, error, message)

    monkeypatch.setattr(RecordProducer, "_delivered", told)
    payloads = [b"a", b"b", b"c"]
    placed = append_all(state, layer(0, payloads))
    assert [place.offset for place in placed] == [3, 1, 2]
    assert fetch(state, placed) == payloads


def test_large_chunks_pass_and_larger_ones_are_refused(state: KafkaStateTopic) -> None:
    payloads = [os.urandom(CHUNK) for _ in range(20)]
    assert fetch(state, append_all(state, layer(0, payloads))) == payloads
    with pytest.raises(MeanderError, match="a record exceeds its size limit"):
        state.append(b"layer/1/0/9/0", bytes(MAX_STATE_RECORD))


def test_several_fetches_at_once_each_get_their_own(either: StateTopic) -> None:
    payloads = [b"%d" % i for i in range(100)]
    placed = append_all(either, layer(0, payloads))
    tickets = [either.fetch(placed[start::10]) for start in range(10)]
    answers: dict[int, list[bytes]] = {}

    def all_here() -> bool:
        for start, ticket in enumerate(tickets):
            answer = None if start in answers else either.fetched(ticket)
            if answer is not None:
                answers[start] = answer
        return len(answers) == 10

    until(all_here, "all is here")
    assert [answers[start] for start in range(10)] == [payloads[start::10] for start in range(10)]


def test_another_key_at_the_place_is_an_error(either: StateTopic) -> None:
    (place,) = append_all(either, layer(0, [b"a"]))
    wrong = RecordLocation(b"layer/1/0/5/0", place.partition, place.offset, place.size)
    ticket = either.fetch([wrong])
    assert fetch(either, [place]) == [b"a"]
    with pytest.raises(RecordMissing, match="layer/1/0/5/0"):
        until(lambda: either.fetched(ticket) is not None, "it is answered")


def test_what_is_forgotten_takes_nothing_else_along(either: StateTopic) -> None:
    """It may be there still: nobody asks for it."""
    gone, *left = append_all(either, layer(0, [b"a", b"b", b"c"]))
    either.delete([gone])
    append_all(either, layer(1, [b"behind it"]))
    assert fetch(either, left) == [b"b", b"c"]


def test_a_question_in_between_gets_no_answer_yet_or_the_answer(
    either: StateTopic,
) -> None:
    (place,) = append_all(either, layer(0, [b"a"]))
    abandoned, ticket = either.fetch([place]), either.fetch([place])
    either.abandon(abandoned)
    answers: list[list[bytes] | None] = []

    def here() -> bool:
        answers.append(either.fetched(ticket))
        return answers[-1] is not None

    until(here, "it is here")
    assert answers == [None] * (len(answers) - 1) + [[b"a"]]


def test_a_place_behind_the_end_is_an_error_after_a_while(
    either: StateTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_fetcher, "END_TIMEOUT", 0.5)
    (place,) = append_all(either, layer(0, [b"a"]))
    beyond = RecordLocation(place.key, place.partition, place.offset + 1, place.size)
    with pytest.raises(RecordMissing, match="its partition ends before it"):
        fetch(either, [place, beyond])


def expect_tombstones(rig: Rig, state: KafkaStateTopic, expected: set[tuple[bytes, int]]) -> None:
    """Keys and partitions."""

    def there() -> bool:
        append_all(state, layer(next(SEQUENCE), [b"what follows"]))
        records = consume_all(rig.bootstrap, rig.prefix + "flow.state")
        return {(r.key, r.partition) for r in records if r.value is None} == expected

    until(there, "the tombstones are there")


def test_a_deleted_record_gets_a_tombstone_in_its_partition_whichever_worker_wrote_it(
    rig: Rig, state: KafkaStateTopic
) -> None:
    other = KafkaStateTopic(rig.settings, rig.prefix + "flow.state", 1, rig.wakeup)
    mine = append_all(state, layer(0, [b"a", b"b"]))
    (theirs,) = append_all(other, [(b"theirs", b"c")])
    state.delete([mine[0], theirs])
    expect_tombstones(rig, state, {(mine[0].key, 0), (theirs.key, 1)})
    other.close()


def test_an_append_that_is_abandoned_is_forgotten_once_it_is_durable(
    rig: Rig, state: KafkaStateTopic
) -> None:
    state.abandon(state.append(b"under way", b"a"))
    durable = state.append(b"durable", b"b")
    append_all(state, layer(1, [b"behind it"]))
    state.abandon(durable)
    expect_tombstones(rig, state, {(b"under way", 0), (b"durable", 0)})


def test_an_answer_without_a_question_is_dropped(state: KafkaStateTopic) -> None:
    places = append_all(state, layer(0, [b"a", b"b"]))
    state.abandon(state.fetch(places))
    answered = state.fetch(places[:1])
    assert fetch(state, places[1:]) == [b"b"]
    until(lambda: answered in state._fetcher._answers, "it is answered")
    state.abandon(answered)
    assert not state._fetcher._answers
    assert not state._fetcher._abandoned


def test_what_compaction_has_removed_is_an_error_not_the_next_record(rig: Rig) -> None:
    topic = rig.topic(
        "compacted", STATE_PARTITIONS, cleanup_policy="compact", segment_ms="200",
        min_cleanable_dirty_ratio="0.001",
    )  # fmt: skip
    state = KafkaStateTopic(rig.settings, topic, 0, rig.wakeup)
    first, kept, again = append_all(state, [(b"a", b"old"), (b"b", b"kept"), (b"a", b"new")])

    def compacted() -> bool:
        # Only closed segments are compacted, and a segment is closed by what comes after it.
        produce(rig.bootstrap, topic, [Record(b"-", b"filler", partition=first.partition)])
        return first.offset not in [record.offset for record in consume_all(rig.bootstrap, topic)]

    until(compacted, "compaction")
    assert fetch(state, [kept, again]) == [b"kept", b"new"]
    with pytest.raises(MeanderError, match="it has no record of key 'a': compaction has"):
        fetch(state, [first, kept])
    state.close()


def test_a_value_larger_than_a_record_goes_in_parts(either: StateTopic) -> None:
    """As a checkpoint's records in flight do: a source's topic may allow more than this one."""
    values = [b"small", os.urandom(MAX_STATE_RECORD + CHUNK), b"behind it"]
    sending = Upload[tuple[RecordLocation, ...]](either, lambda _, places: places)
    for number, value in enumerate(values):
        sending.send(f"in flight/1/1/0/{number}".encode(), value, ())

    def durable() -> bool:
        sending.poll()
        return not sending

    until(durable, "all is durable")
    assert [len(places) for places in sending.placed] == [1, 18, 1]
    reading, found = read_values(either, sending.placed, 1 << 20), list[bytes]()

    def here() -> bool:
        answer = next(reading)
        found.extend([] if answer is None else [answer])
        return len(found) == len(values)

    until(here, "all is read")
    assert found == values
