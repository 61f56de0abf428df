"""A flow of topics runs in this process, beside a real broker."""

from __future__ import annotations

import json

import pytest

from meander import Flow, KafkaSink, KafkaSource, SetupError
from meander.schemas.dead_letter import OriginalRecord
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, admin, consume_all, create_topic, produce


@pytest.fixture
def flow(broker: Broker, prefix: str) -> Flow:
    """A flow that counts the words of two topics, below `prefix`."""
    for topic in ("lines-a", "lines-b", "counts"):
        create_topic(broker.bootstrap, prefix + topic, 2)
    for topic, text in (("lines-a", "to be"), ("lines-b", "or not to be")):
        produce(broker.bootstrap, prefix + topic, [Record(text.encode(), timestamp=1000)])
    flow = Flow(prefix.rstrip("."), delivery="exactly_once")
    pattern = prefix.replace(".", r"\.") + "lines-.*"
    words = flow.source(KafkaSource(pattern=pattern, value="str")).flat_map(str.split)
    counts = words.key_by(lambda word: word).fold("count", int, lambda n, w: (n + 1, [w, n + 1]))
    counts.sink(KafkaSink(prefix + "counts"))
    return flow


def topics_below(broker: Broker, prefix: str) -> set[str]:
    found = admin(broker.bootstrap).list_topics(timeout=30).topics
    return {topic for topic in found if prefix.rstrip(".") in topic}


def test_a_bounded_run_writes_each_result_once(flow: Flow, broker: Broker, prefix: str) -> None:
    before = topics_below(broker, prefix)
    for number in (1, 2):
        result = flow.run(until_end=True, bootstrap=broker.bootstrap)
        assert result.counters["written"] == 6
        found = consume_all(broker.bootstrap, prefix + "counts")
        counts = sorted(tuple(json.loads(one.value or b"")) for one in found)
        assert counts == sorted(
            [("to", 1), ("to", 2), ("be", 1), ("be", 2), ("or", 1), ("not", 1)] * number
        )
    assert topics_below(broker, prefix) == before, "it has no internal topic"


def test_a_stream_of_topics_gives_its_first_values(flow: Flow, broker: Broker, prefix: str) -> None:
    lines = flow.source(KafkaSource(prefix + "lines-b", value="str"), "again")
    words = lines.flat_map(str.split)
    assert words.take(10, bootstrap=broker.bootstrap) == ["or", "not", "to", "be"]
    assert words.take(2, bootstrap=broker.bootstrap) == ["or", "not"]


def test_a_run_without_its_topic_is_refused(broker: Broker, prefix: str) -> None:
    flow = Flow("nothing")
    lines = flow.source(KafkaSource(prefix + "absent"))
    with pytest.raises(SetupError, match="does not exist"):
        lines.take(1, bootstrap=broker.bootstrap)


def test_dead_letters_of_a_run_have_their_records(broker: Broker, prefix: str) -> None:
    create_topic(broker.bootstrap, prefix + "orders", 2)
    records = [
        Record(data, b"k", n % 2, 1000 + n, [("n", b"%d" % n)])
        for n, data in enumerate([b"4", b"{oops", b"0", b"2"])
    ]
    produce(broker.bootstrap, prefix + "orders", records)
    flow = Flow("orders")
    flow.source(KafkaSource(prefix + "orders")).map(lambda n: 8 // n).sink(
        KafkaSink(prefix + "shares")
    )
    create_topic(broker.bootstrap, prefix + "shares", 1)
    result = flow.run(until_end=True, bootstrap=broker.bootstrap)
    letters = {letter.operator: letter for letter in result.dead_letters}
    assert letters["map"].value == 0
    assert letters["map"].original == OriginalRecord(b"k", b"0", [("n", b"2")], 1002)
    unreadable = letters[f"source {prefix}orders"]
    assert unreadable.original == OriginalRecord(b"k", b"{oops", [("n", b"1")], 1001)
