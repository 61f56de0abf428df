"""The tables of docs/benchmarks.md about Nexmark, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks import tables
from benchmarks.nexmark.parts import TITLES
from benchmarks.nexmark.wanted import AT_LEAST, AT_MOST, figures
from benchmarks.outcome import Outcome

BEGIN, END = "<!-- nexmark: made by benchmarks.nexmark -->", "<!-- /nexmark -->"
COLUMNS = {
    "meander_per_s": "Meander, records/s", "flink_per_s": "Flink, records/s",
    "meander_p50_ms": "Meander p50", "meander_p99_ms": "p99", "flink_p50_ms": "Flink p50",
    "flink_p99_ms": "p99", "per_s": "records/s",
}  # fmt: skip


def lines(outcome: Outcome, drawn: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Return all tables, then pictures by file and title."""
    figure_lines = tables.wanted(figures(outcome), AT_LEAST, AT_MOST)
    return tables.of_parts(outcome, figure_lines, TITLES, COLUMNS, drawn)
