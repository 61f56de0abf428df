"""Formats: what cannot be read or written is refused, never guessed."""

from __future__ import annotations

import math

import pytest

from meander.connectors.kafka.formats import Format, decoder, encoder, field, header, plain_key
from meander.state.encoding import codec


@pytest.mark.parametrize(
    ("form", "data", "value"),
    [
        ("json", b'{"a":[1,2.5,null,true,"\xc3\xa9"]}', {"a": [1, 2.5, None, True, "é"]}),
        ("json", b"12345678901234567890123", 12345678901234567890123),
        ("str", b"\xc3\xa9", "é"),
        ("bytes", b"\xff", b"\xff"),
    ],
)
def test_formats_read_what_they_write(form: Format, data: bytes, value: object) -> None:
    assert decoder(form)(data) == value
    assert encoder(form)(value) == data


@pytest.mark.parametrize("form", ["json", "str", "bytes"])
def test_null_is_none_both_ways_in_every_format(form: Format) -> None:
    assert decoder(form)(None) is None
    assert encoder(form)(None) in (None, b"null")


def test_a_function_is_never_asked_about_null() -> None:
    assert decoder(len)(None) is None
    assert encoder(lambda value: str(value).encode())(None) is None


@pytest.mark.parametrize("data", [b"", b"{", b"NaN", b'{"a": Infinity}', b'"\\ud800"', b"\xff"])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decoder("json")(data)


@pytest.mark.parametrize("value", [math.nan, {"a": [math.inf]}, object(), {"a": -math.inf}])
def test_what_has_no_json_is_refused(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        encoder("json")(value)


def test_text_that_only_looks_like_nan_is_written() -> None:
    assert encoder("json")(["NaN", "Infinity"]) == b'["NaN","Infinity"]'


@pytest.mark.parametrize(("form", "value"), [("bytes", "text"), ("str", b"bytes"), ("str", 1)])
def test_a_format_takes_its_own_type_only(form: Format, value: object) -> None:
    with pytest.raises(TypeError, match=f"the format '{form}' takes {form}, not"):
        encoder(form)(value)


@pytest.mark.parametrize("value", [b"", b"1.5", b"noon", None])
def test_a_header_that_is_no_whole_number_is_no_time(value: bytes | None) -> None:
    with pytest.raises(ValueError):
        header("at").millis([("at", value)])


@pytest.mark.parametrize("value", [None, [], {}, {"at": "5"}, {"at": 5.0}, {"at": True}])
def test_a_field_that_is_no_whole_number_is_no_time(value: object) -> None:
    with pytest.raises(ValueError):
        field("at").millis(value)


@pytest.mark.parametrize(
    ("key", "written"),
    [("é", "é".encode()), (b"\x00", b"\x00"), (7, b"7"), (None, b"null"), (("a", 1), b'["a",1]')],
)
def test_keys_go_out_as_others_read_them(key: object, written: bytes) -> None:
    assert plain_key(codec.encode(key)) == written
