"""Views: rows of plain Python values as a Spark DataFrame, by a Python Data Source for batch reads.

Guarantees that a view has each row of its source once, and changes nothing there. A value that
cannot be read, or does not fit its column, is null, and the column `error` of its row says why; a
file marks that the view had such a row. Spark gets one input partition per part of the source.
Cost: some microseconds per row and column; a sample of the source decides on the columns.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from meander.connectors.spark.column_types import TEXT, ColumnType, type_of

FORMAT = "meander-view"
ERROR: Final = "error"
"""The last column: why a value of the row is null; null where all values are read."""
# Spark hides the options with "secret" in their names: the reader holds settings of Kafka.
_READER = "secret.reader"
Row = tuple[object, ...]
"""The plain values of a row, and last the reason why one of them is missing, or None."""


class RowSource(Protocol):
    """A source of rows, which travels to Spark's tasks."""

    @property
    def columns(self) -> Mapping[str, ColumnType | None]:
        """Return the names of the columns before `error`; None stands for the type of a sample."""

    def parts(self) -> Sequence[InputPartition]:
        """Return what one task each reads."""

    def rows(self, part: InputPartition) -> Iterator[list[Row]]:
        """Yield the rows of a part, some at a time."""

    def sample(self, most: int) -> list[Row]:
        """Return about as many rows, which decide on the types of the columns."""


@dataclass(frozen=True, slots=True)
class View:
    """A view that has a source of rows and the types of its columns."""

    source: RowSource
    types: Mapping[str, ColumnType]
    marker: str = ""
    """The file that marks a row with an error; '' for none."""

    @staticmethod
    def of(source: RowSource, most: int, marker: str = "") -> View:
        """Return the view of a source, whose columns a sample of `most` rows decides on."""
        found = zip(*source.sample(most), strict=True)
        values = dict(zip(source.columns, found, strict=False))
        types = {
            name: type_of(values.get(name, ())) if known is None else known
            for name, known in source.columns.items()
        }
        return View(source, types | {ERROR: TEXT}, marker)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns as Arrow has them."""
        return pa.schema([(name, one.arrow) for name, one in self.types.items()])

    @property
    def column_types(self) -> StructType:
        """Return the columns as Spark has them."""
        return from_arrow_schema(self.schema)

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part as batches, and mark that one of them has an error."""
        for rows in self.source.rows(part):
            batch = self._batch(rows)
            if self.marker and batch.column(ERROR).null_count < len(rows):
                Path(self.marker).touch()
            yield batch

    def _batch(self, rows: list[Row]) -> pa.RecordBatch:
        *columns, found = zip(*rows, strict=True)
        errors = list(found)
        arrays = []
        for (name, kind), values in zip(self.types.items(), columns, strict=False):
            try:
                arrays.append(kind.array(values))
            except ValueError:
                arrays.append(_each(name, kind, values, errors))
        return pa.RecordBatch.from_arrays(
            [*arrays, pa.array(errors, pa.string())], schema=self.schema
        )


def _each(name: str, kind: ColumnType, values: Sequence[object], errors: list[object]) -> pa.Array:
    """Return values as a column, with null for each that does not fit, and note its error."""
    converted: list[object] = []
    for at, value in enumerate(values):
        try:
            converted.append(kind.convert(value))
        except ValueError as error:
            converted.append(None)
            errors[at] = errors[at] or f"{name}: {error}"
    return pa.array(converted, kind.arrow)


def read_view(spark: SparkSession, view: View) -> DataFrame:
    """Return the rows of a view, as Spark's tasks read them."""
    spark.dataSource.register(ViewSource)
    reader = base64.b64encode(pickle.dumps(view)).decode()
    frame = spark.read.format(FORMAT).schema(view.column_types)
    return frame.option(_READER, reader).load()


class ViewSource(DataSource):
    """A data source of format `meander-view`, whose only option holds the view."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.read.format`."""
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the view that the option holds."""
        options: MutableMapping[str, str] = self.options
        return _Reader(options[_READER])


class _Reader(DataSourceReader):
    def __init__(self, encoded: str) -> None:
        self._encoded = encoded

    @property
    def _view(self) -> View:
        # This process has made the bytes; they do not come from a topic.
        return cast(View, pickle.loads(base64.b64decode(self._encoded)))  # noqa: S301

    def partitions(self) -> Sequence[InputPartition]:
        return [*self._view.source.parts()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._view.read(partition)
