"""Measure what migrations cost: `python -m benchmarks.migration`, all of it or some parts.

Writes results/migration.json after each run of each case, and after each part the pictures
docs/migration-*.png and the tables in docs/benchmarks.md. What is compared takes turns, so that a
noisy machine is noisy for all. What a flow rejects is told of as not available; a run that loses a
record has failed, and so has the benchmark in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from benchmarks import asked, curves, load, moving, parts, tables
from benchmarks.moving import DEFAULT, STRATEGIES
from benchmarks.open_loop import Lost
from benchmarks.outcome import Case, Outcome, Part
from benchmarks.parts import TITLES, Run, Wanted
from benchmarks.report import DOCS, broker_and_bar
from benchmarks.running import Unavailable
from benchmarks.states import States
from meander.app.measurement.open_loop import Wave


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Some of {', '.join(TITLES)}; else all.")
    ] = None,
    keys: Annotated[
        int | None, typer.Option(help="Of the state, in place of each part's own.")
    ] = None,
    rate: Annotated[int, typer.Option(help="Records per second of two workers.")] = 3_000,
    served: Annotated[int, typer.Option(help="Records per second, by timer, of each of 8.")] = 400,
    runs: Annotated[int, typer.Option(min=1, help="Of each case.")] = 3,
    strategy: Annotated[
        list[str] | None, typer.Option(help=f"Some of {', '.join(STRATEGIES)}; else all.")
    ] = None,
) -> None:
    """Measure migrations; takes hours as it is. Nothing else should run."""
    chosen = [STRATEGIES[label] for label in some(strategy, STRATEGIES)]
    planned = parts.plan(Wanted(rate, served, keys, chosen))
    names, outcome = some(only, TITLES), Outcome.load()
    total = runs * sum(len(planned[name].runs) for name in names)
    with broker_and_bar(total) as (bootstrap, bar):
        states = States(bootstrap)
        # What has just started compiles itself: the first flow of a broker is slow.
        moving.once(states, moving.Case(load.KEYS, Wave.fixed(rate)), DEFAULT)
        for name in names:
            part = outcome.parts[name] = Part(what=planned[name].what)
            for case, run in runs * [*planned[name].runs.items()]:
                bar.update(bar.task_ids[0], description=f"{name}: {case}")
                bar.console.print(f"{name}: {case}: {measure(states, part, case, run)}")
                bar.advance(bar.task_ids[0])
                outcome.save(asked.figures(outcome))
            publish(outcome)
        bar.console.print("\n".join(tables.lines(outcome)), markup=False)
    if outcome.failures:
        raise typer.Exit(1)


def some(asked: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """Those that are asked for, in their order; all where nobody asks. Raises BadParameter."""
    names = [*known]
    if unknown := [name for name in asked or () if name not in names]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(names)}")
    return [name for name in names if asked is None or name in asked]


def measure(states: States, part: Part, name: str, run: Run) -> str:
    """One run of a case, unless there was none to be had before; what it found, in words."""
    case = part.cases.setdefault(name, Case())
    if case.not_available is None:
        try:
            found = run(states)
        except Unavailable as unavailable:
            case.not_available = str(unavailable)
        except Lost as lost:
            case.fail(str(lost))
            return f"FAILED: {lost}"
        else:
            case.add(found)
            return ", ".join(f"{name} {value:,.4g}" for name, value in found.figures.items())
    return f"not available: {case.not_available}"


def publish(outcome: Outcome) -> None:
    """Draw the pictures and fill the tables."""
    for name in outcome.drawn:
        figure = curves.timelines(outcome.parts[name], TITLES[name])
        figure.savefig(DOCS / tables.picture(name))
    tables.fill(DOCS / "benchmarks.md", outcome)


if __name__ == "__main__":
    typer.run(main)
