"""Measure collections that are kept up to date: `python -m benchmarks.incremental`.

Writes results/incremental.json after each case, and at the end the pictures docs/incremental-*.png
and the tables in docs/benchmarks.md. Each case has a process of its own. Scales below the full one
try the benchmark: they print what they find, and write nothing.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from benchmarks import tables
from benchmarks.incremental import isolated, plots, text, wanted
from benchmarks.incremental.cases import CASES
from benchmarks.incremental.outcome import Outcome
from benchmarks.incremental.scale import SCALES
from benchmarks.migration import some
from benchmarks.report import DOCS


def main(
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Some of {', '.join(CASES)}, or the first word of several; else all."),
    ] = None,
    scale: Annotated[str, typer.Option(help=f"One of {', '.join(SCALES)}.")] = "full",
) -> None:
    """Measure all of it, or some cases; takes hours as it is. Nothing else should run."""
    chosen = [case for case in CASES if only is None or any(_named(case, one) for one in only)]
    (size,) = some([scale], SCALES)
    if not chosen:
        raise typer.BadParameter(f"no case is named {only}; the cases are {', '.join(CASES)}")
    outcome = Outcome.load() if size == "full" else Outcome()
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        for name in chosen:
            case = CASES[name]
            task = bar.add_task(name, total=case.ticks(SCALES[size]))
            measure = partial(case.measure, SCALES[size])
            found = isolated.run(measure, partial(bar.advance, task))
            bar.update(task, completed=bar.tasks[task].total)
            outcome.add(name, found)
            for figure, value in found.figures.items():
                bar.console.print(f"{name}: {figure} {value:,.4g}", highlight=False)
            if size == "full":
                save(outcome)
    for id, one in wanted.figures(outcome).items():
        print(f"{id}: {one.value:.3g} (wanted {one.wanted}){'' if one.met else ' MISSED'}")
    if size == "full":
        tables.between(DOCS / "benchmarks.md", text.BEGIN, text.END,
                       text.lines(outcome, plots.draw(outcome)))  # fmt: skip


def _named(case: str, asked: str) -> bool:
    return case == asked or case.partition(" ")[0] == asked


def save(outcome: Outcome) -> None:
    """Write what was found, and the figures by id."""
    outcome.save({id: asdict(one) for id, one in wanted.figures(outcome).items()})


if __name__ == "__main__":
    typer.run(main)
