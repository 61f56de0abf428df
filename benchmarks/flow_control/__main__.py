"""Measure flow control: `python -m benchmarks.flow_control`.

Writes results/flow_control.json, the pictures docs/flow-control-*.png and the tables in
docs/benchmarks.md. Each run has a process of its own. A smaller scale tries the benchmark, and
writes nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from benchmarks import tables
from benchmarks.flow_control import clique_plots, plots, text
from benchmarks.flow_control.clique_cases import FULL, SMALL, Cases
from benchmarks.flow_control.flows import WAYS, Control, results
from benchmarks.flow_control.outcome import Outcome, Run
from benchmarks.flow_control.runs import measure
from benchmarks.incremental import isolated
from benchmarks.incremental.found import no_tick
from benchmarks.report import DOCS

SURGES = (10_000, 100_000, 1_000_000)
LOOPS = (10, 100, 1_000)
"""The records that double in each of `DEPTH` rounds."""
DEPTH, LOOP_BATCH = 9, 4
SWEPT = [500] * 100
"""The surge of the sweep: 100 records with 500 outputs each."""
BATCHES, IN_FLIGHT = (1, 10, 100, 1_000, 10_000, 100_000), (1, 2, 4, 8)
PARTS = {"surge": [[size] for size in SURGES], "loop": [[DEPTH] * size for size in LOOPS]}
"""The records of each run."""


def main(
    runs: Annotated[int, typer.Option(help="Runs of which each figure is the median.")] = 3,
    only: Annotated[
        str | None,
        typer.Option(help="One of ways, sweep, cliques, or the beginning of a case of cliques."),
    ] = None,
    small: Annotated[bool, typer.Option(help="Try the benchmark: little, and no file.")] = False,
) -> None:
    """Measure flow control beside other ways; takes about an hour. Nothing else should run."""
    outcome, console = Outcome.load() if only else Outcome(runs=runs), Console(stderr=True)
    if only in (None, "ways"):
        _measure_ways(outcome, console, small)
    if only in (None, "sweep"):
        _measure_sweep(outcome, console, small)
    cases = [*Cases(SMALL if small else FULL, runs).steps()]
    if only not in (None, "cliques"):
        cases = [one for one in cases if one[0].startswith(only)]
    for name, step in track(cases, "cliques", console=console):
        step(outcome.cliques)
        console.print(name)
        if not small:
            outcome.save()
    for id, value in outcome.figures():
        print(f"{id}: {value:.3g}")
    if not small:
        outcome.save()
        drawn = [*plots.draw(outcome), *clique_plots.draw(outcome.cliques)]
        lines = text.lines(outcome, drawn)
        tables.between(DOCS / "benchmarks.md", text.BEGIN, text.END, lines)


def _measure_ways(outcome: Outcome, console: Console, small: bool) -> None:
    sizes = slice(0, 1 if small else None)
    for part, records in PARTS.items():
        batch = LOOP_BATCH if part == "loop" else 1000
        for numbers in track(records[sizes], f"{part}, each way", console=console):
            for way in WAYS:
                found = _median(part, Control(way, batch), numbers, outcome.runs)
                size = results(part, numbers)
                outcome.ways.setdefault(part, {}).setdefault(way, {})[size] = found


def _measure_sweep(outcome: Outcome, console: Console, small: bool) -> None:
    outcome.bare = _median("surge", Control("none"), SWEPT, outcome.runs)
    batches = BATCHES[3:5] if small else BATCHES
    for in_flight in track(IN_FLIGHT, "batches of a surge", console=console):
        outcome.sweep[in_flight] = {
            batch: _swept(Control("control", batch, in_flight), outcome.runs) for batch in batches
        }


def _swept(control: Control, runs: int) -> Run:
    """Return a run of the sweep. Tiny batches take a part of its records, and the seconds are
    those of all at the same speed."""
    numbers = SWEPT[: max(2, control.batch)]
    found = _median("surge", control, numbers, runs)
    return found.model_copy(update={"seconds": found.seconds * len(SWEPT) / len(numbers)})


def _median(part: str, control: Control, numbers: list[int], runs: int) -> Run:
    """Return the median of some runs in new processes."""
    found = [
        isolated.run(partial(measure, part, control, numbers), no_tick).figures
        for _ in range(runs)
    ]  # fmt: skip
    return Run.of(found)


if __name__ == "__main__":
    typer.run(main)
