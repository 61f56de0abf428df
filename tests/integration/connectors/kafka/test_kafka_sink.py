"""A sink delivers what it takes over, in order, with where it comes from in headers."""

from __future__ import annotations

import bisect
import random
import re
from collections import Counter
from typing import Any, Literal

import pytest

from meander import KafkaSink
from meander.connectors.kafka import topic_metadata
from meander.connectors.kafka.client import admin as client_admin
from meander.connectors.kafka.sink.record_producer import RecordProducer
from meander.connectors.kafka.topic_metadata import visible_configs
from meander.dataflow.errors import WritesDropped
from meander.dataflow.keepalive import Keepalive
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.sink import write_valid
from meander.dataflow.records.batch import Batch
from meander.dataflow.simulation.in_memory import ListDeadLetters
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.row_error import RowError
from tests.support.kafka.brokers import Broker
from tests.support.kafka.connector_rig import Rig, await_ticket, batch, hidden
from tests.support.kafka.topics import PATIENCE, Record, admin, consume_all, produce, until

CODECS = "gzip", "snappy", "lz4", "zstd"


@pytest.fixture
def rig(broker: Broker, prefix: str) -> Rig:
    return Rig(broker.bootstrap, prefix)


def test_tickets_count_batches_and_delivered_follows(rig: Rig) -> None:
    writer = KafkaSink(rig.topic("out")).open(rig.context())
    tickets = [writer.write(batch([i])) for i in range(3)]
    assert tickets == [1, 2, 3]
    await_ticket(writer, 3)
    assert writer.write(batch([])) == 4
    await_ticket(writer, 4)
    writer.close()
    assert [r.value for r in consume_all(rig.bootstrap, rig.prefix + "out")] == [b"0", b"1", b"2"]


def test_results_say_where_they_come_from(rig: Rig) -> None:
    topic = rig.topic("out")
    writer = KafkaSink(topic).open(rig.context(worker=1, workers=2))
    results = batch([{"n": 1}, {"n": 2}], ["a", "b"], millis=5)
    results.indexes[1] = 7
    await_ticket(writer, writer.write(results))
    writer.close()
    first, second = consume_all(rig.bootstrap, topic)
    assert (first.key, first.value, first.timestamp) == (b"a", b'{"n":1}', 5)
    assert dict(second.headers) == {
        "meander.time": b"5",
        "meander.sequence": b"0",
        "meander.origin": b"3",
        "meander.partition": b"1",
        "meander.offset": b"1",
        "meander.index": b"7",
        "meander.worker": b"1",
    }


def test_keys_and_nulls_go_out_as_others_read_them(rig: Rig) -> None:
    topic = rig.topic("out")
    writer = KafkaSink(topic, value="str").open(rig.context())
    keyed = batch(["x", "x", None], ["text", 7, ("AA", 1)])
    await_ticket(writer, writer.write(keyed))
    await_ticket(writer, writer.write(batch(["unkeyed"])))
    writer.close()
    written = [(record.key, record.value) for record in consume_all(rig.bootstrap, topic)]
    assert written == [(b"text", b"x"), (b"7", b"x"), (b'["AA",1]', None), (None, b"unkeyed")]


def test_a_worker_is_heard_of_before_each_record_that_a_users_function_writes(rig: Rig) -> None:
    heard: list[str] = []

    def encode(value: object) -> bytes:
        heard.append("value")
        return repr(value).encode()

    sink = KafkaSink(rig.topic("out"), encode)
    writer = sink.open(rig.context(pulse=Keepalive(lambda: heard.append("alive"), due=True)))
    await_ticket(writer, writer.write(batch([1, 2, 3])))
    writer.close()
    assert heard == ["alive", "value"] * 3


def test_without_headers_the_same_records_go_out(rig: Rig) -> None:
    topic = rig.topic("out")
    stamps: list[Literal["logical", "wall"]] = ["logical", "wall"]
    for stamp in stamps:
        writer = KafkaSink(topic, time=stamp, origin=False).open(rig.context())
        await_ticket(writer, writer.write(batch([1, 2], ["a", "b"], millis=5)))
        writer.close()
    records = consume_all(rig.bootstrap, topic)
    logical, wall = records[:2], records[2:]
    for some in (logical, wall):
        assert [(r.key, r.value, r.headers) for r in some] == [(b"a", b"1", []), (b"b", b"2", [])]
    assert [r.timestamp for r in logical] == [5, 5]
    assert all((r.timestamp or 0) > 5 for r in wall)


@pytest.mark.parametrize("origin", [False, True])
@pytest.mark.parametrize("stamp", ["logical", "wall"])
def test_a_function_chooses_topic_and_partition(rig: Rig, stamp: Any, origin: bool) -> None:
    one, other = rig.topic("route-one", 3), rig.topic("route-other", 3)
    sink = KafkaSink(
        lambda v: other if v > 2 else one,
        topics=f"{rig.prefix}route-.*",
        partition=lambda v: v % 3,
        key=lambda v: v * 10,
        time=stamp,
        origin=origin,
    )
    writer = sink.open(rig.context())
    await_ticket(writer, writer.write(batch([1, 2, 3, 4, 5], millis=7)))
    writer.close()
    found = {
        topic: sorted((r.value, r.key, r.partition) for r in consume_all(rig.bootstrap, topic))
        for topic in (one, other)
    }
    assert found == {
        one: [(b"1", b"10", 1), (b"2", b"20", 2)],
        other: [(b"3", b"30", 0), (b"4", b"40", 1), (b"5", b"50", 2)],
    }


@pytest.mark.parametrize("own", [False, True], ids=["ours", "librdkafka's own"])
def test_a_key_lies_where_other_clients_put_it(rig: Rig, own: bool) -> None:
    ours, theirs = rig.topic("ours", 7), rig.topic("theirs", 7)
    keys = ["k" * n + str(n * n) for n in range(300)]
    context = rig.context()
    if own:
        context.settings["partitioner"] = "murmur2"
    writer = KafkaSink(ours, value="str").open(context)
    await_ticket(writer, writer.write(batch(keys, keys)))
    writer.close()
    produce(
        rig.bootstrap,
        theirs,
        [Record(key.encode(), key.encode()) for key in keys],
        {"partitioner": "murmur2_random"},
    )
    places = [{r.key: r.partition for r in consume_all(rig.bootstrap, t)} for t in (ours, theirs)]
    assert places[0] == places[1]


def test_one_key_keeps_its_order_and_its_partition(rig: Rig) -> None:
    topic = rig.topic("out", 4)
    writer = KafkaSink(topic).open(rig.context())
    for start in range(0, 2_000, 100):
        values = list(range(start, start + 100))
        ticket = writer.write(batch(values, [value % 7 for value in values]))
    await_ticket(writer, ticket)
    writer.close()
    records = consume_all(rig.bootstrap, topic)
    for key in range(7):
        own = [record for record in records if record.key == b"%d" % key]
        assert [int(record.value or 0) for record in own] == list(range(key, 2_000, 7))
        assert len({record.partition for record in own}) == 1


def test_a_row_that_cannot_be_written_is_named_and_the_rest_can_still_go(rig: Rig) -> None:
    topic = rig.topic("out")
    writer = KafkaSink(topic).open(rig.context())
    results: Batch = batch([1, float("nan"), 3])
    with pytest.raises(RowError, match="partition 1, offset 1 cannot be written") as refusal:
        writer.write(results)
    assert refusal.value.row == 1
    rest = [row for row in range(3) if row != refusal.value.row]
    ticket = writer.write(batch([results.values[row] for row in rest]))
    assert ticket == 1
    await_ticket(writer, ticket)
    writer.close()
    assert [record.value for record in consume_all(rig.bootstrap, topic)] == [b"1", b"3"]


def test_a_missing_topic_is_a_sentence_and_is_not_created(rig: Rig) -> None:
    missing = rig.prefix + "nowhere"
    with pytest.raises(SetupError, match=f"topic '{missing}': it does not exist; create it"):
        KafkaSink(missing).open(rig.context())
    client = admin(rig.bootstrap)
    assert missing not in client.list_topics(timeout=PATIENCE).topics


def test_more_than_the_queue_takes_waits_and_is_not_lost(rig: Rig) -> None:
    topic = rig.topic("out")
    sender = RecordProducer(rig.settings, topic, queue_buffering_max_messages=10)
    done: list[object] = []
    for i in range(1_000):
        sender.send(b"%d" % i, None, done.append, [])
    assert len(sender) == 1_000

    def delivered() -> bool:
        sender.pump()
        return len(done) == 1_000

    until(delivered, "all is delivered")
    sender.close()
    values = [int(record.value or 0) for record in consume_all(rig.bootstrap, topic)]
    assert values == list(range(1_000))


def test_more_than_may_wait_for_the_broker_is_an_error_and_not_a_full_memory(rig: Rig) -> None:
    """I6: no turn of `delivered` comes between, so nothing leaves the account."""
    topic = rig.topic("out")
    writer = KafkaSink(topic, value="bytes").open(rig.context(max_waiting=100_000))
    before = writer.full
    writer.write(batch([b"x" * 40_000] * 2))
    assert (before, writer.full) == (False, True), "it should be given no more"
    with pytest.raises(MeanderError) as raised:
        writer.write(batch([b"x" * 40_000]))
    assert re.match(
        rf"topic '{topic}': 121,\d{{3}} bytes of records wait for the broker to accept them, more"
        " than its bound of 100,000; raise the flow's max_waiting",
        str(raised.value),
    )
    writer.close()


def test_who_closes_gives_up_what_is_under_way_without_an_error(rig: Rig) -> None:
    topic = rig.topic("out")
    for _ in range(30):
        writer = KafkaSink(topic, value="bytes").open(rig.context())
        writer.write(batch([b"x" * 40_000] * 20))
        writer.close()


@pytest.mark.parametrize(
    "own", [{}, {"queue.buffering.max.messages": "50"}], ids=["a wide queue", "a narrow one"]
)
def test_what_is_written_while_some_is_under_way_follows_in_order(
    rig: Rig, own: dict[str, str]
) -> None:
    topic = rig.topic("out", 3)
    context = rig.context(settings=own)
    writer = KafkaSink(topic, value="json", origin=False).open(context)
    for start in range(0, 2_000, 20):
        numbers: list[object] = list(range(start, start + 20))
        ticket = writer.write(batch(numbers, keys=[b"%d" % (n % 7) for n in range(20)]))
    await_ticket(writer, ticket)
    writer.close()
    written = consume_all(rig.bootstrap, topic)
    assert len(written) == 2_000
    for key in {record.key for record in written}:
        values = [int(record.value or b"") for record in written if record.key == key]
        assert values == sorted(values)


def test_what_is_delivered_waits_no_longer(rig: Rig) -> None:
    topic = rig.topic("out")
    writer = KafkaSink(topic, value="bytes").open(rig.context(max_waiting=100_000))
    for _ in range(10):
        await_ticket(writer, writer.write(batch([b"x" * 40_000] * 2)))
    writer.close()
    assert len(consume_all(rig.bootstrap, topic)) == 20


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("visible", [True, False], ids=["a limit that is seen", "a hidden one"])
@pytest.mark.parametrize("behind", [0, 500], ids=["the last", "one before others"])
def test_what_the_broker_refuses_is_its_rows_failure_once_the_others_are_written_again(
    rig: Rig, behind: int, visible: bool, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = rig.topic("out", max_message_bytes="1000")
    if not visible:
        monkeypatch.setattr(topic_metadata, "configs", hidden)
    writer = KafkaSink(topic, value="bytes").open(rig.context(settings={"compression.type": codec}))
    noise = random.Random(5).randbytes(5_000)
    results = batch([b"first", noise, *(b"%d" % n for n in range(behind)), noise[:3_000]])
    dead = ListDeadLetters()
    guard = Guard("out", "dead_letter", dead, Counter())
    ticket, rows = write_valid(writer, guard, results)

    def delivered() -> bool:
        nonlocal ticket, rows
        try:
            return writer.delivered() >= ticket
        except WritesDropped:
            ticket, rows = write_valid(writer, guard, rows)
            return False

    until(delivered, "the others are delivered")
    writer.close()
    assert sorted(letter.offset for letter in dead.letters) == [1, behind + 2]
    assert all("bytes" in letter.reason and topic in letter.reason for letter in dead.letters)
    wanted = [b"first", *(b"%d" % n for n in range(behind))]
    written = [record.value or b"" for record in consume_all(rig.bootstrap, topic)]
    assert written[-len(wanted) :] == wanted


@pytest.mark.parametrize("headers", [True, False])
def test_many_small_records_go_to_a_topic_that_takes_only_small_batches(
    rig: Rig, headers: bool
) -> None:
    topic = rig.topic("out", max_message_bytes="2000")
    outside = visible_configs(client_admin(rig.settings), [topic])
    assert outside[topic]["max.message.bytes"] == "2000"
    writer = KafkaSink(topic, "str", origin=headers).open(rig.context(outside=outside))
    await_ticket(writer, writer.write(batch(["a" * 100] * 500)))
    refused = r"takes 2,\d+ bytes .* than 1,939 \(max.message.bytes of the topic is 2,000, of which"
    with pytest.raises(RowError, match=refused):
        writer.write(batch(["a" * 2000]))
    await_ticket(writer, writer.write(batch(["a" * 1690] * 20)))
    writer.close()
    assert len(consume_all(rig.bootstrap, topic)) == 520


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize(
    ("codec", "level"),
    [*((codec, -1) for codec in CODECS), ("gzip", 1), ("gzip", 9), ("zstd", 1)],
)
def test_a_compressed_record_is_refused_before_the_broker_would_refuse_it(
    rig: Rig, codec: str, level: int, repeated: bool
) -> None:
    topic = rig.topic("out", max_message_bytes="20000")
    outside = visible_configs(client_admin(rig.settings), [topic])
    settings = {"compression.type": codec, "compression.level": str(level)}
    given = rig.context(settings=settings, outside=outside)
    writer = KafkaSink(topic, "bytes").open(given)
    # Half of each byte says something: a level makes a difference.
    noise = bytes(byte & 0x5F for byte in random.Random(codec).randbytes(40_000))

    def of(size: int) -> Batch:
        return batch([noise[:size] * (3 if repeated else 1)])

    def fits(size: int) -> bool:
        try:
            writer._encoder.encode(of(size))
        except RowError:
            return False
        return True

    largest = bisect.bisect(range(40_000), False, key=lambda size: not fits(size)) - 1
    assert 5_000 < largest < 40_000
    refused = rf"compressed by {codec}, as a record, more than 19,939 \(max.message.bytes of the"
    with pytest.raises(RowError, match=refused):
        writer._encoder.encode(of(largest + 1))
    await_ticket(writer, writer.write(of(largest)))
    await_ticket(writer, writer.write(batch([b"a" * 100_000])))
    writer.close()
    assert len(consume_all(rig.bootstrap, topic)) == 2
