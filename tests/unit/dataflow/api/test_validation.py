"""What could not work is refused when the flow is defined, in a sentence that says what would be
right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meander import Flow, KafkaSink, KafkaSource, Stream, columns
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import SetupError


def same(value: Any) -> Any:
    return value


def step(state: Any, value: Any) -> Any:
    return state, value


Define = Callable[[Any], object]


@pytest.mark.parametrize(
    ("says", "define"),
    [
        ("operator 'map': its function is None; give it a function", lambda s: s.map(None)),
        ("operator 'key_by': its function is 'user'", lambda s: s.key_by("user")),
        ("operator 'split': its function is 7", lambda s: s.split(7, "a", "b")),
        ("operator 'n': its init is 0", lambda s: s.key_by(same).fold("n", 0, step)),
        ("operator 'n': its step is 'x'", lambda s: s.key_by(same).fold("n", int, "x")),
        ("operator 'n': its step is None", lambda s: s.key_by(same).process("n", int, None)),
        ("operator 'n': its on_timer is 5", lambda s: s.key_by(same).process("n", int, step, 5)),
        (
            "operator 'map': its on_error is 'dead-letter'; give 'dead_letter', 'skip',",
            lambda s: s.map(same, on_error="dead-letter"),
        ),
        (
            "operator 'n': its on_error is None",
            lambda s: s.key_by(same).fold("n", columns.count(), on_error=None),
        ),
        ("operator 'sink': its on_error is 'x'", lambda s: s.sink(ListSink(), on_error="x")),
        (
            "operator 'n': its order is 'evnet'; give 'event' or 'processing'",
            lambda s: s.key_by(same).fold("n", columns.count(), order="evnet"),
        ),
        (
            "operator 'n': its codec is 'x'; give it an object with a name, encode and decode",
            lambda s: s.key_by(same).fold("n", columns.count(), codec="x"),
        ),
        ("sink 'sink': it is 'out'; give it such as KafkaSink", lambda s: s.sink("out")),
        (
            "operator 'source': fold needs records with keys, and these have none; call key_by",
            lambda s: s.fold("n", int, step),
        ),
        ("sink topic 'out', value: it is 'jsn'", lambda s: s.sink(KafkaSink("out", value="jsn"))),  # type: ignore[arg-type]
        (
            "sink topic 'out', key: it is 'json'; give 'plain' or a function",
            lambda s: s.sink(KafkaSink("out", key="json")),  # type: ignore[arg-type]
        ),
    ],
)
def test_an_operator_that_could_not_work_is_not_defined(says: str, define: Define) -> None:
    flow = Flow("f")
    stream: Stream[Any] = flow.source(ListSource([[]]))
    with pytest.raises(SetupError) as refused:
        define(stream)
    assert str(refused.value).startswith(says)


def test_a_source_that_is_none_is_not_defined() -> None:
    with pytest.raises(SetupError, match=r"source 'source': it is 'in'; .* KafkaSource\('topic'\)"):
        Flow("f").source("in")  # type: ignore[arg-type]


def test_a_source_of_no_known_format_is_not_defined() -> None:
    with pytest.raises(SetupError, match="topic 'in', value: it is 'sttr'; give 'json', 'bytes', "):
        KafkaSource("in", value="sttr")  # type: ignore[call-overload]
    with pytest.raises(SetupError, match="topic 'in', key: it is 'sttr'"):
        KafkaSource("in", key="sttr")  # type: ignore[call-overload]


def test_a_stream_without_keys_has_no_other_attributes_than_it_had() -> None:
    stream = Flow("f").source(ListSource([[]]))
    with pytest.raises(AttributeError, match="no_such"):
        stream.no_such  # type: ignore[attr-defined]  # noqa: B018
