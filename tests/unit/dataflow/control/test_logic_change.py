"""Versions of logic travel as names and JSON: other bytes are refused, and earlier changes hold for
the definition that they have changed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.dataflow.control.logic_change import (
    LogicChange,
    LogicUpdate,
    LogicVersion,
    PrepareLogic,
)

JSON: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)  # fmt: skip
VERSIONS = st.builds(LogicVersion.of, st.text(max_size=9), st.dictionaries(st.text(), JSON))
COUNTS = st.integers(0, (1 << 63) - 1)
MESSAGES: st.SearchStrategy[PrepareLogic | LogicChange] = st.one_of(
    st.builds(PrepareLogic, COUNTS, st.text(), VERSIONS, VERSIONS),
    st.builds(LogicChange, st.text(), st.text(), COUNTS, VERSIONS, VERSIONS, COUNTS),
)
VERSION = "Above", '{"limit": 2}', "Below", "{}"
PREPARE = 4, "alert", *VERSION
CHANGE = "c1", "alert", 7, 2, *VERSION


@given(MESSAGES)
def test_a_message_is_read_as_it_was_sent(message: PrepareLogic | LogicChange) -> None:
    assert type(message).from_bytes(message.to_bytes()) == message


def replaced(fields: Sequence[object], at: int, value: object) -> bytes:
    return bytes(msgpack.packb([*fields[:at], value, *fields[at + 1 :]]))


WRONG_PREPARE: dict[str, bytes] = {
    "no bytes": b"",
    "no list": msgpack.packb(7),
    "a text": msgpack.packb("sixsix"),
    "too few": msgpack.packb(PREPARE[:-1]),
    "too many": msgpack.packb((*PREPARE, "{}")),
    "bytes behind it": msgpack.packb(PREPARE) + b"\0",
    "half of it": msgpack.packb(PREPARE)[:9],
    "a negative number": replaced(PREPARE, 0, -1),
    "a truth value for the number": replaced(PREPARE, 0, True),
    "a number for the operator": replaced(PREPARE, 1, 5),
    "bytes for a class": replaced(PREPARE, 2, b"Above"),
    "an object for parameters": replaced(PREPARE, 3, {"limit": 2}),
    "parameters that are no JSON": replaced(PREPARE, 3, "{limit: 2}"),
    "parameters that are a list": replaced(PREPARE, 5, "[2]"),
    "parameters that are no number": replaced(PREPARE, 5, '{"limit": NaN}'),
    "parameters without an end": replaced(PREPARE, 5, '{"limit": ' + "[" * 99_999),
}
WRONG_CHANGE: dict[str, bytes] = {
    "no list": msgpack.packb({}),
    "the other message": msgpack.packb(PREPARE),
    "too many": msgpack.packb((*CHANGE, 1)),
    "a number for the command": replaced(CHANGE, 0, 1),
    "null for the operator": replaced(CHANGE, 1, None),
    "a fraction for the time": replaced(CHANGE, 2, 7.5),
    "a negative generation": replaced(CHANGE, 3, -1),
    "null for a class": replaced(CHANGE, 6, None),
    "parameters that are a text": replaced(CHANGE, 7, '"x"'),
}


@pytest.mark.parametrize("data", WRONG_PREPARE.values(), ids=WRONG_PREPARE)
def test_bytes_that_prepare_no_logic_raise_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        PrepareLogic.from_bytes(data)


@pytest.mark.parametrize("data", WRONG_CHANGE.values(), ids=WRONG_CHANGE)
def test_bytes_that_change_no_logic_raise_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        LogicChange.from_bytes(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_raise_value_error(data: bytes) -> None:
    for kind in (PrepareLogic, LogicChange):
        with suppress(ValueError):
            assert isinstance(kind.from_bytes(data), kind)


def test_versions_are_equal_whatever_the_order_of_their_parameters() -> None:
    one, other = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert LogicVersion.of("A", one) == LogicVersion.of("A", other)


def test_a_version_with_a_number_that_json_lacks_raises_value_error() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        LogicVersion.of("A", {"limit": float("inf")})


def test_an_update_that_names_the_same_class_keeps_parameters() -> None:
    version = LogicVersion.of("A", {"x": 1, "y": 2})
    for name in (None, "A"):
        assert LogicUpdate(name, {"y": 3}).of(version) == LogicVersion.of("A", {"x": 1, "y": 3})
        assert LogicUpdate(name, {}).of(version) == version
    assert LogicUpdate("B", {}).of(version) == LogicVersion("B")
