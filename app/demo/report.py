"""What the demo shows: its stages as they pass, a summary, a picture, and what to try next.

The summary shows the figures of `demo.json`; nothing is rounded in the file.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel
from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from meander.app.common.output import CommandOutput
from meander.app.demo.check import Findings, MovedBin
from meander.app.demo.conduct import DemoMigration
from meander.app.flows import flights
from meander.app.measurement.latencies import PHASES, Backlog, Band, LatencySummary, Timeline
from meander.app.measurement.plot import BLUE, GREY, INK, ORANGE, canvas, latency_axis
from meander.connectors.local_broker.kafka_jars import kafka_jars

SLICE = 0.25
"""Seconds of one point of the picture."""
SHADES = ("#f3d9b1", "#cfe3d4", "#d9d3ec", "#f0cfd0")


@dataclass(slots=True)
class Gauge:
    """A gauge shows on a terminal how far a stage is."""

    bar: Progress
    done: int = 0

    def show(self, done: int, total: int, note: str = "") -> None:
        """Show how much of how much is done, and a note."""
        self.done = done
        (task,) = self.bar.task_ids
        self.bar.update(task, completed=done, total=total, description=note)


@dataclass(slots=True)
class Stages:
    """The stages of the demo: a line for each, and on a terminal a line that moves."""

    console: Console
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each has taken."""

    @contextmanager
    def stage(self, name: str, text: str, unit: str = "") -> Iterator[Gauge]:
        """Name a stage, show how far it is in a unit, and note how long it takes."""
        began = time.monotonic()
        self.console.print(f"[dim]{sum(self.seconds.values()):5.1f} s[/]  {text}")
        output = CommandOutput(self.console, as_json=not self.console.is_terminal)
        gauge = Gauge(output.bar(unit))
        gauge.bar.add_task("", total=None)
        with gauge.bar if unit else output.working(text):
            yield gauge
        took = self.seconds[name] = time.monotonic() - began
        if gauge.done:
            self.console.print(f"         {gauge.done:,} {unit} in {took:.1f} s")


class Outcome(BaseModel):
    """All figures of one run, under their names in `demo.json`."""

    records: int
    results: int
    differences: int
    faults: list[str]
    migrations: list[DemoMigration]
    p50_ms: dict[str, float]
    p99_ms: dict[str, float]
    max_ms: dict[str, float]
    latency_records: dict[str, int]
    backlog: dict[str, int | bool]
    bumped: int
    missing_tailnums: int
    missing_delays: int
    moved_bins: list[MovedBin]
    workers: int
    rate: int
    seconds: dict[str, float]

    @classmethod
    def of(
        cls,
        found: Findings,
        migrations: list[DemoMigration],
        phases: dict[str, LatencySummary],
        backlog: Backlog,
        workers: int,
        seconds: dict[str, float],
    ) -> Self:
        """Put the figures of a run together."""
        return cls(
            records=found.records, results=found.results, differences=found.differences,
            faults=found.faults(), migrations=migrations,
            p50_ms={phase: one.p50_ms for phase, one in phases.items()},
            p99_ms={phase: one.p99_ms for phase, one in phases.items()},
            max_ms={phase: one.max_ms for phase, one in phases.items()},
            latency_records={phase: one.records for phase, one in phases.items()},
            backlog={
                "kept_up": not backlog.records, "bound": backlog.bound, "most": backlog.most,
                "records": backlog.records,
            },
            bumped=found.bumped, missing_tailnums=found.missing_tailnums,
            missing_delays=found.missing_delays,
            moved_bins=found.moved,
            workers=workers, rate=backlog.bound, seconds=seconds,
        )  # fmt: skip

    def json_text(self) -> str:
        """Return the file of figures; a latency that no record has is null."""
        return self.model_dump_json(indent=2, by_alias=True) + "\n"


def show(console: Console, outcome: Outcome) -> None:
    """Print the summary."""
    parts: list[RenderableType] = [_answers(outcome), _migrations(outcome.migrations)]
    if outcome.moved_bins:
        parts.append(_ownership(outcome.moved_bins))
    for part in (*parts, _latencies(outcome)):
        console.print()
        console.print(part)
    for phase, records in outcome.latency_records.items():
        if not records:
            console.print(
                f"No record was due {phase} the migrations, so there is nothing to compare with."
            )
    if not outcome.backlog["kept_up"]:
        console.print(
            f"[bold yellow]The flow did not keep up:[/] {outcome.backlog['records']:,} records "
            f"became due while more than {outcome.backlog['bound']:,} waited, as many as are due "
            f"in one second ({outcome.backlog['most']:,} at most). Their latencies are those of a "
            "backlog: how long the queue was, not how long an answer or a move takes."
        )
    console.print()
    for fault in outcome.faults:
        console.print(f"[bold red]wrong:[/] {fault}")
    if not outcome.faults:
        console.print("[bold green]Every answer is right.[/] Spark SQL finds the same, record for")
        console.print("record, and each was given by the worker that owned its bin at that time.")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _answers(outcome: Outcome) -> Table:
    table = _table("Answers", "", "records")
    style = "bold red" if outcome.differences else "bold green"
    for what, count in {
        "records in": f"{outcome.records:,}",
        "results out (one per plane, one per carrier)": f"{outcome.results:,}",
        "differences": f"[{style}]{outcome.differences:,}[/]",
        "bumped to their partition's frontier": f"{outcome.bumped:,}",
        "without a tail number, counted under (none)": f"{outcome.missing_tailnums:,}",
        "without an arrival delay, counted as missing": f"{outcome.missing_delays:,}",
    }.items():
        table.add_row(what, count)
    return table


def _migrations(migrations: Sequence[DemoMigration]) -> Table:
    table = _table(
        "Migrations", "command", "how", "bins", "to", "from (UTC)", "keys", "bytes",
        "seen", "told",
    )  # fmt: skip
    for done in migrations:
        time = datetime.fromtimestamp(done.time / 1000, UTC)
        table.add_row(
            done.id, done.strategy, f"{done.bins:,}", f"{done.to}",
            f"{time:%Y-%m-%d %H:%M}{' ' if done.asked is None else '*'}", f"{done.keys:,}",
            f"{done.bytes:,}", f"{done.seen_ms:,.0f} ms", f"{done.told_ms:,.0f} ms",
        )  # fmt: skip
    table.caption = (
        "* a time that the command named; the others: as soon as possible\n"
        "seen: from the command, or from when data of its time was due, to the news of its end\n"
        "told: by the status topic, from the command's acceptance to its end"
    )
    table.caption_justify = "left"
    return table


def _ownership(moved: Sequence[MovedBin]) -> Group:
    """Show sums by direction, then each bin."""
    table = _table(
        "Who answered for the moved bins that hold keys", "moved", "bins", "before: old worker",
        "from then on: new worker", "anyone else",
    )  # fmt: skip
    for old, new in sorted({(one.old, one.new) for one in moved}):
        mine = [one for one in moved if (one.old, one.new) == (old, new)]
        sums = map(sum, zip(*[(b.before_by_old, b.after_by_new, b.by_others) for b in mine],
                            strict=True))  # fmt: skip
        cells = (f"{count:,}" for count in (len(mine), *sums))
        table.add_row(f"from {old} to {new}", *cells)
    each = [
        Text(f"{one.bin}: {one.before_by_old:,} | {one.after_by_new:,}")
        for one in sorted(moved, key=lambda one: (one.bin, one.at))
    ]
    caption = Text("  each moved bin: results before | from its time on", style="dim")
    return Group(table, caption, Padding(Columns(each, equal=True, padding=(0, 3)), (0, 2)))


def _latencies(outcome: Outcome) -> Table:
    table = _table("Latency from when a record was due", "phase", "records", "p50", "p99", "max")
    for phase, records in outcome.latency_records.items():
        times = (outcome.p50_ms[phase], outcome.p99_ms[phase], outcome.max_ms[phase])
        shown = (f"{time:,.1f} ms" if records else "-" for time in times)
        table.add_row(f"{phase} migration", f"{records:,}", *shown)
    return table


def picture(timeline: Timeline, bands: Sequence[Band], backlog: Backlog, title: str) -> Figure:
    """Draw how long results took, and when bins moved.

    Each point shows the records that were due in a quarter of a second. The bands are those of the
    phases: what was under way while bins moved.
    """
    figure, axes = canvas(title + (" (backlog)" if backlog.records else ""))
    start, end = float(timeline.due[0]), float(timeline.due[-1])
    span = max([end, *(band.end for band in bands)]) - start
    for number, band in enumerate(bands):
        _band(axes, band, number, start, span)
    p50, p99, most = timeline.slices(start, end + SLICE, SLICE).T.clip(min=0.01)
    at = SLICE * (np.arange(len(p50)) + 0.5)
    axes.fill_between(at, p50, most, color=GREY, alpha=0.45, linewidth=0, label="up to max")
    axes.plot(at, p99, color=ORANGE, linewidth=1.4, label="p99")
    axes.plot(at, p50, color=BLUE, linewidth=1.8, label="p50")
    latency_axis(axes, "latency in ms, from due to result")
    axes.set_xlim(0, span)
    axes.set_xlabel(
        "seconds since the first record was due; bands: what was under way while bins moved"
    )
    phases = timeline.phases(bands)
    caption = "     ".join(
        f"{phase}: p50 {found.p50_ms:,.1f}, p99 {found.p99_ms:,.1f}, max {found.max_ms:,.0f} ms"
        if found.records else f"{phase}: no record was due"
        for phase, found in ((phase, phases[phase]) for phase in PHASES)
    )  # fmt: skip
    axes.set_title(caption, loc="left", fontsize=9)
    figure.legend(loc="upper right", frameon=False, ncols=3)
    return figure


def _band(axes: Axes, band: Band, number: int, start: float, span: float) -> None:
    left, right = band.start - start, band.end - start
    shade = SHADES[number % len(SHADES)]
    axes.axvspan(left, max(right, left + 0.05), color=shade, alpha=0.7, linewidth=0)
    # A label in the right half ends with its band, so that it stays inside.
    late = left > span / 2
    axes.annotate(
        band.label, (right if late else left, 0.0), xycoords=("data", "axes fraction"),
        xytext=(-2 if late else 2, 6 + 13 * (number % 3)), textcoords="offset points",
        ha="right" if late else "left", fontsize=8.5, color=INK,
    )  # fmt: skip


def show_next_steps(console: Console, bootstrap: str, prefix: str, *, local: bool) -> None:
    """Print commands that work as they are printed; `local` names the demo's own broker."""
    meander = _near(Path(shutil.which("meander") or Path(sys.executable).with_name("meander")))
    flow = f"--prefix {prefix} --bootstrap {bootstrap}"
    jars = f"java -cp '{kafka_jars()}/*' org.apache.kafka.tools"
    last = flights.topics(prefix)[-1]
    moves = '{"meander":"command","type":"migrate","id":"mine","bins":[0,1,2,3],"worker":0}'
    steps = {
        "Run the flow again: it reads the year from the start, adds its results to the demo's\n"
        "(what came late there, and was bumped, may come in time now), and waits for more": (
            f"MEANDER_FLIGHTS_PREFIX={prefix} {meander} run {_near(Path(flights.__file__))} {flow}"
        ),
        "Meanwhile, in a second terminal, move bins": (
            f"{meander} migrate flights --bins 0-63 --worker 1 {flow}"
        ),
        "Or produce a command to the control topic, with Kafka's own tool": (
            f"echo '{moves}' | {jars}.ConsoleProducer "
            f"--bootstrap-server {bootstrap} --topic {prefix}flights.control"
        ),
        "See what becomes of it": f"{meander} status flights {flow}",
        "Consume results, with their logical time and worker": (
            f"{jars}.consumer.ConsoleConsumer --bootstrap-server {bootstrap} "
            f"--topic {last} --from-beginning --max-messages 10 "
            "--formatter-property print.headers=true"
        ),
    }
    console.print("\n[bold]What to try next[/]")
    for what, command in steps.items():
        console.print(f"\n{what}:")
        # Whole lines, whatever the terminal's width: they are to be copied.
        console.print(f"  {command}", soft_wrap=True, markup=False, style="cyan")
    if local:
        console.print(f"\nThe broker stays up with the demo's topics ({prefix}*). Stop it with:")
        console.print(f"  {meander} broker stop", markup=False, style="cyan")


def _near(path: Path) -> str:
    """As it is reached from here, where that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)
