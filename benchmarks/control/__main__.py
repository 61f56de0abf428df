"""Measure changes of the execution plan: `python -m benchmarks.control`, all of it or some parts.

Writes results/control.json after each run, and after each part the pictures docs/control-*.png and
the tables in docs/benchmarks.md. What is compared takes turns. A smaller scale tries the
benchmark, and leaves all files as they are.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import report, tables
from benchmarks.control import changes, plots, text
from benchmarks.control.changes import CHANGES, Load, Run
from benchmarks.control.parts import FULL, SMALL, TITLES, Scale, plan
from benchmarks.control.wanted import figures
from benchmarks.migration import some
from benchmarks.open_loop import Lost
from benchmarks.outcome import Case, Outcome, Part
from benchmarks.report import DOCS, broker_and_bar
from benchmarks.running import ROOT
from benchmarks.states import States

PATH = report.RESULTS / "control.json"
FLOW = ROOT / "benchmarks" / "control" / "flow.py"
WARM = Load(20_000, 2_000, steady=1.0, repeats=1)
"""What has just started compiles itself: the first flow of a broker is slow."""


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Some of {', '.join(TITLES)}; else all.")
    ] = None,
    small: Annotated[bool, typer.Option(help="Try the benchmark: little, and no file.")] = False,
    runs: Annotated[int, typer.Option(min=1, help="Of each case.")] = 3,
    rate: Annotated[
        int | None, typer.Option(help="Records per second, but for a day. Default: 5,000.")
    ] = None,
) -> None:
    """Measure changes of the plan; takes two hours as it is. Nothing else should run."""
    scale, names = SMALL if small else FULL, some(only, TITLES)
    scale = scale if rate is None else scale.at(rate)
    outcome = Outcome() if small else Outcome.load(PATH)
    planned = plan(scale)
    total = runs * sum(len(planned[name].runs) for name in names)
    with broker_and_bar(total) as (bootstrap, bar):
        states = States(bootstrap, FLOW, "affected", reused=False)
        changes.to_and_fro(states, WARM, CHANGES[0])
        for name in names:
            part = outcome.parts[name] = Part(what=planned[name].what)
            for cases, run in runs * [*planned[name].runs.items()]:
                bar.update(bar.task_ids[0], description=f"{name}: {', '.join(cases)}")
                for line in measure(states, part, cases, run):
                    bar.console.print(f"{name}: {line}")
                bar.advance(bar.task_ids[0])
                if not small:
                    outcome.save(figures(outcome), PATH)
            publish(outcome, scale, small=small)
        bar.console.print("\n".join(text.lines(outcome, [])), markup=False)
    if outcome.failures:
        raise typer.Exit(1)


def measure(states: States, part: Part, cases: tuple[str, ...], run: Run) -> list[str]:
    """One run of some cases; what it found of each, in words."""
    own = {name: part.cases.setdefault(name, Case()) for name in cases}
    try:
        found = run(states)
    except Lost as lost:
        for case in own.values():
            case.fail(str(lost))
        return [f"{', '.join(cases)}: FAILED: {lost}"]
    for name, one in found.items():
        own[name].add(one)
    return [
        f"{name}: " + ", ".join(f"{what} {value:,.4g}" for what, value in one.figures.items())
        for name, one in found.items()
    ]


def publish(outcome: Outcome, scale: Scale, *, small: bool) -> None:
    """Draw the pictures and fill the tables; of a trial nothing stays."""
    if small:
        with tempfile.TemporaryDirectory() as folder:
            assert [*plots.draw(outcome, scale, Path(folder))]
        return
    drawn = [*plots.draw(outcome, scale, DOCS)]
    tables.between(DOCS / "benchmarks.md", text.BEGIN, text.END, text.lines(outcome, drawn))


if __name__ == "__main__":
    typer.run(main)
