"""What the runs of cliques have found, and the figures that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, median

from pydantic import BaseModel

from benchmarks.incremental.found import Found

SWEPT_NUMBERS, SWEPT_BATCHES = 4, 3
"""The numbers of batches in flight, and the sizes of batches, of a whole sweep."""
ENOUGH, OVERLAPPING = 1000, 2
"""The least batch, and the least batches in flight, that the paper calls close to optimal."""


class CliqueFigures(BaseModel):
    """The medians of some runs: seconds, and peak bytes of memory."""

    seconds: float
    peak_bytes: float

    @staticmethod
    def of(runs: Sequence[Found]) -> CliqueFigures:
        """Return the medians of some runs."""
        names = "seconds", "peak_bytes"
        return CliqueFigures(**{name: median(one.figures[name] for one in runs) for name in names})


class Cliques(BaseModel):
    """All of them."""

    sweep: dict[int, dict[int, dict[int, CliqueFigures]]] = {}
    """By workers, batches in flight and batch."""
    bare: dict[int, CliqueFigures] = {}
    """Without flow control, by workers."""
    growth: dict[str, dict[int, CliqueFigures]] = {}
    """With flow control and without, by edges."""
    four: dict[str, CliqueFigures] = {}
    """4-cliques, with flow control and without."""
    reference: dict[str, dict[int, CliqueFigures]] = {}
    """By kind of graph and workers."""
    others: dict[str, dict[str, CliqueFigures]] = {}
    """By graph and name."""

    @property
    def swept(self) -> list[int]:
        """Return the numbers of workers of which all runs of the sweep are there."""
        return [
            workers for workers in self.bare
            if len(numbers := self.sweep.get(workers, {})) == SWEPT_NUMBERS
            and min(map(len, numbers.values())) >= SWEPT_BATCHES
        ]  # fmt: skip

    def good(self, workers: int) -> list[float]:
        """Return the seconds of the runs that the paper calls close to optimal."""
        return [
            found.seconds
            for in_flight, batches in self.sweep[workers].items() if in_flight >= OVERLAPPING
            for batch, found in batches.items() if batch >= ENOUGH
        ]  # fmt: skip

    def figures(self) -> Iterator[tuple[str, float]]:
        """Yield the figures by id."""
        good = {workers: self.good(workers) for workers in self.swept}
        if good:
            over = [one / self.bare[n].seconds - 1 for n, some in good.items() for one in some]
            yield from (("overhead_min", min(over)), ("overhead_avg", mean(over)))
            yield "overhead_max", max(over)
            yield "runtime_spread", max(max(one) / min(one) for one in good.values())
        for one in good:
            first, second = (self.sweep[one][n][ENOUGH].seconds for n in (1, 2))
            yield f"n1_to_n2_speedup_{one}_workers", first / second
        if len(self.growth) == 2:
            control, none = self.growth["control"], self.growth["none"]
            least, most = min(control), max(control)
            yield "memory_cut", none[most].peak_bytes / control[most].peak_bytes
            yield "memory_growth_10x_input", control[most].peak_bytes / control[least].peak_bytes
            others = self.others.get(f"{most} power-law", {})
            if (spark := others.get("spark")) is not None:
                yield "triangles_1m_over_spark", control[most].seconds / spark.seconds
                yield "memory_1m_over_spark", control[most].peak_bytes / spark.peak_bytes
        if len(self.four) == 2:
            cut = self.four["none"].peak_bytes / self.four["control"].peak_bytes
            yield "four_cliques_memory_cut", cut
        for kind, found in self.reference.items():
            yield (
                f"triangles_200k_{kind.replace('-', '_')}_s",
                min(one.seconds for one in found.values()),
            )
