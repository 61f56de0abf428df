"""States, windows and records are decoded as the flow wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from meander.app.sql.decoding import StateDecoder, TopicDecoders, flow_of, keyed_node
from meander.connectors.spark.views import Row
from meander.dataflow.tables.copies import COPIES, entry_key
from meander.schemas.errors import SetupError
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.encoding import codec
from meander.state.encoding.expiring import with_due
from meander.state.encoding.timers import TIMER, row_key
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import ExecutionId

FLOW = """
from dataclasses import dataclass
from meander import Flow, KafkaSink, KafkaSource, columns, session, tumbling, typed

@dataclass
class View:
    page: str

class Reversed:
    name = "reversed"
    def encode(self, state): return state[::-1].encode()
    def decode(self, data): return data.decode()[::-1]

flow = Flow("views", types=[View])
views = flow.source(KafkaSource("views", value=typed(View)), "views")
pages = views.key_by(lambda view: view.page)
pages.fold("last", lambda: None, lambda last, view: (view, view))
pages.fold("own", str, lambda state, _: (state, None), codec=Reversed())
pages.window("minutes", tumbling(60)).fold(int, lambda count, _: count + 1)
pages.window("counted", tumbling(60)).fold(columns.sum("n"))
pages.window("visits", session(30)).fold(columns.sum("n"))
views.sink(KafkaSink("copies", value=typed(View)), "copies")
views.sink(KafkaSink("texts", value=repr), "texts")
"""
NONE = Checkpoint(1, ExecutionId(1), BinSpace(1), 0, ())
HOME = codec.encode("home")


@pytest.fixture
def module(tmp_path: Path) -> Path:
    file = tmp_path / "views.py"
    file.write_text(FLOW)
    return file


def rows(decoder: StateDecoder, *states: bytes) -> list[Row]:
    return decoder()(NONE, [(HOME, state) for state in states])


def test_a_state_is_an_object_of_the_flow(module: Path) -> None:
    flow_of(module)
    ((key, state, error),) = rows(StateDecoder("last", "msgpack", module), codec.encode(1))
    assert (key, state, error) == ("home", 1, None)


def test_a_due_time_is_no_part_of_a_state(module: Path) -> None:
    decoder = StateDecoder("last", "msgpack", module)
    assert rows(decoder, with_due(7, codec.encode(3))) == [("home", 3, None)]


def test_a_copied_row_has_its_key_alone() -> None:
    decoder = StateDecoder("copied", COPIES.name)
    entries = [(entry_key(3, "home"), codec.encode("Bern"))]
    assert decoder()(NONE, entries) == [("home", "Bern", None)]


def test_an_entry_that_is_no_state_of_a_key_is_no_row(module: Path) -> None:
    entries = [(row_key(TIMER, 7, HOME), b"\0"), (HOME, codec.encode(3))]
    assert StateDecoder("last", "msgpack", module)()(NONE, entries) == [("home", 3, None)]


def test_each_open_window_is_a_row(module: Path) -> None:
    windows = codec.encode([(0, 60_000, 60_000, 7), (60_000, 120_000, 120_000, 1)])
    assert rows(StateDecoder("minutes", "msgpack", module), windows) == [
        ("home", 0, 60_000, 7, None),
        ("home", 60_000, 120_000, 1, None),
    ]


def test_each_open_window_of_a_columnar_aggregate_is_a_row(module: Path) -> None:
    def shown(operator: str, key: object, state: object) -> list[Row]:
        node = keyed_node(flow_of(module), operator)
        assert node is not None
        decode = StateDecoder(operator, node.codec.name, module)()
        return decode(NONE, [(codec.encode(key), codec.encode(state))])

    assert shown("counted", (60_000, "home"), 7) == [("home", 60_000, 120_000, 7, None)]
    assert shown("visits", (0, "home"), (5, 90, 1, 7)) == [("home", 5, 90, 7, None)]


def test_an_own_codec_decodes_its_states_where_the_module_is_known(module: Path) -> None:
    assert rows(StateDecoder("own", "reversed", module), b"abc") == [("home", "cba", None)]
    assert rows(StateDecoder("own", "reversed"), b"abc") == [("home", b"abc", None)]
    with pytest.raises(SetupError, match="codec 'other'"):
        StateDecoder("own", "other", module)()


def test_a_state_that_cannot_be_decoded_stays_with_a_reason(module: Path) -> None:
    ((key, state, reason),) = rows(StateDecoder("own", "reversed", module), b"\xff")
    assert (key, state) == ("home", None)
    assert "UnicodeDecodeError" in str(reason)


def test_the_formats_of_a_topic_are_those_of_the_flow(module: Path) -> None:
    for topic in ("views", "copies"):
        _, value = TopicDecoders(topic, "str", "bytes", module, topic)()
        assert type(value(b'{"page": "home"}')).__name__ == "View"
    _, value = TopicDecoders("texts", "str", "bytes", module, "texts")()
    assert value(b"View(page='home')") == b"View(page='home')"
