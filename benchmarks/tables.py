"""The tables of docs/benchmarks.md that are made of what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.asked import AT_LEAST, AT_MOST
from benchmarks.outcome import Case, Outcome, Part

BEGIN, END = "<!-- migration: made by benchmarks.migration -->", "<!-- /migration -->"
COLUMNS = {
    "steady_p50_ms": "p50 before", "steady_p99_ms": "p99", "steady_max_ms": "max",
    "moving_p99_ms": "p99 meanwhile", "moving_max_ms": "max", "p50_ms": "p50", "p99_ms": "p99",
    "max_ms": "max", "effect_ms": "until it holds", "moved_ms": "until the bin has moved",
    "seconds": "s to the end", "joined_s": "s to the worker", "back_s": "s until back",
    "back_to_settled_s": "s until settled", "bytes": "MB", "memory_before": "MB held before",
    "memory_peak": "MB held at most", "missing": "missing",
}  # fmt: skip
MEGABYTES = {"bytes", "memory_before", "memory_peak"}
TITLES = {
    "2a": "From one worker to two", "2b": "From four workers to eight",
    "2c": "From four workers to eight, under a square wave", "memory": "Memory",
    "growth": "More state", "cost": "The cost of being migratable", "lead": "`control_lead`",
    "rescale": "A second worker joins", "order": "The order of bins, where keys are skewed",
    "pace": "A share, or a latency, under a square wave", "interval": "`snapshot_interval`",
}  # fmt: skip


def picture(name: str) -> str:
    """The file of a part's picture, beside the document."""
    return f"migration-{name}.png"


def fill(path: Path, outcome: Outcome) -> None:
    """Put the tables where a document has its marks for them."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{path} has no {BEGIN}"
    assert end, f"{path} has no {END}"
    path.write_text("\n".join([before + BEGIN, *lines(outcome), END + after]))


def lines(outcome: Outcome) -> Iterator[str]:
    """All tables as Markdown."""
    yield from ("", *_figures(outcome.figures))
    for name in TITLES:
        if name in outcome.parts:
            yield from ("", f"### {TITLES[name]}", "", *_part(outcome.parts[name]))
        if name in outcome.drawn:
            yield from ("", f"![{TITLES[name]}]({picture(name)})")
    yield ""


def _figures(figures: Mapping[str, float]) -> Iterator[str]:
    yield from ("| figure | measured | wanted |", "|---|---|---|")
    for sign, wanted in ((">=", AT_LEAST), ("<=", AT_MOST)):
        for name, value in wanted.items():
            measured = f"{figures[name]:.3g}" if name in figures else "not yet"
            yield f"| {name} | {measured} | {sign} {value:g} |"


def _part(part: Part) -> Iterator[str]:
    runs = max(
        (len(s.runs) for case in part.cases.values() for s in case.measured.values()), default=0
    )
    yield f"{part.what}; latencies in ms, medians of {runs} runs ({part.at[:10]})."
    known = {name for case in part.cases.values() for name in case.measured}
    shown = [name for name in COLUMNS if name in known]
    yield from ("", "| | " + " | ".join(COLUMNS[name] for name in shown) + " |")
    yield "|---" * (len(shown) + 1) + "|"
    for label, case in part.cases.items():
        cells = [_cell(case, name) for name in shown] if case.measured else ["not available"]
        yield f"| {label} | " + " | ".join(cells) + " |"


def _cell(case: Case, name: str) -> str:
    value = case.get(name)
    if value is None:
        return "-"
    if name in MEGABYTES:
        return f"{value / 1e6:,.1f}"
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
