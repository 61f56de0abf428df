"""The counters of workers, added up: sums, and the greatest value of a delay.

Invariant: a counter in `GREATEST` is the greatest value of all workers, every other one their sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

GREATEST: Final = frozenset({"late_most_ms"})
"""The counters of which the greatest value counts."""


def added(*counters: Mapping[str, int]) -> Counter[str]:
    """Return the counters of several workers as those of one.

    >>> added({"read": 3, "late_most_ms": 70}, {"read": 4, "late_most_ms": 20})
    Counter({'late_most_ms': 70, 'read': 7})
    """
    total = Counter[str]()
    for one in counters:
        for name, count in one.items():
            total[name] = max(total[name], count) if name in GREATEST else total[name] + count
    return total
