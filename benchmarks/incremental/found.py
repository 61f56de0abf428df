"""What one run has found: figures by name, and distributions of times."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from meander.app.worker.process import GARBAGE

SELF = Path("/proc/self")
Float64s = npt.NDArray[np.float64]
Tick = Callable[[int], None]
"""Notes that so many changes more are done."""


def no_tick(_: int) -> None:
    """Note nothing, as what is done is a warm-up."""


GREATEST = 100
"""How many of the longest times a distribution keeps one by one."""
POINTS = 200


class Distribution(BaseModel):
    """A complementary distribution of times: `share[n]` of all take `ms[n]` or longer."""

    count: int
    ms: list[float]
    share: list[float]

    @staticmethod
    def of(seconds: Sequence[float] | Float64s) -> Distribution:
        """Return the distribution of some times, exact for the longest.

        >>> Distribution.of([0.003, 0.001, 0.002, 0.004]).at(0.5)
        2.0
        """
        ms = 1000 * np.sort(np.asarray(seconds, np.float64))[::-1]
        ranks = np.geomspace(1, len(ms), POINTS).round().astype(int)
        ranks = np.unique([*range(1, min(GREATEST, len(ms)) + 1), *ranks])
        return Distribution(
            count=len(ms), ms=[float(f"{one:.4g}") for one in ms[ranks - 1]],
            share=[float(f"{one:.6g}") for one in ranks / len(ms)],
        )  # fmt: skip

    def at(self, share: float) -> float:
        """Return the time that a share of all does not exceed."""
        later = np.asarray(self.share) > 1 - share + 1e-9
        return self.ms[int(np.argmax(later))]

    @property
    def most(self) -> float:
        """Return the longest time."""
        return self.ms[0]


class Found(BaseModel):
    """What one run has measured."""

    figures: dict[str, float] = {}
    curves: dict[str, Distribution] = {}

    def note(self, prefix: str, seconds: Sequence[float] | Float64s) -> Distribution:
        """Note the distribution of some times, with its percentiles."""
        curve = self.curves[prefix] = Distribution.of(seconds)
        self.figures |= {
            f"{prefix}_p50_ms": curve.at(0.5), f"{prefix}_p99_ms": curve.at(0.99),
            f"{prefix}_max_ms": curve.most,
        }  # fmt: skip
        return curve


def as_worker() -> None:
    """Collect garbage as seldom as a worker's process does."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)


def rss(process: Path = SELF) -> int:
    """Return the bytes of a process in memory, by default this one."""
    pages = int((process / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Stopwatch:
    """A sum of the seconds in the calls of a function."""

    seconds = 0.0


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Replace a function of a module or class, while the block runs."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def timed(
    owner: object, name: str, clock: Callable[[], float] = perf_counter
) -> Iterator[Stopwatch]:
    """Time all calls of a function of a module, while the block runs."""
    watch, function = Stopwatch(), getattr(owner, name)

    def call(*arguments: Any) -> Any:  # noqa: ANN401 - of any function
        started = clock()
        result = function(*arguments)
        watch.seconds += clock() - started
        return result

    with replaced(owner, name, call):
        yield watch
