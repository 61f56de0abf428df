"""What the demo shows: its stages as they pass, a summary, a picture, and what to try next.

The summary shows the figures of `demo.json`; nothing is rounded in the file.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.columns import Columns
from rich.console import Console
from rich.progress import Progress

from meander.app.common.output import CommandOutput, at_millis
from meander.app.demo.check import Findings
from meander.app.demo.conduct import DemoMigration
from meander.app.flows import flights
from meander.app.measurement.latencies import FIGURES, Backlog, Band, LatencySummary, Timeline
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


def figures(
    found: Findings,
    migrations: Sequence[DemoMigration],
    phases: Mapping[str, LatencySummary],
    backlog: Backlog,
    more: Mapping[str, object],
) -> str:
    """Return all figures of a run as JSON; a latency that no record has is null."""
    latencies = {
        name: {phase: getattr(one, name) if one.records else None for phase, one in phases.items()}
        for name in FIGURES
    }
    told = {
        **{name: getattr(found, name) for name in ("records", "results", "differences")},
        "faults": found.faults(),
        "migrations": [asdict(one) for one in migrations],
        **latencies,
        "latency_records": {phase: one.records for phase, one in phases.items()},
        "backlog": {"kept_up": not backlog.records, **asdict(backlog)},
        "late_adjusted": found.late_adjusted,
        **{name: getattr(found, name) for name in ("missing_tailnums", "missing_delays")},
        "moved_bins": found.moved,
        **more,
    }
    return json.dumps(told, indent=2, allow_nan=False) + "\n"


def show(
    console: Console,
    found: Findings,
    migrations: Sequence[DemoMigration],
    phases: Mapping[str, LatencySummary],
    backlog: Backlog,
) -> None:
    """Print the summary."""
    table = CommandOutput(console, as_json=False).table
    table("Answers", ["", "records"], [
        ("records in", found.records),
        ("results out (one per plane, one per carrier)", found.results),
        ("differences", found.differences),
        ("late, adjusted to their partition's frontier", found.late_adjusted),
        ("without a tail number, counted under (none)", found.missing_tailnums),
        ("without an arrival delay, counted as missing", found.missing_delays),
    ])  # fmt: skip
    columns = [
        "command", "strategy", "bins", "to", "time (UTC)", "keys", "bytes", "measured ms", "ms"
    ]  # fmt: skip
    table("Migrations", columns, [
        (
            one.id, one.strategy, one.bins, one.to,
            at_millis(one.time)[:16] + " *"[one.asked is not None], one.keys, one.bytes,
            round(one.measured_ms), round(one.ms),
        ) for one in migrations
    ])  # fmt: skip
    console.print(
        "[dim]* a time that the command named; the others: as soon as possible\n"
        "measured ms: from the command, or from when data of its time was due, to its last event\n"
        "ms: as in that event, from the command's acceptance to its end[/]"
    )
    directions = sorted({(one["from"], one["to"]) for one in found.moved})
    columns = ["moved", "bins", "before: old owner", "from then on: new owner", "other workers"]
    rows = []
    for old, new in directions:
        mine = [one for one in found.moved if (one["from"], one["to"]) == (old, new)]
        rows.append((
            f"from {old} to {new}", len(mine), sum(one["before_by_old"] for one in mine),
            sum(one["after_by_new"] for one in mine), sum(one["by_others"] for one in mine),
        ))  # fmt: skip
    table("Results of the moved bins that hold keys", columns, rows)
    console.print("[dim]each moved bin: results before | from its time on[/]")
    each = sorted(found.moved, key=lambda one: (one["bin"], one["at"]))
    texts = [f"{one['bin']}: {one['before_by_old']:,} | {one['after_by_new']:,}" for one in each]
    console.print(Columns(texts, equal=True, padding=(0, 3)))
    columns = ["phase", "records", "p50 ms", "p99 ms", "max ms"]
    table("Latency from when a record was due", columns, [
        (f"{phase} migration", one.records, *(one.named().values() if one.records else [None] * 3))
        for phase, one in phases.items()
    ])  # fmt: skip
    for phase, one in phases.items():
        if not one.records:
            console.print(
                f"No record was due {phase} the migrations, so there is nothing to compare with."
            )
    if backlog.records:
        console.print(
            f"[bold yellow]The flow did not keep up:[/] {backlog.records:,} records became due "
            f"while more than {backlog.bound:,} waited, as many as are due in one second "
            f"({backlog.most:,} at most). Their latencies are those of a backlog: how long "
            "the queue was, not how long an answer or a move takes."
        )
    console.print()
    for fault in found.faults():
        console.print(f"[bold red]wrong:[/] {fault}")
    if not found.faults():
        console.print("[bold green]Every answer is right.[/] Spark SQL finds the same, record for")
        console.print("record, and each was given by the worker that owned its bin at that time.")


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
    caption = "     ".join(
        f"{phase}: p50 {found.p50_ms:,.1f}, p99 {found.p99_ms:,.1f}, max {found.max_ms:,.0f} ms"
        if found.records else f"{phase}: no record was due"
        for phase, found in timeline.phases(bands).items()
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
        "(records that came late there may come in time now), and waits for more": (
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
