"""The panes of hopping windows: spans of time between two borders of windows.

Guarantees that a window is a whole number of panes, and a record in one of them (paired windows:
Krishnamurthy et al., On-the-fly sharing for streamed aggregation). Each start and each end of a
window is a border, so the windows of an interval have two panes, or one where the size is a
multiple of the interval.
"""

from __future__ import annotations

import numpy as np

from meander.dataflow.records.batch import Int64s
from meander.dataflow.windows.window import Hopping


def pane_starts(windows: Hopping, own: Int64s) -> Int64s:
    """Return the starts of the panes of records.

    >>> pane_starts(Hopping(25, 10), np.array([0, 4, 5, 19, 20])).tolist()
    [0, 0, 5, 15, 20]
    """
    behind = (own - windows.offset_ms) % windows.every_ms
    border = windows.size_ms % windows.every_ms
    return own - behind + np.where(behind >= border, border, 0)


def pane_end(windows: Hopping, start: int) -> int:
    """Return the end of a pane.

    >>> [pane_end(Hopping(25, 10), start) for start in (0, 5)], pane_end(Hopping(20, 10), 0)
    ([5, 10], 10)
    """
    behind = (start - windows.offset_ms) % windows.every_ms
    border = windows.size_ms % windows.every_ms
    return start - behind + (border if behind < border else windows.every_ms)


def first_closes(windows: Hopping, own: Int64s) -> Int64s:
    """Return when the first windows of records close.

    >>> first_closes(Hopping(25, 10), np.array([0, 4, 5, 19, 20])).tolist()
    [5, 5, 15, 25, 25]
    """
    behind = (own - windows.offset_ms - windows.size_ms) % windows.every_ms
    return own - behind + windows.every_ms + windows.late_ms


def last_closes(windows: Hopping, own: Int64s) -> Int64s:
    """Return when the last windows of records close.

    >>> last_closes(Hopping(25, 10), np.array([0, 4, 5, 19, 20])).tolist()
    [25, 25, 25, 35, 45]
    """
    start = own - (own - windows.offset_ms) % windows.every_ms
    return start + windows.size_ms + windows.late_ms


def closes_until(windows: Hopping, own: Int64s, now: Int64s) -> Int64s:
    """Return how many windows of records are closed at logical times in milliseconds, later ones
    of other records included.

    >>> closes_until(Hopping(25, 10), np.array([4, 4, 4, 4]), np.array([4, 5, 14, 15])).tolist()
    [0, 1, 1, 2]
    """
    behind = now - first_closes(windows, own)
    return np.where(behind >= 0, behind // windows.every_ms + 1, 0)
