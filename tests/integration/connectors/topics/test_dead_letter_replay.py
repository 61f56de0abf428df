"""Dead letters go back to the topics that they came from: each once, and as they were."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from meander.connectors.kafka.dead_letter import (
    MAX_OPERATOR_VALUE,
    NO_ROOM,
    TOO_LARGE,
    KafkaDeadLetters,
    MalformedRecord,
)
from meander.connectors.kafka.original_reads import GONE, UNANSWERED
from meander.connectors.kafka.original_records import read_originals
from meander.connectors.kafka.origins import Origin
from meander.connectors.topics import dead_letter_replay
from meander.connectors.topics.dead_letter_replay import (
    DeadLetterReplay,
    ReplayCounts,
    Selection,
    select,
)
from meander.connectors.topics.dead_letters import (
    DeadLetterRecord,
    ReplayMark,
    SourcePlace,
    Truncation,
    read_dead_letters,
    read_missing,
)
from meander.dataflow.records.batch import Batch
from meander.schemas.dead_letter import MAX_DEAD_RECORD, OriginalRecord, RecordPlace
from meander.schemas.errors import MeanderError
from tests.support.kafka.brokers import Broker
from tests.support.kafka.connector_rig import Rig, batch
from tests.support.kafka.topics import (
    Headers,
    Record,
    configure_topic,
    consume_all,
    create_topic,
    delete_topics,
    produce,
    until,
)

RECORDS = [
    Record(f"v{n}".encode(), f"k{n}".encode(), n % 2, 1000 + n, [("h", b"%d" % n)])
    for n in range(10)
]


@pytest.fixture
def rig(broker: Broker, prefix: str) -> Rig:
    made = Rig(broker.bootstrap, prefix)
    made.topic("flow.dead", max_message_bytes=str(MAX_DEAD_RECORD))
    made.topic("orders", 2)
    produce(made.bootstrap, prefix + "orders", RECORDS)
    return made


def set_aside(
    rig: Rig, *batches: Batch, id: str = "", max_waiting: int = 1 << 30, operator: str = "map"
) -> None:
    """Write the first row of each batch as a dead letter. The topic has that id, or its own."""
    topic = rig.prefix + "orders"
    origins = {3: Origin("source", topic, id or rig.id_of(topic)), 5: Origin("sums")}
    origins[6] = Origin("files", is_source=True, partition_name=lambda number: f"file {number}")
    context = rig.context(max_waiting=max_waiting)
    dead = KafkaDeadLetters.open(context, rig.dead_topic, origins)
    for one in batches:
        dead.add(operator, one, 0, "KeyError: 'total'", "trace")
    until(lambda: dead.delivered() == dead.added, "they are durable")
    dead.close()


def of(number: int) -> Batch:
    """The record of a number at an operator, which saw another value."""
    seen = batch([{"seen": number}], ["key"])
    return replace(seen, partitions=np.array([number % 2]), offsets=np.array([number // 2]))


def every(_: DeadLetterRecord) -> bool:
    return True


def counted_replay(
    rig: Rig,
    chosen: Callable[[DeadLetterRecord], bool] = every,
    *,
    again: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[Selection, ReplayCounts]:
    """Produce the chosen dead letters again."""
    producing = DeadLetterReplay(rig.settings, rig.dead_topic)
    found = producing.select(chosen, None, again)
    return found, producing.produce(found, progress)


def replay(
    rig: Rig,
    chosen: Callable[[DeadLetterRecord], bool] = every,
    *,
    again: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[int, int, int]:
    """Produce the chosen dead letters again; return how many, their records, and those that are
    gone."""
    _, counts = counted_replay(rig, chosen, again=again, progress=progress)
    assert counts.refused == 0
    return counts.letters, counts.records, counts.gone


def replayed(rig: Rig, count: int) -> list[Record]:
    """The records that were produced again, once there are so many: a transaction shows a little
    after its commit."""

    def found() -> list[Record]:
        there = consume_all(rig.bootstrap, rig.prefix + "orders")
        return [one for one in there if "meander.replay" in dict(one.headers)]

    until(lambda: len(found()) >= count, "all records are there")
    return found()


def place(rig: Rig, number: int) -> RecordPlace:
    topic = rig.prefix + "orders"
    return RecordPlace(topic, rig.id_of(topic), number % 2, number // 2)


def test_record_goes_back_as_it_was(rig: Rig) -> None:
    set_aside(rig, of(3))
    assert replay(rig) == (1, 1, 0)
    (back,) = replayed(rig, 1)
    assert (back.key, back.value, back.partition, back.timestamp) == (b"k3", b"v3", 1, 1003)
    assert back.headers == [("h", b"3"), ("meander.replay", f"{rig.dead_topic}:0".encode())]


def test_record_that_fails_again_names_its_last_replay_alone(rig: Rig) -> None:
    headers: Headers = [("meander.replay", b"flow.dead:9"), ("h", b"x")]
    produce(rig.bootstrap, rig.prefix + "orders", [Record(b"again", b"k", 0, 5, headers)])
    set_aside(rig, of(10))
    assert replay(rig) == (1, 1, 0)
    until(lambda: len(replayed(rig, 2)) == 2, "both are there")
    _, back = replayed(rig, 2)
    assert back.headers == [("h", b"x"), ("meander.replay", f"{rig.dead_topic}:0".encode())]


def test_records_whose_topics_or_partitions_do_not_exist_are_counted(rig: Rig) -> None:
    absent = batch([MalformedRecord(rig.prefix + "absent", b"k", b"\xff", [])])
    set_aside(rig, of(3), of(4), absent, of(5))
    recreate_orders(rig, partitions=1)
    found, counts = counted_replay(rig)
    assert found.left_out == {"topic_gone": 1, "partition_gone": 2} and found.lacks_target
    assert (counts.letters, counts.refused) == (1, 0)
    assert [one.value for one in replayed(rig, 1)] == [b"v4"]


def test_records_that_their_topic_refuses_are_named_and_the_others_go_back(rig: Rig) -> None:
    ahead = int(time.time() * 1000) + 1_800_000
    bad = [
        Record(b"x" * 200_000, b"long", 0),
        Record(b"no key", None, 0),
        Record(b"ahead", b"k", 0, ahead),
    ]
    produce(rig.bootstrap, rig.prefix + "orders", bad)
    set_aside(rig, of(0), of(10), of(2), of(12), of(14), of(4))
    limits = {"max.message.bytes": "100000", "cleanup.policy": "compact"}
    limits["message.timestamp.after.max.ms"] = "60000"
    configure_topic(rig.bootstrap, rig.prefix + "orders", limits)
    _, counts = counted_replay(rig)
    assert (counts.letters, counts.records, counts.refused) == (3, 3, 3)
    assert [(one.offset, one.place.offset) for one in counts.refusals] == [(1, 5), (3, 6), (4, 7)]
    remedies = ["max.message.bytes", "cleanup.policy", "message.timestamp.after.max.ms"]
    for refusal, remedy in zip(counts.refusals, remedies, strict=True):
        assert remedy in refusal.remedy
    assert [one.value for one in replayed(rig, 3)] == [b"v0", b"v2", b"v4"]
    wide = {"max.message.bytes": "1000000", "cleanup.policy": "delete"}
    wide["message.timestamp.after.max.ms"] = "7200000"
    configure_topic(rig.bootstrap, rig.prefix + "orders", wide)
    assert replay(rig) == (3, 3, 0)
    assert len(replayed(rig, 6)) == 6


def test_record_beyond_the_default_of_the_client_goes_back(rig: Rig) -> None:
    configure_topic(rig.bootstrap, rig.prefix + "orders", {"max.message.bytes": "5000000"})
    large = {"message.max.bytes": "5000000"}
    value = os.urandom(2_000_000)
    produce(rig.bootstrap, rig.prefix + "orders", [Record(value, b"k", 0)], large)
    set_aside(rig, of(10))
    assert replay(rig) == (1, 1, 0)
    (back,) = replayed(rig, 1)
    assert back.value == value


def test_long_value_at_the_operator_says_that_it_was_cut(rig: Rig) -> None:
    length = MAX_OPERATOR_VALUE + 1
    set_aside(rig, replace(of(3), values=[b"x" * length]))
    (letter,) = letters(rig)
    assert letter.original is not None
    assert letter.value == b"x" * MAX_OPERATOR_VALUE
    assert letter.truncation == Truncation(value=length)


def letters(rig: Rig) -> list[DeadLetterRecord]:
    found = read_dead_letters(rig.settings, rig.dead_topic)
    return [one for one in found if isinstance(one, DeadLetterRecord)]


def recreate_orders(rig: Rig, partitions: int = 2) -> str:
    """Delete the topic and create it again, empty; return its earlier id."""
    id = rig.id_of(rig.prefix + "orders")
    delete_topics(rig.bootstrap, rig.prefix + "orders")
    create_topic(rig.bootstrap, rig.prefix + "orders", partitions)
    return id


def test_letter_carries_its_record_beside_what_the_operator_saw(rig: Rig) -> None:
    set_aside(rig, of(3))
    (letter,) = letters(rig)
    assert letter.original == OriginalRecord(b"k3", b"v3", [("h", b"3")], 1003)
    assert (letter.key, letter.value) == (b"key", b'{"seen":3}')
    (message,) = consume_all(rig.bootstrap, rig.dead_topic)
    assert (message.key, message.value, message.headers[0]) == (b"k3", b"v3", ("h", b"3"))


def test_letters_stay_in_order_and_carry_their_records_with_room_for_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meander.connectors.kafka.dead_letter.MAX_BYTES", 1)
    timer = replace(batch([None], ["key"]), origins=np.array([5]))
    order = [9, 2, 0, 2, 5]
    set_aside(rig, of(9), timer, *map(of, order[1:]))
    first, second, *others = letters(rig)
    assert second.kind == "timer" and second.original is None and not second.not_carried
    carried = [one.original and one.original.value for one in (first, *others)]
    assert carried == [b"v%d" % number for number in order]


def test_letter_of_a_topic_that_does_not_answer_in_time_names_its_record(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meander.connectors.kafka.original_reads.ANSWER_TIMEOUT", -1.0)
    set_aside(rig, of(3), of(4))
    assert {one.not_carried for one in letters(rig)} == {UNANSWERED}
    assert [one.place for one in letters(rig)] == [place(rig, 3), place(rig, 4)]
    assert replay(rig) == (2, 2, 0), "the topic still has the records"


def test_letters_beyond_the_room_to_wait_name_their_records(rig: Rig) -> None:
    seen = replace(of(3), values=[b"x" * 6_000])
    set_aside(rig, seen, max_waiting=10_000)
    (letter,) = letters(rig)
    assert (letter.not_carried, letter.value) == (NO_ROOM, b"x" * 6_000)


def test_letter_of_a_record_beyond_all_room_names_it(rig: Rig) -> None:
    produce(rig.bootstrap, rig.prefix + "orders", [Record(b"x" * 6_000, b"k", 0)])
    set_aside(rig, of(10), max_waiting=10_000)
    (letter,) = letters(rig)
    assert (letter.not_carried, letter.value) == (TOO_LARGE, b'{"seen":10}')


def test_letter_goes_back_to_a_topic_that_was_created_again_since(rig: Rig) -> None:
    set_aside(rig, of(3))
    recreate_orders(rig)
    assert replay(rig) == (1, 1, 0)
    assert [one.value for one in replayed(rig, 1)] == [b"v3"]


def test_unreadable_record_goes_back_from_its_dead_letter(rig: Rig) -> None:
    record = MalformedRecord(rig.prefix + "orders", b"k", b"\xff", [("h", None)])
    set_aside(rig, batch([record], millis=7))
    recreate_orders(rig)
    assert replay(rig) == (1, 1, 0)
    (back,) = replayed(rig, 1)
    assert (back.key, back.value, back.timestamp) == (b"k", b"\xff", 7)
    assert back.headers[0] == ("h", None)


def test_second_replay_produces_nothing_unless_told(rig: Rig) -> None:
    set_aside(rig, *map(of, range(5)))
    assert replay(rig) == (5, 5, 0)
    assert replay(rig) == (0, 0, 0)
    assert select(rig.settings, rig.dead_topic, every, None, again=False).replayed == 5
    assert replay(rig, again=True) == (5, 5, 0)
    assert len(replayed(rig, 10)) == 10


def test_dead_letters_of_one_record_produce_it_once(rig: Rig) -> None:
    """Whichever operators failed, and whatever a replay chooses."""
    set_aside(rig, of(4), operator="price")
    set_aside(rig, of(4), of(5), operator="tax")
    assert replay(rig, lambda one: one.operator == "price") == (2, 1, 0)
    set_aside(rig, of(4), operator="price")
    assert replay(rig) == (1, 1, 0)
    assert [one.value for one in replayed(rig, 2)] == [b"v4", b"v5"]


def test_interrupted_replay_goes_on_where_it_ended(rig: Rig) -> None:
    set_aside(rig, *map(of, range(6)))
    done = list[int]()

    def interrupt(count: int) -> None:
        done.append(count)
        if len(done) == 2:
            raise KeyboardInterrupt

    with mock.patch.object(dead_letter_replay, "BATCH", 2):
        with pytest.raises(KeyboardInterrupt):
            replay(rig, progress=interrupt)
        assert replay(rig) == (2, 2, 0)
    assert sorted(one.value or b"" for one in replayed(rig, 6)) == [b"v%d" % n for n in range(6)]


def test_replay_that_another_one_has_overtaken_produces_nothing(rig: Rig) -> None:
    set_aside(rig, of(1))
    first = DeadLetterReplay(rig.settings, rig.dead_topic)
    found = first.select(every, None, again=False)
    assert replay(rig) == (1, 1, 0)
    with pytest.raises(MeanderError, match="another replay"):
        first.produce(found, lambda _: None)
    assert len(replayed(rig, 1)) == 1


def test_timer_is_counted_and_left_out(rig: Rig) -> None:
    timer = replace(
        batch([None], ["key"]), origins=np.array([5]), partitions=np.array([-7]),
        offsets=np.array([0]),
    )  # fmt: skip
    nowhere = replace(of(0), partitions=np.array([7844437601069689907]))
    set_aside(rig, timer, of(0), nowhere)
    found = select(rig.settings, rig.dead_topic, every, None, again=False)
    assert (found.letters, found.left_out) == (1, {"call": 1, "unnamed": 1})
    assert read_missing(rig.settings, letters(rig)) == {}
    letter, _, _ = read_dead_letters(rig.settings, rig.dead_topic)
    assert isinstance(letter, DeadLetterRecord)
    assert (letter.kind, letter.origin, letter.key, letter.place) == ("timer", "sums", b"key", None)


def test_record_of_a_file_is_named_and_left_out(rig: Rig) -> None:
    unreadable = batch([MalformedRecord("", None, b"oops", [], "in/1.jsonl")])
    at_operator = replace(batch([{"a": 1}]), origins=np.array([6]))
    set_aside(rig, unreadable, at_operator, of(0), of(0))
    found = select(rig.settings, rig.dead_topic, every, None, again=False)
    assert (found.letters, len(found.places), found.left_out) == (2, 1, {"beside_kafka": 2})
    letters = [*read_dead_letters(rig.settings, rig.dead_topic)]
    names = [one.source_place for one in letters if isinstance(one, DeadLetterRecord)]
    assert names == [SourcePlace(1, "in/1.jsonl", 0), SourcePlace(1, "file 1", 0), None, None]


def test_record_of_a_topic_that_was_created_again_is_gone(rig: Rig) -> None:
    earlier = recreate_orders(rig)
    produce(rig.bootstrap, rig.prefix + "orders", RECORDS)
    set_aside(rig, of(2), id=earlier)
    (letter,) = letters(rig)
    assert (letter.original, letter.not_carried) == (None, GONE)
    assert replay(rig) == (0, 0, 1)
    assert replayed(rig, 0) == []


@pytest.mark.parametrize("numbers", [[0], [9, 2, 0], [*range(10)]])
def test_originals_are_read_where_their_topic_has_them(rig: Rig, numbers: Sequence[int]) -> None:
    beyond = {replace(place(rig, 0), offset=77), replace(place(rig, 0), partition=77)}
    beyond.add(replace(place(rig, 0), partition=-7))
    wanted = [place(rig, number) for number in numbers]
    found = read_originals(rig.settings, [*wanted, *beyond])
    assert [found[one].value for one in wanted] == [b"v%d" % number for number in numbers]
    assert not beyond & found.keys()


def test_reader_gets_letters_and_marks_in_order(rig: Rig) -> None:
    set_aside(rig, of(1), of(2))
    replay(rig)
    set_aside(rig, of(3))
    first, second, mark, third = read_dead_letters(rig.settings, rig.dead_topic)
    assert mark == ReplayMark((0, 1))
    assert isinstance(first, DeadLetterRecord) and isinstance(second, DeadLetterRecord)
    assert first.place == place(rig, 1)
    assert (first.reason, first.trace, first.value) == ("KeyError: 'total'", "trace", b'{"seen":1}')
    assert isinstance(third, DeadLetterRecord)
    (later,) = read_dead_letters(rig.settings, rig.dead_topic, since_ms=third.at_ms)
    assert later == third


def test_record_that_no_flow_wrote_is_named(rig: Rig) -> None:
    produce(rig.bootstrap, rig.dead_topic, [Record(b"x")])
    with pytest.raises(MeanderError, match=r"offset 0: it is no dead letter"):
        list(read_dead_letters(rig.settings, rig.dead_topic))
