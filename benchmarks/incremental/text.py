"""The tables of docs/benchmarks.md about collections, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks.incremental.engine_runs import POINTS, ROUNDS
from benchmarks.incremental.outcome import Outcome
from benchmarks.incremental.plots import TITLES, picture
from benchmarks.incremental.trace_runs import FACTORS
from benchmarks.incremental.wanted import WANTED, figures

BEGIN, END = "<!-- incremental: made by benchmarks.incremental -->", "<!-- /incremental -->"
SERIES = ("degrees", "bfs 1k", "bfs 1m")
RATED = {
    "degrees, 1 worker": "degrees rates", "degrees, 2 workers": "degrees rates 2 workers",
    "search, 1 worker": "bfs rates", "degrees through Kafka, 2 workers": "kafka rates",
}  # fmt: skip
RECOMPUTED = ("numpy_degrees_s", "igraph_degrees_s", "scipy_bfs_s", "igraph_bfs_s")


def lines(outcome: Outcome, drawn: Sequence[str]) -> Iterator[str]:
    """Yield all tables and pictures."""
    yield from ("", "| figure | measured | wanted | |", "|---|---|---|---|")
    known = figures(outcome)
    for id in WANTED:
        if one := known.get(id):
            yield f"| {id} | {one.value:.3g} | {one.wanted} | {'' if one.met else 'missed'} |"
        else:
            yield f"| {id} | not yet | - | |"
    yield from ("", "### Traces", "", *_traces(outcome))
    yield from ("", "### Single changes", "", *_singles(outcome))
    yield from ("", "### Changes per second", "", *_rates(outcome))
    yield from ("", "### Packages of Debian", "", *_packages(outcome))
    for name in drawn:
        yield from ("", f"![{TITLES[name]}]({picture(name)})")
    yield ""


def _traces(outcome: Outcome) -> Iterator[str]:
    yield "| factor of merging | updates/s | step p50 in ms | p99 | longest | rows over live |"
    yield "|---|---|---|---|---|---|"
    columns = ("updates_per_s", "step_p50_ms", "step_p99_ms", "step_max_ms", "trace_over_live")
    for name in FACTORS:
        yield f"| {name} | " + _cells(outcome, f"trace factor {name}", columns)


def _singles(outcome: Outcome) -> Iterator[str]:
    yield "| | after | p50 in ms | p99 | longest | without compaction p50 | p99 | longest |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in SERIES:
        for exponent in POINTS[name.partition(" ")[0]]:
            columns = [f"after_{exponent}_{figure}_ms" for figure in ("p50", "p99", "max")]
            plain = _cells(outcome, f"{name} uncompacted", columns)
            yield f"| {name} | {exponent:,} | {_cells(outcome, name, columns)} {plain}"


def _rates(outcome: Outcome) -> Iterator[str]:
    yield "| changes of a round | " + " | ".join(f"{size:,}" for size in ROUNDS) + " |"
    yield "|---" * (len(ROUNDS) + 1) + "|"
    for label, case in RATED.items():
        columns = [f"{size}_per_s" for size in ROUNDS]
        yield f"| {label} | {_cells(outcome, case, columns)}"
    cell = partial(_cell, outcome, "recompute 1m")
    taken = ", ".join(f"{name.removesuffix('_s')} {cell(name)} s" for name in RECOMPUTED)
    yield from ("", f"Other libraries compute the answer of each round from all edges: {taken}.")


def _packages(outcome: Outcome) -> Iterator[str]:
    cell = partial(_cell, outcome, "packages")
    yield (
        f"{cell('packages')} packages with {cell('edges')} dependencies load in {cell('load_s')} s."
        f" One of them needs {cell('reached')} packages, found in {cell('initial_s')} s. A single"
        f" change takes {cell('single_p50_ms')} ms at the median, p99 {cell('single_p99_ms')} ms."
    )


def _cells(outcome: Outcome, case: str, columns: Sequence[str]) -> str:
    return " | ".join(_cell(outcome, case, name) for name in columns) + " |"


def _cell(outcome: Outcome, case: str, name: str) -> str:
    value = outcome.get(case, name)
    if value is None:
        return "-"
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
