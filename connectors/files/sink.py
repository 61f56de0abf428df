"""Files as a sink: JSON lines or CSV, one file per worker in a folder.

Guarantees at-least-once delivery: each write appends whole lines and brings them to the disk. A
line that a crash has cut goes when the worker's file is opened again, as its result was not
delivered. Cost: a write and a sync for all results that wait.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from meander.connectors.custom.records import SinkRecord
from meander.connectors.custom.sink import Sink
from meander.connectors.kafka.formats import (
    Encoder,
    Format,
    ValueFormat,
    check_format,
    encoder,
    types_of,
)
from meander.connectors.kafka.typed import check_delimiter, checked_columns
from meander.schemas.errors import SetupError


@dataclass(frozen=True)
class FileSink(Sink):
    r"""A sink that appends results to `part-<worker>.jsonl` in a folder, one line each.

    `value` encodes a value as that of a `KafkaSink` does. With `columns` the files are CSV with a
    header, and a value is a dict with these keys. The folder has to be one that all workers reach.

    A restart writes the results behind the checkpoint again.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from meander import FileSink, Flow, KafkaSource
    >>> from meander.testing import TestFlow
    >>> folder = Path(tempfile.mkdtemp())
    >>> flow = Flow("totals")
    >>> flow.source(KafkaSource("orders")).sink(FileSink(folder, columns=["id", "cents"]))
    >>> with TestFlow(flow, workers=1) as run:
    ...     run.feed("orders", {"id": 7, "cents": 120})
    ...     run.run()
    >>> (folder / "part-0.csv").read_text()
    'id,cents\n7,120\n'
    """

    folder: str | Path
    value: Format | Encoder | ValueFormat[Any] = "json"
    columns: Sequence[str] = ()
    delimiter: str = ","

    def __post_init__(self) -> None:
        name = f"sink of files {str(self.folder)!r}"
        if not isinstance(self.folder, str | Path):
            raise SetupError(name, f"its folder is {self.folder!r}", "give the path of a folder")
        check_format(f"{name}, value", self.value)
        if self.columns != ():
            checked_columns(name, self.columns)
        check_delimiter(name, self.delimiter)

    @cached_property
    def _encode(self) -> Callable[[Any], bytes | None]:
        return self._row if self.columns else encoder(self.value)

    @property
    def label(self) -> str:
        """Return the folder."""
        return str(self.folder)

    @property
    def types(self) -> list[object]:
        """Return the types that its format names."""
        return types_of(self.value)

    def encode(self, value: object) -> bytes:
        """Return the line of a value. Raise TypeError or ValueError for one that has none."""
        data = self._encode(value)
        if data is None:
            data = b"null"
        if b"\n" in data:
            raise ValueError("it has a line break")
        return data + b"\n"

    def open_part(self, worker: int) -> FilePart:
        """Return the file of a worker."""
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        head = self._line(self.columns) + b"\n" if self.columns else b""
        suffix = ".csv" if self.columns else ".txt" if self.value == "str" else ".jsonl"
        return FilePart(folder / f"part-{worker}{suffix}", head)

    def _row(self, value: object) -> bytes:
        if not isinstance(value, dict) or value.keys() != {*self.columns}:
            raise TypeError(f"it takes a dict of {', '.join(self.columns)}")
        return self._line([value[name] for name in self.columns])

    def _line(self, fields: Sequence[object]) -> bytes:
        out = io.StringIO()
        csv.writer(out, delimiter=self.delimiter, lineterminator="").writerow(fields)
        return out.getvalue().encode()


class FilePart:
    """The file of one worker; implements `SinkPart`. `head` is its first line."""

    def __init__(self, path: Path, head: bytes) -> None:
        self._file = path.open("a+b", buffering=0)
        size = self._whole_lines()
        self._file.truncate(size)
        if not size:
            self._append(head)

    def write(self, records: Sequence[SinkRecord]) -> None:
        """Append lines; return once they are on the disk."""
        self._append(
            b"".join(record.value for record in records if isinstance(record.value, bytes))
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) or 0 :]
        os.fsync(self._file.fileno())

    def _whole_lines(self) -> int:
        """Return the bytes of the file up to the end of its last whole line."""
        end = self._file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - (1 << 16))
            self._file.seek(start)
            if (place := self._file.read(end - start).rfind(b"\n")) >= 0:
                return start + place + 1
            end = start
        return 0
