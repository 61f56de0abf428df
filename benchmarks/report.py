"""What benchmarks leave behind: figures with what they were measured on, and a picture."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from meander.app.measurement.plot import BLUE, INK, canvas
from meander.connectors.local_broker.broker import LocalBroker

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
PACKAGES = ("pyspark", "confluent-kafka", "rocksdict", "numpy", "pyarrow")

Part = Callable[[str], Mapping[str, float]]
"""Measures something on a broker."""
ByRun = Mapping[str, Sequence[float | None]]
"""What each run has measured, by name; None where that one has not."""


def now() -> str:
    """The time, for people."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def machine() -> dict[str, object]:
    """What it was measured on."""
    cpu = Path("/proc/cpuinfo").read_text().partition("model name")[2].partition("\n")[0]
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "cpu": cpu.strip(" \t:"),
        "memory_gib": round(pages * page / (1 << 30), 1),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Of what does the work."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


@dataclass(frozen=True, slots=True)
class Spread:
    """Of several runs."""

    median: float
    least: float
    most: float
    runs: Sequence[float | None]


def summary(runs: ByRun) -> dict[str, Spread]:
    """Medians with their spread.

    >>> summary({"a": [3.0, None, 1.0, 2.0], "b": [None]})
    {'a': Spread(median=2.0, least=1.0, most=3.0, runs=[3.0, None, 1.0, 2.0])}
    """
    found = {}
    for name, values in runs.items():
        if known := [value for value in values if value is not None]:
            found[name] = Spread(statistics.median(known), min(known), max(known), values)
    return found


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What is measured run by run, and what is wanted of it."""

    name: str
    """Of its file of results."""
    title: str
    at_least: Mapping[str, float]
    at_most: Mapping[str, float]
    ratios: Mapping[str, tuple[str, str]]
    """Figures that are ratios of two measurements of one run."""
    never: Sequence[str] = ()
    """What must not happen: not even one of a run may be hidden."""
    picture: str = ""
    """Of its figures over what is wanted, where there is one."""
    draw: Callable[[Mapping[str, float]], None] = lambda _: None
    """Draws another picture of the medians."""

    def figures(self, measured: ByRun) -> dict[str, Sequence[float]]:
        """What is asked for, by id, in each run: what is compared is of the same one."""
        wanted = [*self.at_least, *self.at_most, *self.never]
        found = {name: measured[name] for name in wanted if name in measured}
        for name, (over, under) in self.ratios.items():
            if over in measured and under in measured:
                both = zip(measured[over], measured[under], strict=True)
                found[name] = [a / b for a, b in both if a is not None and b]
        return {name: [one for one in found[name] if one is not None] for name in found}

    def tell(self, console: Console, method: str, measured: ByRun) -> None:
        """Write, draw and show what has been measured so far."""
        by_run = self.figures(measured)
        figures = {
            name: sum(values) if name in self.never else statistics.median(values)
            for name, values in by_run.items()
        }
        RESULTS.mkdir(exist_ok=True)
        spreads = summary({**measured, **by_run})
        written = {
            "at": now(), "machine": machine(), "versions": versions(), "method": method,
            "measured": {name: asdict(spread) for name, spread in spreads.items()},
            "figures": figures,
        }  # fmt: skip
        (RESULTS / f"{self.name}.json").write_text(json.dumps(written, indent=1) + "\n")
        if self.picture:
            self.bars(figures).savefig(DOCS / self.picture)
        self.draw({name: spread.median for name, spread in spreads.items()})
        table = Table(title=self.title, box=box.SIMPLE_HEAD, title_justify="left")
        for column in ("figure", "measured", "wanted", "by run"):
            table.add_column(column)
        never = dict.fromkeys(self.never, 0)
        for name, value in figures.items():
            least, most = self.at_least.get(name), self.at_most.get(name, never.get(name))
            wanted = "" if most is None else f"<= {most}"
            wanted = wanted if least is None else f">= {least}"
            table.add_row(
                name, f"{value:.3g}", wanted, ", ".join(f"{one:.3g}" for one in by_run[name])
            )
        console.print(table)

    def bars(self, figures: Mapping[str, float]) -> Figure:
        """Figures over what is wanted of them, on a logarithmic axis: left of 1 is less."""
        wanted = {**self.at_least, **self.at_most}
        names = [name for name in reversed([*figures]) if name in wanted]
        figure, axes = canvas(f"{self.title}: measured over wanted", 9, 0.6 + 0.45 * len(names))
        ratios = [figures[name] / wanted[name] for name in names]
        axes.barh(names, [ratio - 1 for ratio in ratios], left=1, color=BLUE, height=0.55)
        axes.axvline(1, color=INK, linewidth=1)
        axes.grid(visible=False)
        axes.set_xscale("log")
        for place, (name, ratio) in enumerate(zip(names, ratios, strict=True)):
            text = f" {figures[name]:.3g} (wanted {wanted[name]:g}) "
            side = "left" if ratio >= 1 else "right"
            axes.text(ratio, place, text, va="center", ha=side, fontsize=8, color=INK)
        axes.set_xlabel("measured over wanted")
        axes.margins(x=0.35)
        return figure


def measure(
    benchmark: Benchmark,
    method: str,
    prepare: Callable[[str], None],
    parts: Sequence[Part],
    runs: int,
    once: Sequence[Part] = (),
) -> None:
    """Run all parts on a new broker, `runs` times, and those of `once` at the end.

    The report prints the figures after each run. `method` describes the runs, with {runs} for
    their number.
    """
    measured: dict[str, list[float]] = defaultdict(list)
    with broker_and_bar(runs * len(parts) + len(once)) as (bootstrap, bar):
        prepare(bootstrap)
        for run in range(1, runs + 1):
            for part in (*parts, *(once if run == runs else ())):
                for name, value in part(bootstrap).items():
                    measured[name].append(value)
                    bar.console.print(f"{name}: {value:,.4g}")
                bar.advance(bar.task_ids[0])
            benchmark.tell(bar.console, method.replace("{runs}", str(run)), measured)


@contextmanager
def broker_and_bar(steps: int) -> Iterator[tuple[str, Progress]]:
    """Start a broker and a progress bar of `steps` steps; yield the address and the bar."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
    with LocalBroker() as broker, bar:
        bar.add_task("benchmarks", total=steps)
        yield broker.bootstrap, bar
