"""A dead letter is read as what it is: the whole record, a part of it, or a name alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from meander.connectors.testing.in_memory import InMemoryMessage, TopicRecord
from meander.connectors.topics.dead_letters import (
    WHOLE,
    DeadLetterRecord,
    PartialRecord,
    Truncation,
    parse,
)
from meander.schemas.dead_letter import OriginalRecord, RecordPlace

HEADERS = {
    "meander.reason": "KeyError", "meander.operator": "map", "meander.kind": "record",
    "meander.topic": "orders", "meander.partition": "1", "meander.offset": "7",
    "meander.time": "5", "meander.worker": "0", "meander.timestamp": "4", "meander.value": "seen",
}  # fmt: skip


def parsed(
    headers: Mapping[str, str] | None = None, own: Mapping[str, str] | None = None
) -> DeadLetterRecord:
    """Read a dead letter of a record at an operator, which carries the record."""
    all_headers = [*(own or {}).items(), *(HEADERS | dict(headers or {})).items()]
    found = parse("dead", InMemoryMessage(TopicRecord(b"value", b"key", all_headers, 9, 0, 3)))
    assert isinstance(found, DeadLetterRecord)
    return found


def test_whole_record_is_the_original() -> None:
    letter = parsed(own={"h": "1"})
    assert letter.original == OriginalRecord(b"key", b"value", [("h", b"1")], 4)
    assert (letter.partial, letter.truncation, letter.value) == (None, WHOLE, b"seen")


@pytest.mark.parametrize(
    ("headers", "own", "cut"),
    [
        ({"meander.truncated": "900"}, {}, Truncation(value=900)),
        ({"meander.key_truncated": "90"}, {}, Truncation(key=90)),
        ({}, {"meander.headers_left_out": "2"}, Truncation(headers=2)),
    ],
)
def test_part_of_a_record_is_no_original(
    headers: dict[str, str], own: dict[str, str], cut: Truncation
) -> None:
    """Else a replay would produce a record that no producer wrote."""
    letter = parsed(headers, own)
    assert letter.original is None
    assert letter.partial == PartialRecord(OriginalRecord(b"key", b"value", [], 4), cut)
    assert letter.truncation == WHOLE, "the value at the operator was not cut"


def test_start_of_the_value_at_the_operator_is_told_from_the_value() -> None:
    letter = parsed({"meander.value_truncated": "70"})
    assert letter.truncation == Truncation(value=70)
    assert letter.original is not None


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("meander.partition", 7844437601069689907),
        ("meander.partition", -1),
        ("meander.offset", -1),
        ("meander.offset", 1 << 63),
    ],
)
def test_place_that_no_topic_has_is_none(name: str, number: int) -> None:
    assert parsed().place == RecordPlace("orders", "", 1, 7)
    assert parsed({name: str(number)}).place is None


@pytest.mark.parametrize(
    ("reason", "general"),
    [
        (
            "topic 'out': the value of the result from partition 1, offset 7 cannot be written: no",
            "topic 'out': the value of the result cannot be written: no",
        ),
        (
            "topic 'out': the result from partition -3, offset 0 has no key, and",
            "topic 'out': the result has no key, and",
        ),
        ("ValueError: partition 1, offset 7", "ValueError: partition 1, offset 7"),
    ],
)
def test_general_reason_lacks_the_place_that_a_sink_names(reason: str, general: str) -> None:
    assert parsed({"meander.reason": reason}).general_reason == general
