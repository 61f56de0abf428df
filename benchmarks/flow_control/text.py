"""The tables of docs/benchmarks.md about flow control, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.flow_control.flows import WAYS
from benchmarks.flow_control.outcome import Outcome

BEGIN, END = "<!-- flow control: made by benchmarks.flow_control -->", "<!-- /flow control -->"


def lines(outcome: Outcome, drawn: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield all tables and pictures."""
    yield from ("", "| figure | measured |", "|---|---|")
    yield from (f"| {id} | {value:.3g} |" for id, value in outcome.figures())
    yield from ("", "| part | records | | seconds | records inside at most | MB more at most |")
    yield "|---|---|---|---|---|---|"
    for part, ways in outcome.ways.items():
        for size in sorted(ways["control"]):
            for way, runs in ways.items():
                run = runs[size]
                yield (
                    f"| {part} | {size:,} | {WAYS[way]} | {run.seconds:.3g} | {run.inside:,.0f}"
                    f" | {run.peak_bytes / 1e6:,.3g} |"
                )
    if outcome.sweep:
        yield from ("", *_sweep(outcome))
    yield from (line for file, title in drawn for line in ("", f"![{title}]({file})"))
    yield ""


def _sweep(outcome: Outcome) -> Iterator[str]:
    batches = sorted(next(iter(outcome.sweep.values())))
    yield "| seconds, by rows of a batch | " + " | ".join(f"{one:,}" for one in batches) + " |"
    yield "|---" * (len(batches) + 1) + "|"
    for in_flight, runs in outcome.sweep.items():
        cells = (f"{runs[batch].seconds:.3g}" for batch in batches)
        yield f"| {in_flight} in flight | {' | '.join(cells)} |"
    assert outcome.bare is not None, "the sweep is compared with a run without flow control"
    yield from ("", f"Without flow control the same surge takes {outcome.bare.seconds:.3g} s.")
