"""How records are read and results written, without a topic: functions of the user's are called one
by one, with a sign of life before each, and whatever they raise is one record's failure."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from functools import partial
from threading import Event

import numpy as np
import pytest

from meander import KafkaSink, KafkaSource, header
from meander.connectors.kafka.client import ConsumedMessage
from meander.connectors.kafka.sink.record_encoder import RecordEncoder
from meander.connectors.kafka.sink.record_limits import HEADER_BYTES, RECORD_OVERHEAD, RecordLimits
from meander.connectors.testing.in_memory import InMemoryMessage, TopicRecord
from meander.dataflow.interfaces import Chunk, Partition, WorkerContext
from meander.dataflow.keepalive import NO_KEEPALIVE, Keepalive
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.sink import write_valid
from meander.dataflow.records.batch import Batch
from meander.dataflow.simulation.in_memory import ListDeadLetters
from meander.schemas.errors import MeanderError
from meander.schemas.row_error import RowError
from meander.state.encoding.value_columns import ValueColumns
from meander.state.keys.ids import WorkerId
from tests.support.kafka.connector_rig import batch
from tests.support.sim.operator_bench import records


def unheard() -> None:
    raise MeanderError("the coordinator", "nothing was heard")


def chunk(source: KafkaSource, values: list[bytes], pulse: Keepalive = NO_KEEPALIVE) -> Chunk:
    """What a source makes of records with key `k` and header `at`."""
    messages: list[ConsumedMessage] = [
        InMemoryMessage(TopicRecord(value, b"k", [("at", b"7")], 0, 0, offset))
        for offset, value in enumerate(values)
    ]
    return source.chunk_reader(ListDeadLetters(), pulse).read(Partition(0), messages)


SLOW = {
    "the value": KafkaSource("in", value=int),
    "the key": KafkaSource("in", key=bytes.decode, pairs=True),
    "the time": KafkaSource("in", time=lambda value: 7),
}
QUICK = {
    "JSON": KafkaSource("in", time=header("at")),
    "a key that nobody asks for": KafkaSource("in", key=bytes.decode),
}


@pytest.mark.parametrize(
    ("source", "calls"),
    [(source, 30) for source in SLOW.values()] + [(source, 0) for source in QUICK.values()],
    ids=[*SLOW, *QUICK],
)
def test_a_worker_is_heard_of_before_each_record_that_a_users_function_reads(
    source: KafkaSource, calls: int
) -> None:
    heard: list[None] = []
    pulse = Keepalive(lambda: heard.append(None), due=True)
    assert len(chunk(source, [b"7"] * 30, pulse).values) == 30
    assert len(heard) == calls


def test_a_worker_without_a_keepalive_makes_no_dead_letter_for_that() -> None:
    with pytest.raises(MeanderError, match="nothing was heard"):
        chunk(KafkaSource("in", value=int), [b"7"], Keepalive(unheard, due=True))


def unless_empty(data: bytes) -> bytes:
    if not data:
        sys.exit("nothing to read")
    return data


def cancelled(value: object) -> int:
    raise asyncio.CancelledError


UNREADABLE: dict[str, tuple[KafkaSource, bytes, str]] = {
    "text": (KafkaSource("in", value="str", fail_fast=True), b"\xff", "its value .*: Unicode"),
    "time": (KafkaSource("in", time=header("of"), fail_fast=True), b"1", "its time .*: ValueError"),
    "exit": (
        KafkaSource("in", value=unless_empty, fail_fast=True),
        b"",
        "its value .*: System",
    ),
    "cancelled": (
        KafkaSource("in", time=cancelled, fail_fast=True),
        b"1",
        "its time .*: CancelledError",
    ),
}


@pytest.mark.parametrize(("source", "value", "reason"), UNREADABLE.values(), ids=UNREADABLE)
def test_fail_fast_names_the_record(source: KafkaSource, value: bytes, reason: str) -> None:
    with pytest.raises(MeanderError, match=f"'in', partition 0, offset 0: {reason}"):
        chunk(source, [value])


# -- results


def rows(sink: KafkaSink, pulse: Keepalive = NO_KEEPALIVE) -> RecordEncoder:
    return RecordEncoder(sink, WorkerId(0), pulse)


def test_value_columns_are_written_as_their_tuples_would_be() -> None:
    columns = ValueColumns((np.array([1, 2]), np.array([0.5, 1.5])))
    tuples = batch([*columns])
    for value in ("json", lambda value: repr(value).encode()):
        encoder = rows(KafkaSink("out", value))
        typed = tuples.with_values(columns)
        assert encoder.encode(typed) == encoder.encode(tuples)
        assert encoder.checksum(typed) == encoder.checksum(tuples)


def test_a_users_functions_make_value_and_key() -> None:
    sink = KafkaSink("out", lambda value: repr(value).encode(), lambda value: (value[1], "k"))
    records = rows(sink).encode(batch([(1, 2)], [b"k"]))
    assert (records.keys, records.values) == ([b'[2,"k"]'], [b"(1, 2)"])


def test_a_worker_is_heard_of_before_each_record_that_a_users_function_writes() -> None:
    heard: list[str] = []

    def encode(value: object) -> bytes:
        heard.append("value")
        return repr(value).encode()

    rows(KafkaSink("out", encode), Keepalive(lambda: heard.append("alive"), due=True)).encode(
        records([1, 2, 3])
    )
    assert heard == ["alive", "value"] * 3


def test_a_worker_without_a_keepalive_refuses_no_record_for_that() -> None:
    with pytest.raises(MeanderError, match="nothing was heard") as raised:
        rows(KafkaSink("out", lambda _: b""), Keepalive(unheard, due=True)).encode(records(["a"]))
    assert not isinstance(raised.value, RowError)


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError


RAISED = [Wordless(), SystemExit(3), asyncio.CancelledError(), GeneratorExit()]


@pytest.mark.parametrize("raised", RAISED, ids=["no text", "an exit", "cancelled", "closed"])
def test_whatever_a_users_function_raises_is_one_rows_refusal(raised: BaseException) -> None:
    def encode(value: object) -> bytes:
        if value == 2:
            raise raised
        return b""

    with pytest.raises(RowError, match=f"cannot be written: {type(raised).__name__}") as refusal:
        rows(KafkaSink("out", encode)).encode(records([1, 2, 3]))
    assert refusal.value.row == 1


class Encoding:
    """A sink's writer that only encodes."""

    def __init__(self, rows: RecordEncoder) -> None:
        self._rows = rows

    def write(self, batch: Batch) -> int:
        """How many records there are."""
        return len(self._rows.encode(batch).values)

    def delivered(self) -> int:
        return 0

    @property
    def full(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""


def test_refusals_of_many_rows_cost_the_others_a_second_encoding_and_no_more() -> None:
    """I6: a batch of which each second record cannot be written is no long turn."""
    encoded = Counter[object]()

    def encode(value: object) -> bytes:
        encoded[value] += 1
        if value != 7:
            raise ValueError
        return b"x"

    dead, counters = ListDeadLetters(), Counter[str]()
    guard = Guard("out", "dead_letter", dead, counters)
    writer = Encoding(rows(KafkaSink("out", encode)))
    assert write_valid(writer, guard, records([1, 7] * 500))[0] == 500
    assert [letter.offset for letter in dead.letters] == [*range(0, 1_000, 2)]
    assert encoded == {1: 500, 7: 1_000}


def context(outside: dict[str, str], **settings: str) -> WorkerContext:
    return WorkerContext(
        "f",
        "",
        WorkerId(0),
        1,
        settings,
        True,
        "earliest",
        Event(),
        1,
        NO_KEEPALIVE,
        {"out": outside},
    )


@pytest.mark.parametrize("headers", [True, False])
@pytest.mark.parametrize(
    ("outside", "settings", "setting"),
    [
        ({}, {"message_max_bytes": "5000"}, "message.max.bytes in the settings"),
        ({"max.message.bytes": "5061"}, {}, "max.message.bytes of the topic"),
        ({"max.message.bytes": "9000"}, {"message_max_bytes": "5000"}, "message.max.bytes in the"),
        # Compressed it is small, and the client measures what it is given.
        (
            {"max.message.bytes": "500"},
            {"message_max_bytes": "5000", "compression_type": "zstd"},
            "message.max.bytes in the settings",
        ),
    ],
)
def test_a_record_that_is_too_large_is_refused_with_key_offset_and_size(
    outside: dict[str, str], settings: dict[str, str], setting: str, headers: bool
) -> None:
    given = context(outside, **{name.replace("_", "."): value for name, value in settings.items()})
    sink = KafkaSink("out", "str", origin=headers)
    one = RecordEncoder(sink, WorkerId(0), NO_KEEPALIVE, partial(RecordLimits.of, context=given))
    fitting = 5000 - RECORD_OVERHEAD - len("key") - (HEADER_BYTES if headers else 0)
    keys: list[object] = ["key"] * 3
    one.encode(batch(["a" * fitting] * 3, keys))
    results = batch(["a" * fitting, "a" * (fitting + 1), "a"], keys)
    with pytest.raises(RowError) as refused:
        one.encode(results)
    assert refused.value.row == 1
    for said in ("key 'key'", "partition 1, offset 1", "5,001 bytes", "more than 5,000", setting):
        assert said in str(refused.value)
    assert one.checksum(results) == rows(sink).checksum(results), "a replay may meet other limits"


def test_a_record_without_a_key_for_a_compacted_topic_is_refused() -> None:
    sink = KafkaSink("out", key=lambda value: b"k" if value == 1 else None)
    taken = partial(RecordLimits.of, context=context({"cleanup.policy": "compact,delete"}))
    with pytest.raises(RowError, match=r"offset 1 has no key, and the topic is comp") as refused:
        RecordEncoder(sink, WorkerId(0), NO_KEEPALIVE, taken).encode(batch([1, 2], ["yes", "no"]))
    assert refused.value.row == 1
