"""Whether windows and joins keep memory for records whose time is over: late ones, too.

A flow runs for some minutes under a steady load that comes in disorder, with records behind what
`late` allows. Its memory after the whole time is compared with that after a tenth of it, when all
state of a key is over many times. Memory is what the workers' processes have, and their states on
disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import load, running
from benchmarks.open_loop import loading
from benchmarks.running import PARTITIONS
from benchmarks.windows.late_flow import LATE
from meander.app.measurement.open_loop import LoadRecord, Wave

MODULE = Path(__file__).with_name("late_flow.py")
RATE = 2000
"""Records per second."""
SECONDS, SMALL = 600.0, 60.0
"""The time of a measurement, and that of a small one."""
KEYS = 10_000
BEHIND = 0.9 * LATE
"""The most seconds by which most records are out of order."""
LATE_SHARE, LATE_SECONDS = 0.02, 30.0
"""The share of records that are late, and the most seconds by which they are."""
AT_MOST = {"late_memory_growth": 1.05}
"""What is asked for."""
BLOCK = 4096


def measure(bootstrap: str, rate: int = RATE, seconds: float = SECONDS) -> dict[str, float]:
    """Return the bytes after a tenth of the time and after all of it, and their ratio."""
    with (
        load.topic(bootstrap, "late", PARTITIONS) as source,
        running.flow(bootstrap, source, {}, module=MODULE) as flow,
        loading(bootstrap, source, None, Wave.fixed(rate), KEYS, made=disordered),
    ):
        time.sleep(seconds / 10)
        before = sum(map(held_bytes, flow.workers))
        time.sleep(seconds * 0.9)
        after, results = sum(map(held_bytes, flow.workers)), flow.results()
    assert results > rate * seconds / 10, f"{results:,} results are too few"
    return {
        "bytes_early": before, "bytes_late": after, "late_memory_growth": after / before,
        "results": results,
    }  # fmt: skip


def held_bytes(pid: int) -> int:
    """Return the bytes of a worker in memory, and of its states on disk."""
    return running.memory(pid) + sum(map(_size, state_files(pid)))


def state_files(pid: int) -> Iterator[Path]:
    """Yield the files of the folders in which a process has databases open."""
    opened = {_target(one) for one in Path(f"/proc/{pid}/fd").iterdir()}
    for lock in sorted(one for one in opened if one.name == "LOCK"):
        yield from (one for one in lock.parent.rglob("*") if one.is_file())


def disordered(
    dues: Iterator[float], partitions: int, keys: int, skewed: bool
) -> Iterator[LoadRecord]:
    """Yield records whose own times are up to some milliseconds behind those when they are due; a
    few are late."""
    rng, names = np.random.default_rng(7), load.keys(2, keys, skewed=skewed)
    for number, (due, delay) in enumerate(zip(dues, _delays(rng), strict=False)):
        own, key = int((due - delay) * 1000), next(names)
        yield LoadRecord(key, b"%b %d %d" % (key, own, due * 1e6), number % partitions, [])


def _delays(rng: np.random.Generator) -> Iterator[float]:
    while True:
        delays = rng.uniform(0, BEHIND, BLOCK)
        late = rng.random(BLOCK) < LATE_SHARE
        yield from np.where(late, LATE + rng.uniform(1, LATE_SECONDS, BLOCK), delays).tolist()


def _target(link: Path) -> Path:
    try:
        return link.readlink()
    except FileNotFoundError:
        # It has been closed meanwhile.
        return Path()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        # A compaction has removed it.
        return 0
