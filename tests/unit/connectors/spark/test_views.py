"""A view has each row of its source, and says of a value that it lacks why it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.datasource import InputPartition

from meander.connectors.spark.column_types import INT, ColumnType
from meander.connectors.spark.views import Row, View


@dataclass
class Listed:
    """A source of rows in memory."""

    some: list[Row]

    @property
    def columns(self) -> Mapping[str, ColumnType | None]:
        return {"key": None, "value": None, "partition": INT}

    def parts(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def rows(self, part: InputPartition) -> Iterator[list[Row]]:
        yield self.some

    def sample(self, most: int) -> list[Row]:
        return self.some[:most]


def shown(view: View) -> list[dict[str, object]]:
    parts = view.source.parts()
    return [row for part in parts for batch in view.read(part) for row in batch.to_pylist()]


def test_a_value_outside_of_its_column_is_null_with_a_reason(tmp_path: Path) -> None:
    rows: list[Row] = [("a", 1, 0, None), ("b", "x", 0, None), ("c", None, 0, "value: no JSON")]
    marker = tmp_path / "errors"
    assert shown(View.of(Listed(rows), 1, str(marker))) == [
        {"key": "a", "value": 1, "partition": 0, "error": None},
        {"key": "b", "value": None, "partition": 0, "error": "value: 'x' is no bigint"},
        {"key": "c", "value": None, "partition": 0, "error": "value: no JSON"},
    ]
    assert marker.exists()


def test_a_larger_sample_gives_a_column_for_all_values(tmp_path: Path) -> None:
    rows: list[Row] = [("a", 1, 0, None), ("b", "x", 0, None)]
    marker = tmp_path / "errors"
    found = shown(View.of(Listed(rows), 2, str(marker)))
    assert [one["value"] for one in found] == ["1", '"x"']
    assert not marker.exists()


def test_an_empty_view_has_its_columns() -> None:
    view = View.of(Listed([]), 10)
    assert view.column_types.simpleString() == (
        "struct<key:string,value:string,partition:bigint,error:string>"
    )
