"""The counters of workers, added up, and in words: sums, and the greatest value of a delay.

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


def in_words(counters: Mapping[str, int]) -> str:
    """Return counters as a sentence shows them: records read and written first, and no zeros.

    >>> in_words({"dead_letters": 2, "late_most_ms": 0, "read": 3000, "written": 5})
    '3,000 read, 5 written, 2 dead_letters'
    >>> in_words({"late_adjusted": 0})
    '0 read'
    """
    first = [name for name in ("read", "written") if counters.get(name)]
    others = sorted(name for name, count in counters.items() if count and name not in first)
    shown = (f"{counters[name]:,} {name}" for name in [*first, *others])
    return ", ".join(shown) or "0 read"


def counted(count: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "dead letter"), counted(2000, "dead letter")
    ('1 dead letter', '2,000 dead letters')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"
