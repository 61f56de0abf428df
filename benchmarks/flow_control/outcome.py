"""What the runs have found, as it lies in results/flow_control.json, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from pydantic import BaseModel, Field

from benchmarks import report
from benchmarks.flow_control.clique_outcome import ENOUGH, OVERLAPPING, Cliques
from benchmarks.flow_control.flows import WAYS, Way
from benchmarks.outcome import on_few_lines

PATH = report.RESULTS / "flow_control.json"


class Run(BaseModel):
    """The median of some runs: seconds, records inside at most, peak bytes of memory."""

    seconds: float
    inside: float
    peak_bytes: float

    @staticmethod
    def of(runs: list[dict[str, float]]) -> Run:
        """Return the medians of the figures of some runs.

        >>> Run.of([{"seconds": s, "inside": 1, "peak_bytes": 0} for s in (3, 1, 2)]).seconds
        2.0
        """
        return Run(**{name: median(one[name] for one in runs) for name in runs[0]})


class Outcome(BaseModel):
    """All of them, by name."""

    at: str = Field(default_factory=report.now)
    machine: dict[str, object] = Field(default_factory=report.machine)
    runs: int
    """The runs of which each figure is the median."""
    ways: dict[str, dict[Way, dict[int, Run]]] = {}
    """By part, way and records."""
    sweep: dict[int, dict[int, Run]] = {}
    """Of the surge with flow control, by batches in flight and batch."""
    bare: Run | None = None
    """The surge of the sweep without flow control."""
    cliques: Cliques = Field(default_factory=Cliques)

    @staticmethod
    def load() -> Outcome:
        """Return what was found before."""
        return Outcome.model_validate_json(PATH.read_bytes())

    def save(self) -> None:
        """Write all, and the figures by id, in place of what was found before."""
        PATH.write_text(on_few_lines(self.model_dump() | {"figures": dict(self.figures())}) + "\n")

    def figures(self) -> Iterator[tuple[str, float]]:
        """Yield the figures by id."""
        for part, ways in self.ways.items():
            sizes = sorted(ways["control"])
            least, most = (ways["control"][size] for size in (sizes[0], sizes[-1]))
            others = (ways[way][sizes[-1]] for way in WAYS if way != "control")
            yield f"{part}_inside_growth", most.inside / least.inside
            yield f"{part}_inside_cut", min(one.inside for one in others) / most.inside
        good = [
            run.seconds
            for in_flight, runs in self.sweep.items() if in_flight >= OVERLAPPING
            for batch, run in runs.items() if batch >= ENOUGH
        ]  # fmt: skip
        if good and self.bare is not None:
            yield "surge_overhead_avg", sum(good) / len(good) / self.bare.seconds - 1
            yield "surge_overhead_max", max(good) / self.bare.seconds - 1
            yield "surge_runtime_spread", max(good) / min(good)
        yield from self.cliques.figures()
