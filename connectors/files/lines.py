"""Readers of files of lines: one value per line, or CSV with a header.

Guarantees that a position is the byte offset at which a record begins, and that a record is read
whole: a last line without an end waits for it, unless the run ends at the records of now. Empty
lines are no records. No file stays open between two reads. Cost: a block of 1 MiB per read, and the
decoding.
"""

from __future__ import annotations

import csv
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meander.connectors.custom.records import SourceRecord, UnreadableRecord
from meander.dataflow.operators.error_policy import describe, failure
from meander.schemas.errors import SetupError

BLOCK = 1 << 20
"""The bytes of a read, unless a record is longer."""
_INCOMPLETE = "unexpected end of data"
"""What `csv` says of a quoted field that has no end yet."""
Convert = Callable[[Any], tuple[object, int | None]]
"""Gives the value of a raw record, and its time in milliseconds where the record has one."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file, without its end."""

    start: int
    end: int
    """Where the next line begins."""
    data: bytes


def read_lines(path: Path, position: int, block: int, until_end: bool) -> tuple[list[Line], bool]:
    """Return the whole lines of about a block, and whether the file ends there. Raise SetupError
    where the file ends before the position."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if position > size:
            raise SetupError(
                f"file {str(path)!r}", f"it has {size:,} bytes, and {position:,} were read before",
                "let files only grow; reset the flow to read it from its start",
            )  # fmt: skip
        file.seek(position)
        data = file.read(block)
        while b"\n" not in data and (more := file.read(block)):
            data += more
    at_end = position + len(data) >= size
    whole = len(data) if until_end and at_end else data.rfind(b"\n") + 1
    found = []
    for one in _split(data[:whole]):
        found.append(Line(position, position + len(one), one.rstrip(b"\r\n")))
        position += len(one)
    return found, at_end


def _split(data: bytes) -> Iterator[bytes]:
    """Yield lines with their ends; a lone carriage return ends none."""
    *whole, last = data.split(b"\n")
    yield from (line + b"\n" for line in whole)
    if last:
        yield last


class FileReader(ABC):
    """A reader of one file; implements `PartitionReader`. `convert` gives values and times."""

    def __init__(self, path: Path, position: int, until_end: bool, convert: Convert) -> None:
        self._path, self._until_end, self._convert = path, until_end, convert
        self._position = position
        # Records without a time have that of the file.
        self._millis = path.stat().st_mtime_ns // 1_000_000

    @property
    def position(self) -> int:
        """Return the position behind the last record."""
        return self._position

    @abstractmethod
    def read(self, most: int) -> Sequence[SourceRecord | UnreadableRecord]:
        """Return the next records; none where the file has no more now."""

    def close(self) -> None:  # noqa: B027
        """Do nothing, as no file is open."""

    def _record(
        self, position: int, raw: object, data: bytes, size: int
    ) -> SourceRecord | UnreadableRecord:
        try:
            value, millis = self._convert(raw)
        except failure() as error:
            return UnreadableRecord(position, data, f"it cannot be read: {describe(error)}")
        return SourceRecord(position, value, self._millis if millis is None else millis, size)


class LineReader(FileReader):
    """A reader of one value per line."""

    def read(self, most: int) -> list[SourceRecord | UnreadableRecord]:
        """Return the next records; none where the file has no whole line more now."""
        found = list[SourceRecord | UnreadableRecord]()
        while not found:
            lines, _ = read_lines(self._path, self._position, BLOCK, self._until_end)
            if not lines:
                break
            for line in lines:
                if len(found) == most:
                    break
                self._position = line.end
                if line.data:
                    size = line.end - line.start
                    found.append(self._record(line.start, line.data, line.data, size))
        return found


class CsvReader(FileReader):
    """A reader of CSV whose first record names the columns. A value is a dict of texts."""

    def __init__(
        self, path: Path, position: int, until_end: bool, convert: Convert, delimiter: str
    ) -> None:
        super().__init__(path, position, until_end, convert)
        self._delimiter, self._names = delimiter, list[str]()

    def read(self, most: int) -> list[SourceRecord | UnreadableRecord]:
        """Return the next records; none where the file has no whole record more now."""
        if not self._names and not self._read_names():
            return []
        found = list[SourceRecord | UnreadableRecord]()
        while not found:
            rows = self._rows(self._position, most)
            if not rows:
                break
            for start, end, data, row in rows:
                self._position = end
                if row is None:
                    found.append(UnreadableRecord(start, data, "it is no row of CSV in UTF-8"))
                elif row and len(row) != len(self._names):
                    cause = f"it has {len(row)} fields, and the header has {len(self._names)}"
                    found.append(UnreadableRecord(start, data, cause))
                elif row:
                    raw = dict(zip(self._names, row, strict=True))
                    found.append(self._record(start, raw, data, end - start))
        return found

    def _read_names(self) -> bool:
        rows = self._rows(0, 1)
        if not rows:
            return False
        _, end, data, names = rows[0]
        if not names or len({*names}) < len(names):
            raise SetupError(
                f"file {str(self._path)!r}", f"its first line, {data!r}, names no columns",
                "let the first line name each column once",
            )  # fmt: skip
        self._names, self._position = names, max(self._position, end)
        return True

    def _rows(self, position: int, most: int) -> list[tuple[int, int, bytes, list[str] | None]]:
        """Return the next records with start, end, bytes and fields; None for a malformed one."""
        block = BLOCK
        while True:
            lines, at_end = read_lines(self._path, position, block, self._until_end)
            rows, incomplete = self._parse(lines, most)
            if rows or not incomplete:
                return rows
            if at_end:
                whole = b"\n".join(line.data for line in lines)
                end = lines[-1].end
                return [(position, end, whole, None)] if self._until_end else []
            block *= 2

    def _parse(
        self, lines: Sequence[Line], most: int
    ) -> tuple[list[tuple[int, int, bytes, list[str] | None]], bool]:
        """Return the records of some lines, and whether a further one has no end there."""
        taken, malformed = 0, False

        def texts() -> Iterator[str]:
            nonlocal taken, malformed
            for line in lines:
                taken += 1
                text = line.data.decode("utf-8", "surrogateescape")
                malformed |= not text.isascii() and any("\udc80" <= c <= "\udcff" for c in text)
                yield text + "\n"

        rows = list[tuple[int, int, bytes, list[str] | None]]()
        parser = csv.reader(texts(), delimiter=self._delimiter, strict=True)
        while len(rows) < most:
            first, malformed, row = taken, False, None
            try:
                row = next(parser)
            except StopIteration:
                return rows, False
            except csv.Error as error:
                if _INCOMPLETE in str(error):
                    return rows, True
            mine = lines[first:taken]
            data = b"\n".join(line.data for line in mine)
            rows.append((mine[0].start, mine[-1].end, data, None if malformed else row))
        return rows, False
