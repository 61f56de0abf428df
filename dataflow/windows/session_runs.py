"""Runs of records that each extend the one session of their key, found for many keys at once.

Guarantees the sessions of `Sessions.join`, taken record by record. A key whose records do anything
else is no run: one that starts another session, merges two, is late, or makes a session too long.
Cost: a sort of the records by key, and some twenty calls of numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meander.dataflow.records.batch import Int64s
from meander.dataflow.windows.window import Sessions
from meander.schemas.control import MAX_MILLIS

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Runs:
    """The sessions of some keys behind their records, shapes (keys,)."""

    found: Mask
    """Whether the records of each key are a run. The rest is of those alone."""
    starts: Int64s
    ends: Int64s
    last: Int64s
    """The logical times of their last records, in milliseconds."""


def runs_of(
    windows: Sessions, numbers: Int64s, own: Int64s, now: Int64s, has: Mask, starts: Int64s,
    ends: Int64s,
) -> Runs:  # fmt: skip
    """Return the runs of records with the numbers of their keys, their own and their logical times
    in milliseconds, shapes (n,). Each key has one session or none before, shapes (keys,).

    >>> numbers, at = np.array([0, 1, 0, 1]), np.array([10, 10, 15, 90])
    >>> none = np.zeros(2, np.int64)
    >>> runs = runs_of(Sessions(30), numbers, at, at, none > 0, none, none)
    >>> runs.found.tolist(), int(runs.starts[0]), int(runs.ends[0])
    ([True, False], 10, 45)
    """
    order = np.argsort(numbers, kind="stable")
    key, at, now = numbers[order], own[order], now[order]
    is_first = np.concatenate([[True], key[1:] != key[:-1]])
    is_last = np.concatenate([is_first[1:], [True]])
    alone = at + windows.gap_ms
    # The keys are ascending, so one running maximum does for all where they lie far apart.
    least, most = int(at.min()), int(alone.max())
    apart = key * (most - least + 1)
    end = np.maximum.accumulate(apart + (alone - least)) - apart + least
    start = most - (np.maximum.accumulate(apart + (most - at)) - apart)
    had = has[key]
    end = np.where(had, np.maximum(end, ends[key]), end)
    start = np.where(had, np.minimum(start, starts[key]), start)
    end_before = np.where(is_first, ends[key], np.concatenate([[0], end[:-1]]))
    start_before = np.where(is_first, starts[key], np.concatenate([[0], start[:-1]]))
    joins = (at < end_before) & (start_before < alone) & (end_before + windows.late_ms > now)
    joins &= end - start <= windows.longest_ms
    joins = np.where(is_first & ~had, alone + windows.late_ms > now, joins)
    joins &= end + windows.late_ms <= MAX_MILLIS
    found = np.bincount(key[~joins], minlength=len(has)) == 0
    return Runs(found, start[is_last], end[is_last], now[is_last])
