"""A file source reads each record once, by its place, and finds records that do not fit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meander import FileSource, Flow, KafkaSink, SetupError, field, typed
from meander.connectors.custom.records import SourceRecord, UnreadableRecord
from meander.connectors.files import lines, parquet
from meander.testing import At, Raise, TestFlow
from tests.support.files import Order


def everything(
    source: FileSource, position: int = 0, most: int = 2, *, until_end: bool = True
) -> list[SourceRecord | UnreadableRecord]:
    reader = source.open_partition(source.partitions()[0], position, until_end)
    found = list[SourceRecord | UnreadableRecord]()
    while some := reader.read(most):
        assert len(some) <= most
        found += some
    reader.close()
    return found


def values(records: list[SourceRecord | UnreadableRecord]) -> list[object]:
    return [one.value for one in records if isinstance(one, SourceRecord)]


@pytest.fixture
def each(tmp_path: Path) -> dict[str, Path]:
    """The same ten rows in each format."""
    rows = [{"id": n, "text": f"a, {n}\u00e4" * n} for n in range(10)]
    paths = {kind: tmp_path / f"rows.{kind}" for kind in ("jsonl", "csv", "parquet")}
    paths["jsonl"].write_text(
        "".join(f'{{"id": {r["id"]}, "text": "{r["text"]}"}}\n' for r in rows)
    )
    paths["csv"].write_text("id,text\n" + "".join(f'{r["id"]},"{r["text"]}"\n' for r in rows))
    pq.write_table(pa.Table.from_pylist(rows), paths["parquet"], row_group_size=4)
    return paths


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("block", [16, lines.BLOCK])
def test_each_position_gives_the_records_behind_it(
    each: dict[str, Path], kind: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BLOCK", block)
    monkeypatch.setattr(parquet, "BATCH", 3)
    source = FileSource(each[kind], columns={"id": int} if kind == "csv" else {})
    whole = everything(source)
    assert values(whole) == [{"id": n, "text": f"a, {n}\u00e4" * n} for n in range(10)]
    for number, record in enumerate(whole):
        assert everything(source, record.position) == whole[number:]


def test_a_quoted_field_may_have_line_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BLOCK", 8)
    path = tmp_path / "rows.csv"
    path.write_text('a;b\r\n1;"two\n\nlines ""and"" more"\r\n\r\n2;x\r\n')
    source = FileSource(path, delimiter=";")
    found = everything(source, most=1)
    assert values(found) == [{"a": "1", "b": 'two\n\nlines "and" more'}, {"a": "2", "b": "x"}]
    assert everything(source, found[1].position) == found[1:]


def test_an_unreadable_record_is_named_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b'id,at\n1,2\n3\nx,4\n\xff,5\n"6" 6,7\n8,9\n10,"11')
    found = everything(FileSource(path, columns={"id": int}), most=100)
    wrong = [one for one in found if isinstance(one, UnreadableRecord)]
    assert values(found) == [{"id": 1, "at": "2"}, {"id": 8, "at": "9"}]
    assert [one.data for one in wrong] == [b"3", b"x,4", b"\xff,5", b'"6" 6,7', b'10,"11']
    assert wrong[0].reason == "it has 1 fields, and the header has 2"


@pytest.mark.parametrize("name", ["growing.jsonl", "growing.csv"])
def test_a_line_without_an_end_waits_unless_the_run_ends(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text('n\n1\n"2' if name.endswith("csv") else "1\n2")
    source = FileSource(path)
    reader = source.open_partition(str(path), 0, False)
    first = values([*reader.read(10)])
    assert len(first) == 1
    assert values([*reader.read(10)]) == []
    with path.open("a") as file:
        file.write('2"\n' if name.endswith("csv") else "2\n")
    assert values([*reader.read(10)]) == [{"n": "22"} if name.endswith("csv") else 22]
    assert len(everything(source)) == 2


def test_a_file_that_has_become_shorter_is_refused(each: dict[str, Path]) -> None:
    for path in each.values():
        source = FileSource(path)
        with pytest.raises(SetupError, match="were read before"):
            everything(source, 10_000)


def test_a_value_may_be_an_object_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text('{"id": 1, "at": 5}\n{"id": 2}\n')
    found = everything(FileSource(path, value=typed(Order), time=field("at")))
    assert found[0] == SourceRecord(0, Order(1, 5), 5, 19)
    assert isinstance(found[1], UnreadableRecord)


def test_records_without_a_time_have_that_of_their_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("to be\n\nor not\n")
    found = everything(FileSource(path, value="str"))
    assert [one[1] for one in found] == ["to be", "or not"]
    assert {one.time_ms for one in found if isinstance(one, SourceRecord)} == {
        path.stat().st_mtime_ns // 1_000_000
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"paths": []}, "its paths are"),
        ({"paths": ["a.csv", "b.parquet"]}, "several formats"),
        ({"paths": "a", "format": "xml"}, "it is 'xml'"),
        ({"paths": "a", "value": 5}, "it is 5"),
        ({"paths": "a", "time": "at"}, "it is 'at'"),
        ({"paths": "a", "columns": {"a": int}}, "its format is 'lines'"),
        ({"paths": ["a", "logs/*.jsonl.GZ"]}, r"'logs/\*.jsonl.GZ' is compressed"),
    ],
)
def test_a_wrong_definition_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        FileSource(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("rows.CSV", 'id,at\r\n"1",2\r\n', {"id": "1", "at": "2"}), ("rows.jsonl", "[1]\n", [1])],
)
def test_a_mark_before_the_text_is_no_part_of_it(
    tmp_path: Path, name: str, text: str, value: object
) -> None:
    path = tmp_path / name
    path.write_text(text, "utf-8-sig")
    assert values(everything(FileSource(path))) == [value]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="there is none"):
        FileSource(tmp_path / "a.csv").partitions()
    with pytest.raises(SetupError, match="matches"):
        FileSource(f"{tmp_path}/*.csv").partitions()


@pytest.mark.parametrize("seed", range(3))
def test_a_flow_reads_each_record_of_its_files_once(tmp_path: Path, seed: int) -> None:
    for part in range(3):
        numbers = range(part, 300, 3)
        (tmp_path / f"{part}.jsonl").write_text("".join(f"{n}\n" for n in numbers))
    flow = Flow("numbers", bins=2)
    source = FileSource(f"{tmp_path}/*.jsonl", time=lambda n: n)
    flow.source(source).key_by(lambda n: n % 5).fold(
        "sum", lambda: 0, lambda s, n: (s + n, n)
    ).sink(KafkaSink("out"))
    with TestFlow(flow, seed=seed, faults=[At(Raise("sum"), records=150)]) as run:
        run.run_until_idle()
        run.control({"type": "migrate", "id": "m1", "bins": "all", "worker": 1})
        run.run()
        (letter,) = run.dead_letters
    assert sorted([*run.values("out"), letter.value]) == [*range(300)]  # type: ignore[type-var]
    assert run.counters["read"] == 300


def test_a_flow_finds_a_file_that_comes_later(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text("1\n")
    flow = Flow("numbers")
    flow.source(FileSource(f"{tmp_path}/*.jsonl", time=lambda n: n)).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.run_until_idle()
        (tmp_path / "2.jsonl").write_text("2\n")
        with (tmp_path / "1.jsonl").open("a") as file:
            file.write("3\n")
        run.run()
    assert sorted(run.values("out")) == [1, 2, 3]  # type: ignore[type-var]


def test_a_file_before_the_known_ones_ends_the_flow(tmp_path: Path) -> None:
    (tmp_path / "2.jsonl").write_text("2\n")
    flow = Flow("numbers")
    flow.source(FileSource(f"{tmp_path}/*.jsonl")).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.run_until_idle()
        (tmp_path / "1.jsonl").write_text("1\n")
        with pytest.raises(SetupError, match=r"1\.jsonl' stands before known ones"):
            run.run()


def test_an_unreadable_line_is_a_dead_letter(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("1\noops\n2\n")
    flow = Flow("numbers")
    flow.source(FileSource(path)).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.run()
        (letter,) = run.dead_letters
    assert (letter.value, letter.offset, letter.operator) == (b"oops", 2, f"source {path}")
    assert letter.partition_name == str(path)
    assert run.values("out") == [1, 2]
