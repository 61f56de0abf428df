"""How much memory a process takes, and whether it takes more the longer it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

FLAT = 1.15
"""What the growth of a process that does not leak is within; that of one that in the end takes 30 %
more than at the beginning, little by little, is 1.22."""


def own(pid: int) -> int:
    """Bytes that a process has written and shares with no other: what a leak adds to, and what does
    not depend on how many others were forked from the same parent."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (kib,) = [line.split()[1] for line in lines if line.startswith("Private_Dirty:")]
    return int(kib) * 1024


def growth(measured: Sequence[float]) -> float:
    """The median of the last quarter of all measurements over that of the first."""
    quarter = max(1, len(measured) // 4)
    return median(measured[-quarter:]) / median(measured[:quarter])
