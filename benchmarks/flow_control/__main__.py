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
from benchmarks.flow_control import plots, text
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
    small: Annotated[bool, typer.Option(help="Try the benchmark: little, and no file.")] = False,
) -> None:
    """Measure flow control beside other ways; takes about ten minutes. Nothing else should run."""
    outcome, console = Outcome(runs=runs), Console(stderr=True)
    sizes = slice(0, 1 if small else None)
    for part, records in PARTS.items():
        batch = LOOP_BATCH if part == "loop" else 1000
        for numbers in track(records[sizes], f"{part}, each way", console=console):
            for way in WAYS:
                found = _median(part, Control(way, batch), numbers, runs)
                size = results(part, numbers)
                outcome.ways.setdefault(part, {}).setdefault(way, {})[size] = found
    outcome.bare = _median("surge", Control("none"), SWEPT, runs)
    batches = BATCHES[3:5] if small else BATCHES
    for in_flight in track(IN_FLIGHT, "batches of a surge", console=console):
        outcome.sweep[in_flight] = {
            batch: _swept(Control("control", batch, in_flight), runs) for batch in batches
        }
    for id, value in outcome.figures():
        print(f"{id}: {value:.3g}")
    if not small:
        outcome.save()
        drawn = [*plots.draw(outcome)]
        lines = text.lines(outcome, drawn)
        tables.between(DOCS / "benchmarks.md", text.BEGIN, text.END, lines)


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
