"""Measure Nexmark beside other engines: `python -m benchmarks.nexmark`, or some parts of it.

Writes results/nexmark.json after each run, and at the end the pictures docs/nexmark-*.png and the
tables in docs/benchmarks.md. The engines take turns. A smaller scale tries the benchmark: it prints
what it finds, and leaves all files as they are.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import latency, report, tables
from benchmarks.migration import some
from benchmarks.nexmark import engines, plots, text
from benchmarks.nexmark.drains import WrongResultsError
from benchmarks.nexmark.parts import (
    FULL,
    LATENCIES,
    PYTHON,
    SMALL,
    TITLES,
    Houses,
    Run,
    houses,
    plan,
)
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.wanted import figures
from benchmarks.open_loop import Lost
from benchmarks.outcome import Case, Outcome, Part
from benchmarks.report import DOCS, broker_and_bar

PATH = report.RESULTS / "nexmark.json"


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Some of {', '.join(TITLES)}; else all.")
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option(help=f"Some of {', '.join(QUERIES)}; else all.")
    ] = None,
    small: Annotated[bool, typer.Option(help="Try the benchmark: little, and no file.")] = False,
    runs: Annotated[int, typer.Option(min=1, help="Of each case of a drain.")] = 2,
) -> None:
    """Measure all of it; takes about 25 minutes as it is. Nothing else should run."""
    scale, names = SMALL if small else FULL, some(only, TITLES)
    found = Outcome() if small else Outcome.load(PATH)
    planned = plan(scale)
    queries = some(query, QUERIES)
    if PYTHON in names:
        for engine in engines.PACKAGES:
            engines.python(engine)
    steps = [
        (name, case, run, number)
        for name in names
        for number in range(runs if name != LATENCIES else 1)
        for case, run in planned[name].runs.items()
        if case not in QUERIES or case in queries
    ]
    with broker_and_bar(len(steps)) as (bootstrap, bar):
        latency.echo(bootstrap, 5_000, 2.0 if small else latency.WARMTH / 3)
        with houses(bootstrap, scale) as ready:
            for name in names:
                found.parts[name] = Part(what=planned[name].what)
            for name, case, run, number in steps:
                bar.update(bar.task_ids[0], description=f"{name}: {case}")
                bar.console.print(f"{name}: {measure(found.parts[name], case, run, ready, number)}")
                bar.advance(bar.task_ids[0])
                if not small:
                    found.save(figures(found), PATH)
        publish(found, small=small)
        bar.console.print("\n".join(text.lines(found, [])), markup=False)
    if found.failures:
        raise typer.Exit(1)


def measure(part: Part, name: str, run: Run, ready: Houses, number: int) -> str:
    """Measure a case once; return what it found, in words."""
    case = part.cases.setdefault(name, Case())
    try:
        found = run(ready, number)
    except (Lost, WrongResultsError) as lost:
        case.fail(str(lost))
        return f"{name}: FAILED: {lost}"
    case.add(found)
    return f"{name}: " + ", ".join(f"{what} {n:,.4g}" for what, n in found.figures.items())


def publish(found: Outcome, *, small: bool) -> None:
    """Draw the pictures and fill the tables; of a trial nothing stays."""
    if small:
        with tempfile.TemporaryDirectory() as folder:
            list(plots.draw(found, Path(folder)))
        return
    drawn = [*plots.draw(found, DOCS)]
    tables.between(DOCS / "benchmarks.md", text.BEGIN, text.END, text.lines(found, drawn))


if __name__ == "__main__":
    typer.run(main)
