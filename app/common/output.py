"""Print the output of commands: tables and progress on a terminal, JSON lines elsewhere.

With `--json`, or where standard output is not a terminal, each line is one JSON object. Log lines
and errors go to standard error, so a program can parse all of standard output.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from meander.schemas.status import Event


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """An output of one command."""

    console: Console
    as_json: bool

    @staticmethod
    def of(as_json: bool) -> CommandOutput:
        """Choose between a terminal and JSON lines."""
        console = Console(highlight=False)
        return CommandOutput(console, as_json or not console.is_terminal)

    def event(self, event: Event) -> None:
        """Print an event as a JSON line, unless this is a terminal."""
        if self.as_json:
            self.line(msgspec.to_builtins(event))

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        names: int = 1,
        show: Callable[[object], str] | None = None,
    ) -> None:
        """Print rows; columns of numbers are aligned to the right. The first columns hold `names`
        to type, which are never cut. `show` writes a cell, by default as `shown` does."""
        if self.as_json:
            for row in rows:
                self.line(dict(zip(columns, row, strict=True)))
            return
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for index, column in enumerate(columns):
            numbers = all(isinstance(row[index], int | float) for row in rows)
            justify: Literal["left", "right"] = "right" if numbers and rows else "left"
            table.add_column(column, justify=justify, no_wrap=index < names, overflow="fold")
        for row in rows:
            # As text: brackets in a name are no markup.
            table.add_row(*(Text((show or shown)(cell)) for cell in row))
        self.console.print(table)

    def line(self, fields: Mapping[str, object]) -> None:
        """Print one JSON object."""
        print(json.dumps(fields), flush=True)

    def working(self, text: str) -> AbstractContextManager[object]:
        """Show a text and the seconds so far while the block lasts."""
        if self.as_json:
            return nullcontext()
        columns = SpinnerColumn(), TextColumn(text), TimeElapsedColumn()
        progress = Progress(*columns, console=self.console, transient=True)
        progress.add_task(text, total=None)
        return progress

    def bar(self, unit: str) -> Progress:
        """Return a progress bar with a rate in `unit` and the time left."""
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(unit),
            TimeRemainingColumn(),
            console=self.console,
            disable=self.as_json,
        )

    def say(self, text: str) -> None:
        """Print a sentence on a terminal."""
        if not self.as_json:
            self.console.print(text, markup=False)


class _Rate(ProgressColumn):
    """A column with a rate per second, once that is known."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Return the rate as text."""
        return Text(f"{self._unit}, {task.speed:,.1f}/s" if task.speed else self._unit)


class LogFormatter(logging.Formatter):
    """A formatter that begins a line with the time (UTC) and the level.

    >>> fields = {"created": 0.25, "msecs": 250, "levelname": "INFO", "msg": "worker_started"}
    >>> LogFormatter().format(logging.makeLogRecord(fields))
    '00:00:00.250 INFO worker_started'
    """

    converter = staticmethod(time.gmtime)
    default_time_format = "%H:%M:%S"
    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")


class _ConsoleHandler(logging.Handler):
    """A handler that prints lines above a progress bar."""

    def __init__(self, output: CommandOutput) -> None:
        super().__init__()
        self._console = output.console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), markup=False, soft_wrap=True)


def log_to(output: CommandOutput, debug: bool) -> None:
    """Print log lines on standard error, or above the progress on a terminal."""
    level = logging.DEBUG if debug else logging.INFO
    handler = logging.StreamHandler(sys.stderr) if output.as_json else _ConsoleHandler(output)
    handler.setFormatter(LogFormatter())
    handler.addFilter(_not_of_py4j)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """Drop log lines of py4j, also under the root logger: it raises the same errors."""
    return "py4j" not in Path(record.pathname).parts


def shown(value: object) -> str:
    """Return a value as a table shows it.

    >>> shown(1234567), shown(0.5), shown(None)
    ('1,234,567', '0.5', '-')
    """
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case _:
            return str(value)


def at_millis(millis: int) -> str:
    """Return a time (UTC) as text; 0 stands for the time before the first record.

    >>> at_millis(1_356_998_400_000), at_millis(0)
    ('2013-01-01 00:00:00.000', 'the beginning')
    """
    if not millis:
        return "the beginning"
    return datetime.fromtimestamp(millis / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def duration(seconds: float) -> str:
    """Return a duration as text.

    >>> duration(0.018), duration(24.69), duration(90), duration(86_400), duration(1e6)
    ('18 ms', '24.7 s', '90 s', '24.0 h', '11.6 d')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 600:
        return f"{seconds:.0f} s" if seconds >= 60 else f"{seconds:.1f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:,.1f} d"


def size(count: int) -> str:
    """Return a number of bytes as text.

    >>> size(512), size(3_500_000)
    ('512 B', '3.5 MB')
    """
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"
