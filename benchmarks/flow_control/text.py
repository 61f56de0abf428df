"""The tables of docs/benchmarks.md about flow control, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.flow_control import flows
from benchmarks.flow_control.clique_cases import FULL
from benchmarks.flow_control.clique_outcome import CliqueFigures, Cliques
from benchmarks.flow_control.clique_plots import WAYS
from benchmarks.flow_control.outcome import Outcome

FOUR_EDGES, REFERENCE_EDGES = FULL.four.edges, FULL.reference[0].edges
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
                    f"| {part} | {size:,} | {flows.WAYS[way]} | {run.seconds:.3g}"
                    f" | {run.inside:,.0f} | {run.peak_bytes / 1e6:,.3g} |"
                )
    if outcome.sweep:
        yield from ("", *_sweep(outcome))
    yield from _clique_sweep(outcome.cliques)
    yield from _clique_graphs(outcome.cliques)
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


def _clique_sweep(cliques: Cliques) -> Iterator[str]:
    for workers, by_number in cliques.sweep.items():
        batches = sorted({batch for found in by_number.values() for batch in found})
        yield from ("", f"Triangles, workers: {workers}, by proposals of a batch:", "")
        yield "| seconds and MB | " + " | ".join(f"{one:,}" for one in batches) + " |"
        yield "|---" * (len(batches) + 1) + "|"
        for in_flight, found in sorted(by_number.items()):
            cells = (_cell(found[one]) if one in found else "" for one in batches)
            yield f"| {in_flight} in flight | {' | '.join(cells)} |"
        yield from ("", f"Without flow control: {_cell(cliques.bare[workers])}.")


def _clique_graphs(cliques: Cliques) -> Iterator[str]:
    rows = [
        _row(edges, "power-law", WAYS[way], one)
        for way, by_edges in cliques.growth.items() for edges, one in by_edges.items()
    ]  # fmt: skip
    rows += [
        _row(FOUR_EDGES, "power-law, 4-cliques", WAYS[way], one)
        for way, one in cliques.four.items()
    ]
    rows += [
        _row(REFERENCE_EDGES, kind, f"flow control, workers: {workers}", one)
        for kind, by_workers in cliques.reference.items() for workers, one in by_workers.items()
    ]  # fmt: skip
    for graph, by_name in cliques.others.items():
        edges, _, kind = graph.partition(" ")
        rows += [_row(int(edges), kind, name, one) for name, one in by_name.items()]
    if rows:
        yield from ("", "| edges | graph | | seconds | MB |", "|---|---|---|---|---|", *rows)


def _row(edges: int, graph: str, what: str, found: CliqueFigures) -> str:
    return f"| {edges:,} | {graph} | {what} | {found.seconds:.3g} | {found.peak_bytes / 1e6:,.3g} |"


def _cell(found: CliqueFigures) -> str:
    return f"{found.seconds:.3g} s, {found.peak_bytes / 1e6:,.3g} MB"
