"""Files as a source: JSON lines, CSV or Parquet, each file one partition.

Guarantees that a record is read again from its place after a restart. Files have the order of their
list, and those of a pattern that of their names, so a new file needs a name behind the others. All
workers have to reach the same paths. Cost: that of the format.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from typing_extensions import TypeVar

from meander.connectors.custom.records import PartitionReader
from meander.connectors.custom.source import DEFAULT_OPTIONS, Source
from meander.connectors.files.lines import CsvReader, LineReader
from meander.connectors.kafka.formats import (
    FieldTime,
    Format,
    ValueFormat,
    check_format,
    decoder,
    types_of,
)
from meander.connectors.kafka.typed import check_delimiter
from meander.dataflow.interfaces import SourceOptions, check_options
from meander.schemas.errors import SetupError
from meander.state.times.time import checked_millis

T = TypeVar("T", default=Any)
"""The type of its values."""
FileFormat = Literal["lines", "csv", "parquet"]
_SUFFIXES: dict[str, FileFormat] = {".csv": "csv", ".parquet": "parquet"}
_COMPRESSED = (".bz2", ".gz", ".xz", ".zst")


@dataclass(frozen=True)
class FileSource(Source[T]):
    r"""A source that reads files: a path, a pattern such as "logs/*.jsonl", or a list of them.

    `format` is "lines", "csv" or "parquet"; without it the suffix of the paths decides, and other
    files have lines. `value` decodes a line, as that of a `KafkaSource` does. CSV has a header, and
    a value is a dict of texts; `columns` has functions that convert them. A value of Parquet is a
    dict.

    `time` is `field("name")` or a function of the value, which returns milliseconds since 1970.
    Without it all records of a file have the time at which the file last changed.

    Files may grow by whole lines. A running flow finds new files of a pattern within seconds.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from meander import FileSource, Flow, KafkaSink, field
    >>> from meander.testing import TestFlow
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "1.csv").write_text("id,at\n7,20\n8,10\n")
    >>> flow = Flow("orders")
    >>> columns = {"id": int, "at": int}
    >>> orders = flow.source(FileSource(f"{folder}/*.csv", columns=columns, time=field("at")))
    >>> orders.sink(KafkaSink("orders"))
    >>> with TestFlow(flow) as run:
    ...     run.run()
    >>> run.values("orders")
    [{'id': 7, 'at': 20}, {'id': 8, 'at': 10}]
    """

    paths: str | Path | Sequence[str | Path]
    value: Format | Callable[[bytes], T] | ValueFormat[T] = "json"
    format: FileFormat | None = None
    time: FieldTime | Callable[[Any], int] | None = None
    columns: Mapping[str, Callable[[str], object]] | None = None
    delimiter: str = ","
    options: SourceOptions = DEFAULT_OPTIONS

    def __post_init__(self) -> None:
        given: object = [self.paths] if isinstance(self.paths, str | Path) else self.paths
        named = isinstance(given, Sequence) and all(isinstance(one, str | Path) for one in given)
        if not isinstance(given, Sequence) or not named or not given or not all(map(str, given)):
            raise SetupError("source of files", f"its paths are {self.paths!r}",
                             "give a path, a pattern, or a list of them")  # fmt: skip
        object.__setattr__(self, "paths", (*map(str, given),))
        name = f"source of files {self.label!r}"
        check_format(f"{name}, value", self.value)
        # A position is the place of a byte, which a compressed file has no way to.
        if packed := [one for one in self._paths if one.lower().endswith(_COMPRESSED)]:
            raise SetupError(name, f"{packed[0]!r} is compressed",
                             "give the lines as they are, or Parquet, which compresses itself"
                             )  # fmt: skip
        if not (self.time is None or isinstance(self.time, FieldTime) or callable(self.time)):
            raise SetupError(f"{name}, time", f"it is {self.time!r}",
                             "give field('name') or a function of the value")  # fmt: skip
        if self.format is None:
            kinds = {_SUFFIXES.get(Path(one).suffix.lower(), "lines") for one in self._paths}
            if len(kinds) > 1:
                raise SetupError(name, "its files have several formats",
                                 "give each format a source of its own")  # fmt: skip
            object.__setattr__(self, "format", kinds.pop())
        if self.format not in get_args(FileFormat):
            raise SetupError(f"{name}, format", f"it is {self.format!r}",
                             "give 'lines', 'csv' or 'parquet'")  # fmt: skip
        if self.columns and self.format != "csv":
            raise SetupError(f"{name}, columns", f"its format is {self.format!r}",
                             "give columns to CSV alone")  # fmt: skip
        columns: object = self.columns
        if not isinstance(columns, Mapping | None) or not all(
            map(callable, (columns or {}).values())
        ):
            raise SetupError(name, f"its columns are {columns!r}",
                             "give functions of a text by column, such as {'id': int}")  # fmt: skip
        check_delimiter(name, self.delimiter)
        check_options(name, self.options)

    @property
    def _paths(self) -> tuple[str, ...]:
        assert isinstance(self.paths, tuple)
        return self.paths

    @property
    def label(self) -> str:
        """Return the paths."""
        return ", ".join(self._paths)

    @property
    def types(self) -> list[object]:
        """Return the types that its format names."""
        return types_of(self.value)

    def partitions(self) -> list[str]:
        """Return the files. Raise SetupError where there is none."""
        found = list[str]()
        for one in self._paths:
            if glob.has_magic(one):
                found += sorted(filter(os.path.isfile, glob.iglob(one)))  # noqa: PTH207
            elif Path(one).is_file():
                found.append(one)
            else:
                raise SetupError(f"file {one!r}", f"there is none in {Path.cwd()}",
                                 "correct the path; workers have to reach it too")  # fmt: skip
        if not found:
            raise SetupError(f"source of files {self.label!r}", f"no file in {Path.cwd()} matches",
                             "correct the pattern, or add a first file")  # fmt: skip
        return [*dict.fromkeys(found)]

    def open_partition(self, name: str, position: int, until_end: bool) -> PartitionReader[T]:
        """Return a reader of a file from a position on."""
        path = Path(name)
        match self.format:
            case "csv":
                columns = self._row
                return CsvReader(path, position, until_end, columns, self.delimiter)
            case "parquet":
                # Arrow takes a while to load.
                from meander.connectors.files.parquet import ParquetReader

                return ParquetReader(path, position, until_end, self._timed)
        decode = decoder(self.value)
        return LineReader(path, position, until_end, lambda data: self._timed(decode(data)))

    def _row(self, texts: dict[str, str]) -> tuple[object, int | None]:
        row: dict[str, object] = {**texts}
        for column, convert in (self.columns or {}).items():
            row[column] = convert(texts[column])
        return self._timed(row)

    def _timed(self, value: object) -> tuple[object, int | None]:
        if self.time is None:
            return value, None
        extract = self.time.millis if isinstance(self.time, FieldTime) else self.time
        return value, checked_millis(extract(value))
