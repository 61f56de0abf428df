"""How long the random suites run, and from which seed; `make soak` sets both."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import count

SECONDS = float(os.environ.get("MEANDER_PROPERTY_SECONDS", "100"))
"""For all of them together."""
FIRST_SEED = int(os.environ.get("MEANDER_SEED", "0"))
ORACLE, LOOPS, CREDIT, FRAMES, FRONTIERS, REPLAYS = 0.6, 0.12, 0.08, 0.08, 0.07, 0.05
"""The share of each suite."""


def seeds(share: float, floor: int) -> Iterator[int]:
    """Seeds for as long as a share of the time lasts, but at least so many."""
    begun = time.monotonic()
    for n in count():
        if n >= floor and time.monotonic() - begun > share * SECONDS:
            return
        yield FIRST_SEED + n
