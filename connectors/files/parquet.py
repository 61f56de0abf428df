"""The reader of a Parquet file; a position is the number of a row.

Guarantees that a value is a dict of the row's columns, and that rows keep their order. The file has
to be complete. Cost: one row group in columns at a time, and 4 us per row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from meander.connectors.custom.records import SourceRecord, UnreadableRecord
from meander.connectors.files.lines import Convert, FileReader
from meander.schemas.errors import SetupError

BATCH = 3000
"""The rows that become Python objects at once."""


class ParquetReader(FileReader):
    """A reader of the rows of a Parquet file."""

    def __init__(self, path: Path, position: int, until_end: bool, convert: Convert) -> None:
        super().__init__(path, position, until_end, convert)
        try:
            self._file = pq.ParquetFile(path)
        except pa.ArrowInvalid as error:
            raise SetupError(
                f"file {str(path)!r}", f"it is no Parquet file ({error})",
                "write it under another name, and rename it when it is complete",
            ) from error  # fmt: skip
        rows = self._file.metadata.num_rows
        if position > rows:
            raise SetupError(
                f"file {str(path)!r}", f"it has {rows:,} rows, and {position:,} were read before",
                "keep files as they are; reset the flow to read it from its start",
            )  # fmt: skip
        self._size = max(1, path.stat().st_size // max(rows, 1))
        self._batches = self._from(position)
        self._rows, self._next = list[dict[str, Any]](), 0

    def read(self, most: int) -> list[SourceRecord | UnreadableRecord]:
        """Return the next rows; none behind the last one."""
        if self._next == len(self._rows):
            self._rows, self._next = next(self._batches, []), 0
        rows = self._rows[self._next : self._next + most]
        found = [
            self._record(number, row, repr(row).encode(), self._size)
            for number, row in enumerate(rows, self._position)
        ]
        self._next += len(rows)
        self._position += len(rows)
        return found

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _from(self, position: int) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows from a position on, some at a time."""
        metadata, passed = self._file.metadata, 0
        for group in range(metadata.num_row_groups):
            count = metadata.row_group(group).num_rows
            if passed + count > position:
                first = passed
                for batch in self._file.iter_batches(BATCH, row_groups=[group]):
                    skipped = max(0, min(position - first, batch.num_rows))
                    first += batch.num_rows
                    if skipped < batch.num_rows:
                        yield batch.slice(skipped).to_pylist()
            passed += count
