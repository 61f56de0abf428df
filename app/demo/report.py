"""What the demo tells at its end: a summary for people, `demo.json` for programs.

Both show the same figures; nothing is rounded in the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meander.app.demo.check import Answered, Findings
from meander.app.demo.latency import PHASES, Backlog, LatencySummary
from meander.state.times.time import to_millis


@dataclass(frozen=True, slots=True)
class DemoMigration:
    """One command, as the status topic tells of it."""

    id: str
    strategy: str
    worker: int
    """Where the bins went."""
    asked: int | None
    """The time that the command named, milliseconds since 1970; None for at once."""
    at: int
    """The logical time from which on it holds (fluid: of its first bin)."""
    bins: int
    keys: int
    bytes: int
    """Of state, through the state topic."""
    told_ms: float
    """How long it took in the status topic's words: from its acceptance to its end."""
    wall: tuple[int, int]
    """Nanoseconds since 1970: from when it was given, or data of its time was due, to its end."""

    @property
    def seen_ms(self) -> float:
        """How long it took as seen from outside, milliseconds."""
        return (self.wall[1] - self.wall[0]) / 1e6


@dataclass(frozen=True, slots=True)
class Outcome:
    """All figures of one run."""

    workers: int
    rate: int
    findings: Findings
    migrations: list[DemoMigration]
    latencies: dict[str, LatencySummary]
    backlog: Backlog
    seconds: dict[str, float]
    """How long each part of the demo took."""


def write_json(path: Path, outcome: Outcome) -> None:
    """All figures, JSON."""
    found = outcome.findings
    figures = {
        "records": found.records,
        "results": found.results,
        "differences": found.differences,
        "faults": found.faults(),
        "migrations": [
            {
                "id": done.id,
                "strategy": done.strategy,
                "to": done.worker,
                "asked": done.asked,
                "time": to_millis(done.at),
                "at": done.at,
                "bins": done.bins,
                "keys": done.keys,
                "bytes": done.bytes,
                "seen_ms": done.seen_ms,
                "told_ms": done.told_ms,
            }
            for done in outcome.migrations
        ],
        **{
            figure: {phase: _number(getattr(outcome.latencies[phase], figure)) for phase in PHASES}
            for figure in ("p50_ms", "p99_ms", "max_ms")
        },
        "latency_records": {phase: outcome.latencies[phase].records for phase in PHASES},
        "backlog": {"kept_up": outcome.backlog.kept_up, **asdict(outcome.backlog)},
        "bumped": found.bumped,
        "missing_tailnums": found.missing_tailnums,
        "missing_delays": found.missing_delays,
        "moved_bins": [
            {
                "bin": answered.move.bin,
                "from": answered.move.old,
                "to": answered.move.new,
                "at": answered.move.time,
                "before_by_old": answered.before,
                "after_by_new": answered.after,
                "by_others": answered.by_others,
            }
            for answered in found.answered
        ],
        "workers": outcome.workers,
        "rate": outcome.rate,
        "seconds": outcome.seconds,
    }
    path.write_text(json.dumps(figures, indent=2, allow_nan=False) + "\n")


def show(console: Console, outcome: Outcome) -> None:
    """The summary."""
    parts: list[RenderableType] = [_answers(outcome.findings), _migrations(outcome.migrations)]
    if outcome.findings.answered:
        parts.append(_ownership(outcome.findings.answered))
    for part in (*parts, _latencies(outcome.latencies)):
        console.print()
        console.print(part)
    for sentence in _about_latencies(outcome):
        console.print(sentence)
    console.print()
    for fault in outcome.findings.faults():
        console.print(f"[bold red]wrong:[/] {fault}")
    if not outcome.findings.faults():
        console.print("[bold green]Every answer is right.[/] Spark SQL finds the same, record for")
        console.print("record, and each was given by the worker that owned its bin at that time.")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _answers(found: Findings) -> Table:
    table = _table("Answers", "", "records")
    table.add_row("records in", f"{found.records:,}")
    table.add_row("results out (one per plane, one per carrier)", f"{found.results:,}")
    style = "bold red" if found.differences else "bold green"
    table.add_row("differences", f"[{style}]{found.differences:,}[/]")
    table.add_row("bumped to their partition's frontier", f"{found.bumped:,}")
    table.add_row("without a tail number, counted under (none)", f"{found.missing_tailnums:,}")
    table.add_row("without an arrival delay, counted as missing", f"{found.missing_delays:,}")
    return table


def _migrations(migrations: Sequence[DemoMigration]) -> Table:
    table = _table(
        "Migrations", "command", "how", "bins", "to", "from (UTC)", "keys", "bytes",
        "seen", "told",
    )  # fmt: skip
    for done in migrations:
        time = datetime.fromtimestamp(to_millis(done.at) / 1000, UTC)
        table.add_row(
            done.id,
            done.strategy,
            f"{done.bins:,}",
            f"{done.worker}",
            f"{time:%Y-%m-%d %H:%M}{' ' if done.asked is None else '*'}",
            f"{done.keys:,}",
            f"{done.bytes:,}",
            f"{done.seen_ms:,.0f} ms",
            f"{done.told_ms:,.0f} ms",
        )
    table.caption = (
        "* a time that the command named; the others: as soon as possible\n"
        "seen: from the command, or from when data of its time was due, to the news of its end\n"
        "told: by the status topic, from the command's acceptance to its end"
    )
    table.caption_justify = "left"
    return table


def _ownership(answered: Sequence[Answered]) -> Group:
    """Sums by direction, then each bin."""
    table = _table(
        "Who answered for the moved bins that hold keys",
        "moved",
        "bins",
        "before: old worker",
        "from then on: new worker",
        "anyone else",
    )
    for old, new in sorted({(one.move.old, one.move.new) for one in answered}):
        mine = [one for one in answered if (one.move.old, one.move.new) == (old, new)]
        table.add_row(
            f"from {old} to {new}",
            f"{len(mine):,}",
            f"{sum(one.before for one in mine):,}",
            f"{sum(one.after for one in mine):,}",
            f"{sum(one.by_others for one in mine):,}",
        )
    bins = sorted(answered, key=lambda one: (one.move.bin, one.move.time))
    cells = [Text(f"{one.move.bin}: {one.before:,} | {one.after:,}") for one in bins]
    caption = Text("  each moved bin: results before | from its time on", style="dim")
    return Group(table, caption, Padding(Columns(cells, equal=True, padding=(0, 3)), (0, 2)))


def _latencies(latencies: dict[str, LatencySummary]) -> Table:
    table = _table("Latency from when a record was due", "phase", "records", "p50", "p99", "max")
    for phase in PHASES:
        found = latencies[phase]
        times = (found.p50_ms, found.p99_ms, found.max_ms)
        shown = (f"{time:,.1f} ms" if found.records else "-" for time in times)
        table.add_row(f"{phase} migration", f"{found.records:,}", *shown)
    return table


def _about_latencies(outcome: Outcome) -> Iterator[str]:
    """What the table of them cannot say."""
    for phase in PHASES:
        if not outcome.latencies[phase].records:
            yield f"No record was due {phase} the migrations, so there is nothing to compare with."
    backlog = outcome.backlog
    if not backlog.kept_up:
        yield (
            f"[bold yellow]The flow did not keep up:[/] {backlog.records:,} records became due "
            f"while more than {backlog.bound:,} waited, as many as are due in one second "
            f"({backlog.most:,} at most). Their latencies are those of a backlog: how long "
            "the queue was, not how long an answer or a move takes."
        )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
