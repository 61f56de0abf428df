"""The tables of docs/benchmarks.md that are made of what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks import asked, report
from benchmarks.asked import AT_LEAST, AT_MOST
from benchmarks.outcome import Case, Outcome, Part
from benchmarks.parts import TITLES

BEGIN, END = "<!-- migration: made by benchmarks.migration -->", "<!-- /migration -->"
COLUMNS = {
    "steady_p50_ms": "p50 before", "steady_p99_ms": "p99", "steady_max_ms": "max",
    "moving_p99_ms": "p99 meanwhile", "moving_max_ms": "max", "p50_ms": "p50", "p99_ms": "p99",
    "max_ms": "max", "effect_ms": "until it holds", "moved_ms": "until the bin has moved",
    "seconds": "s to the end", "joined_s": "s to the worker", "back_s": "s until back",
    "back_to_settled_s": "s until settled", "bytes": "MB", "memory_before": "MB held before",
    "memory_peak": "MB held at most meanwhile", "memory_after": "MB held at most later",
    "capacity_per_s": "records/s drained",
    "load_over_capacity": "load over that", "bootstrap_keys_per_s": "keys/s bootstrapped",
    "load_s": "s to load", "load_keys_per_s": "keys/s loaded",
}  # fmt: skip
MEGABYTES = {"bytes", "memory_before", "memory_peak", "memory_after"}


def picture(name: str) -> str:
    """The file of a part's picture, beside the document."""
    return f"migration-{name}.png"


def fill(path: Path, outcome: Outcome) -> None:
    """Put the tables where a document has its marks for them."""
    between(path, BEGIN, END, lines(outcome))


def between(path: Path, begin: str, end: str, made: Iterable[str]) -> None:
    """Put lines between two marks of a document, in place of those before."""
    before, found, rest = path.read_text().partition(begin)
    _, last, after = rest.partition(end)
    assert found, f"{path} has no {begin}"
    assert last, f"{path} has no {end}"
    path.write_text("\n".join([before + begin, *made, end + after]))


def lines(outcome: Outcome) -> Iterator[str]:
    """All tables as Markdown."""
    yield from ("", *wanted(asked.figures(outcome), AT_LEAST, AT_MOST))
    for why in outcome.failures:
        yield from ("", f"**FAILED**: {why}.")
    for name in TITLES:
        if name in outcome.parts:
            yield from ("", f"### {TITLES[name]}", "", *rows(outcome.parts[name], COLUMNS))
        if name in outcome.drawn:
            yield from ("", f"![{TITLES[name]}]({picture(name)})")
    yield ""


def of_parts(
    outcome: Outcome, figure_lines: Iterable[str], titles: Mapping[str, str],
    columns: Mapping[str, str], drawn: Iterable[tuple[str, str]],
) -> Iterator[str]:  # fmt: skip
    """The lines about figures, the table of each part, then pictures by file and title."""
    yield from ("", *figure_lines)
    for why in outcome.failures:
        yield from ("", f"**FAILED**: {why}.")
    for name, title in titles.items():
        if part := outcome.parts.get(name):
            yield from ("", f"### {title}", "", *rows(part, columns))
    yield from (line for file, title in drawn for line in ("", f"![{title}]({file})"))
    yield ""


def wanted(
    figures: Mapping[str, report.Spread],
    at_least: Mapping[str, float],
    at_most: Mapping[str, float],
) -> Iterator[str]:
    """A table of figures, and of what is wanted of them."""
    yield "| figure, run by run | median | least | most | runs | wanted |"
    yield "|---" * 6 + "|"
    for sign, bounds in ((">=", at_least), ("<=", at_most)):
        for name, value in bounds.items():
            cells = ["not yet", "-", "-", "0"]
            if one := figures.get(name):
                values = (one.median, one.least, one.most)
                cells = [*(f"{value:.3g}" for value in values), str(len(one.runs))]
            yield f"| {name} | {' | '.join(cells)} | {sign} {value:g} |"


def rows(part: Part, columns: Mapping[str, str]) -> Iterator[str]:
    """A table of a part, with a row for each case; `columns` are figures and their titles."""
    yield f"{part.what}; latencies in ms, medians ({part.at[:10]})."
    known = {name for case in part.cases.values() for name in case.measured}
    shown = [name for name in columns if name in known]
    yield from ("", "| | runs | " + " | ".join(columns[name] for name in shown) + " |")
    yield "|---" * (len(shown) + 2) + "|"
    for label, case in part.cases.items():
        cells = [_cell(case, name) for name in shown] if case.measured else []
        yield f"| {label} | " + " | ".join([_runs(case), *cells]) + " |"


def _runs(case: Case) -> str:
    """How many there were, and of what kind."""
    if case.not_available is not None:
        return "not available"
    kinds = {"disturbed": len(case.disturbed), "FAILED": len(case.failed)}
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    return f"{case.count} ({told})" if told else str(case.count)


def _cell(case: Case, name: str) -> str:
    value = case.get(name)
    if value is None:
        return "-"
    if name in MEGABYTES:
        return f"{value / 1e6:,.1f}"
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
