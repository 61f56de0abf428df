"""What a pending timer takes: memory, and the time to set and to fire it, near and far.

`python -m benchmarks.timers` takes some ten minutes, and prints JSON. It sets timers of as many
keys for times at random, and fires all of them; those of the case `off` are each put off once
before, by their name. `near` are the same with no bound on what is in memory, as a flow with few
timers has it. Changes are taken every `INTERVAL` timers, as checkpoints do. Each case runs in a
process of its own, and the two take turns; memory is what the process has gained when all are set.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from meander.dataflow.operators.keyed.timers import Timers
from meander.state.encoding.codec import encode
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin
from meander.state.store.store import Database, Store
from meander.state.store.timer_rows import TimerRows

TIMERS = 1_000_000
TURNS = 3
MEMORY = 64 << 20
"""The budget of the database, of which half is for states."""
SPACE = BinSpace()
SLICE, INTERVAL = 3072, 50_000
CASES = {"plain": "", "named": "idle", "off": "idle"}
BOUNDS = {"far": None, "near": 1 << 40}


def measure(case: str, bound: str, count: int) -> dict[str, float]:
    """Megabytes gained, and microseconds per timer to set and to fire it."""
    name, keys = CASES[case], [encode(f"key {n}") for n in range(count)]
    chance = random.Random(1)
    entries = [
        (Bin(bin), chance.randrange(1 << 40), key)
        for bin, key in zip(SPACE.bins_of(SPACE.hash_keys(keys)).tolist(), keys, strict=True)
    ]
    del keys
    with TemporaryDirectory() as folder:
        database = Database(folder, MEMORY)
        store = database.store("op")
        timers = Timers(TimerRows(store))
        if (most := BOUNDS[bound]) is not None:
            timers.set_max_bytes(most)
        gc.collect()
        before, begun = _resident(), time.perf_counter()
        for number, (bin, at, key) in enumerate(entries * (1 + (case == "off"))):
            timers.set(bin, at + number // count, key, name)
            if number % INTERVAL == 0:
                _take_changes(store)
        timers.settle()
        took = time.perf_counter() - begun
        gained = _resident() - before
        near, begun = timers.size, time.perf_counter()
        for number, _ in enumerate(_fire(timers), start=1):
            if number % INTERVAL == 0:
                _take_changes(store)
        assert number == count
        seconds = time.perf_counter() - begun
        database.close()
    each = 1e6 / count
    return {
        "mb": gained / 1e6, "near_mb": near / 1e6, "set_us": took * each, "fire_us": seconds * each,
    }  # fmt: skip


def _fire(timers: Timers) -> Iterator[bytes]:
    """Take the timers as an operator does: a slice ahead, then one by one."""
    while ahead := timers.peek(None, SLICE):
        for _ in ahead:
            _, tag = timers.pop()
            yield tag


def _take_changes(store: Store) -> None:
    for bin in store.changed_bins():
        store.drop_changes(bin)


def _resident() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def main(count: int = TIMERS, turns: int = TURNS) -> dict[str, dict[str, float]]:
    """The medians of each case, and how many times as long far timers take."""
    seen: dict[str, list[dict[str, float]]] = {}
    for _ in range(turns):
        for case in CASES:
            for bound in BOUNDS:
                command = [sys.executable, "-m", "benchmarks.timers", case, bound, str(count)]
                found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                seen.setdefault(f"{case}_{bound}", []).append(json.loads(found))
    medians = {
        case: {name: median(run[name] for run in runs) for name in runs[0]}
        for case, runs in seen.items()
    }
    for case in CASES:
        ratios = [
            (far["set_us"] + far["fire_us"]) / (near["set_us"] + near["fire_us"])
            for far, near in zip(seen[f"{case}_far"], seen[f"{case}_near"], strict=True)
        ]
        medians[f"{case}_far"]["ratio"] = median(ratios)
    return medians


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    else:
        print(json.dumps(main(*map(int, sys.argv[1:])), indent=1))
