"""The tables of docs/benchmarks.md about changes of the plan, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks import tables
from benchmarks.control.parts import TITLES
from benchmarks.control.wanted import AT_LEAST, AT_MOST, figures
from benchmarks.outcome import Outcome

BEGIN, END = "<!-- control: made by benchmarks.control -->", "<!-- /control -->"
COLUMNS = {
    "ms": "ms to the end", "prepare_ms": "prepare", "synchronise_ms": "synchronise",
    "joined_ms": "to the worker", "after_ms": "from there",
    "steady_p99_ms": "p99 before", "moving_p99_ms": "p99 meanwhile", "moving_max_ms": "max",
    "settled_p99_ms": "p99 after", "unaffected_steady_p99_ms": "other operator: p99 before",
    "unaffected_moving_p99_ms": "p99 meanwhile", "steady_pause_ms": "longest pause before",
    "pause_ms": "longest pause", "unaffected_pause_ms": "of the other operator",
    "misses": "misses", "worker_seconds": "worker-seconds", "changes": "changes",
}  # fmt: skip


def lines(outcome: Outcome, drawn: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Return all tables, then pictures by file and title."""
    figure_lines = tables.wanted(figures(outcome), AT_LEAST, AT_MOST)
    return tables.of_parts(outcome, figure_lines, TITLES, COLUMNS, drawn)
