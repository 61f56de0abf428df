"""One run: records that arrive together, on one worker of the real engine, in a new process."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.flow_control.flows import Control, Inside, loop, results, surge
from benchmarks.incremental.engine import SingleEngine, engine_of
from benchmarks.incremental.found import SELF, Found, Tick, as_worker, rss
from benchmarks.incremental.members import Results
from meander.state.times.time import from_millis

BUILDS = {"surge": surge, "loop": loop}
WARM = [1] * 100


def measure(name: str, control: Control, numbers: list[int], tick: Tick) -> Found:
    """Return the seconds that the numbers take, the records inside at most, and the peak of
    memory above that of a warm worker."""
    inside, writer = Inside(), Results()
    with engine_of(BUILDS[name](control, inside), writer) as engine:
        _take(engine, WARM, 1)
        as_worker()
        inside.most, writer.rows, before = 0, 0, rss()
        forget_peak()
        seconds = _take(engine, numbers, 2)
        peak_bytes = peak() - before
    expected = results(name, numbers)
    assert writer.rows == expected, f"{writer.rows} results, and not {expected}"
    assert inside.now == 0, f"{inside.now} records have not left"
    tick(1)
    return Found(figures={"seconds": seconds, "inside": inside.most, "peak_bytes": peak_bytes})


def _take(engine: SingleEngine, numbers: list[int], number: int) -> float:
    times = from_millis(number) + np.arange(len(numbers))
    return engine.take(times, numbers, int(times[-1]))


def forget_peak(process: Path = SELF) -> None:
    """Forget the most memory that a process, by default this one, has had."""
    (process / "clear_refs").write_text("5")


def peak(process: Path = SELF) -> int:
    """Return the most bytes of a process in memory since `forget_peak`."""
    lines = (process / "status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) << 10
