"""A file sink writes whole lines, and refuses values that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from meander import FileSink, Flow, KafkaSource, SetupError
from meander.connectors.custom.records import SinkRecord
from meander.testing import TestFlow


def write(sink: FileSink, *values: object) -> None:
    part = sink.open_part(3)
    part.write([SinkRecord(sink.encode(value), None, 0) for value in values])
    part.close()


def test_a_part_goes_on_behind_its_last_whole_line(tmp_path: Path) -> None:
    sink, path = FileSink(tmp_path), tmp_path / "part-3.jsonl"
    write(sink, {"a": 1}, None)
    with path.open("a") as file:
        file.write('{"cut')
    write(sink, "x" * 100_000)
    assert path.read_text() == '{"a":1}\nnull\n"' + "x" * 100_000 + '"\n'


def test_a_cut_line_longer_than_a_block_goes(tmp_path: Path) -> None:
    path = tmp_path / "part-3.jsonl"
    path.write_text("1\n" + "x" * 200_000)
    write(FileSink(tmp_path), 2)
    assert path.read_text() == "1\n2\n"


def test_csv_has_one_header(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, columns=["a", "b"])
    for number in range(2):
        write(sink, {"b": 'x, "y"', "a": number})
    assert (tmp_path / "part-3.csv").read_text() == 'a,b\n0,"x, ""y"""\n1,"x, ""y"""\n'


@pytest.mark.parametrize(
    ("sink", "value"),
    [
        (FileSink("out", value="str"), "two\nlines"),
        (FileSink("out"), object()),
        (FileSink("out", columns=["a"]), {"a": 1, "b": 2}),
        (FileSink("out", columns=["a"]), {"a": "two\nlines"}),
    ],
)
def test_a_value_without_a_line_is_refused(sink: FileSink, value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        sink.encode(value)


def test_wrong_columns_are_refused() -> None:
    with pytest.raises(SetupError, match="name each column once"):
        FileSink("out", columns=["a", "a"])


def test_a_value_that_does_not_fit_is_a_dead_letter(tmp_path: Path) -> None:
    flow = Flow("lines")
    flow.source(KafkaSource("in", value="str")).sink(FileSink(tmp_path, value="str"))
    with TestFlow(flow, workers=1) as run:
        run.feed("in", "a", "b\nc", "d")
        run.run()
        (letter,) = run.dead_letters
    assert (tmp_path / "part-0.txt").read_text() == "a\nd\n"
    assert letter.value == "b\nc"


def test_a_flow_that_delivers_exactly_once_refuses_it(tmp_path: Path) -> None:
    flow = Flow("lines", delivery="exactly_once")
    flow.source(KafkaSource("in", value="str")).sink(FileSink(tmp_path))
    with TestFlow(flow) as run:
        run.feed("in", "a")
        with pytest.raises(SetupError, match="only a KafkaSink"):
            run.run()
