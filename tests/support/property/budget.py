"""How long the random suites run, and from which seed; `make soak` sets both.

It runs them in several processes at once, of which each takes its part of the seeds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import count

SECONDS = float(os.environ.get("MEANDER_PROPERTY_SECONDS", "35"))
"""For all of them together."""
LIMIT = 900 + SECONDS
"""Seconds that the longest of them may take: their runs take minutes where cores are busy."""
LONG = "MEANDER_PROPERTY_SECONDS" in os.environ
"""Whether somebody waits for more than a run of all tests has time for."""
RESCALING = float(os.environ.get("MEANDER_RESCALE_SECONDS", "0"))
"""How long real workers come and go; `make soak` does this by itself, when the others are over."""
REAL_SECONDS = float(os.environ.get("MEANDER_REAL_SECONDS", "40"))
"""How long anything happens at random to flows of real processes, all of them together."""
REAL_SEEDS = int(os.environ.get("MEANDER_REAL_SEEDS", "2"))
"""How many such flows there are, one after the other."""
FIRST_SEED = int(os.environ.get("MEANDER_SEED", "0"))
FIRST_REAL_SEED = int(os.environ.get("MEANDER_SEED", "2"))
"""Of them the first: these two differ in delivery, in order and in their master."""
PARTS = int(os.environ.get("MEANDER_PARTS", "1"))
"""How many processes run each suite."""
PART = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PARTS
GRAPHS, ORACLE, LOOPS, CREDIT, FRAMES, FLOWS = 0.18, 0.10, 0.05, 0.04, 0.08, 0.07
REPLAYS, MEMBERS, LINKS, CHECKPOINTS, ONCE = 0.06, 0.04, 0.02, 0.12, 0.12
STEP, OUTAGE, SPOIL, OUTBOX = 0.08, 0.05, 0.05, 0.06
RETRIES, PLANS = 0.02, 0.05
TRACES, COLLECTIONS, COLLECTION_FLOWS, PATTERNS = 0.05, 0.05, 0.03, 0.03
"""The share of each suite."""
SCHEDULES = "schedules of "
"""How the names of properties begin that say how many a suite has run."""


MORE = 20
"""The most runs beyond the least number until a suite has seen enough."""


def seeds(share: float, floor: int, enough: Callable[[], bool] = lambda: True) -> Iterator[int]:
    """Seeds for as long as a share of the time lasts, but at least so many, and up to `MORE` others
    until there is `enough`."""
    begun = time.monotonic()
    for n in count():
        over = n * PARTS >= floor and time.monotonic() - begun > share * SECONDS
        if over and (enough() or n >= floor + MORE):
            return
        yield FIRST_SEED + n * PARTS + PART
