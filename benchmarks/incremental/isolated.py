"""A run in a process of its own, so that no run has the memory or the garbage of another."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing.sharedctypes import Synchronized

from benchmarks.incremental.found import Found, Tick

LOOK = 0.5
"""Seconds between two looks at how far a run is."""
_SPAWN = multiprocessing.get_context("spawn")


def run(measure: Callable[[Tick], Found], tick: Tick) -> Found:
    """Return what a function finds in a new process."""
    done: Synchronized[int] = _SPAWN.Value("q", 0)
    with ProcessPoolExecutor(1, _SPAWN, _enter, (done,)) as pool:
        work, seen = pool.submit(_run, measure), 0
        while wait([work], LOOK).not_done:
            now = done.value
            tick(now - seen)
            seen = now
        tick(done.value - seen)
        return work.result()


_done: Synchronized[int]


def _enter(done: Synchronized[int]) -> None:
    global _done
    _done = done


def _run(measure: Callable[[Tick], Found]) -> Found:
    def tick(changes: int) -> None:
        _done.value += changes

    return measure(tick)
