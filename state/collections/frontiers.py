"""Frontiers as columns: antichains beside many times at once."""

from __future__ import annotations

import numpy as np

from meander.state.collections import kernels
from meander.state.collections.columns import Bools, Int64s
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time


def columns_of(frontier: Antichain, depth: int) -> Int64s:
    """Return the times of an antichain as rows, shape (n, depth).

    >>> columns_of(Antichain.of((1, 5), (2, 3)), 2).tolist()
    [[1, 5], [2, 3]]
    """
    return np.array([_coordinates(time) for time in frontier], np.int64).reshape(-1, depth)


def _coordinates(time: Time) -> tuple[int, ...]:
    return (time,) if isinstance(time, int) else time


def not_before(times: Int64s, frontier: Antichain) -> Bools:
    """Return which times, shape (n, depth), are at or after a time of a frontier.

    >>> not_before(np.array([[5, 2], [4, 1]]), Antichain.of((4, 2))).tolist()
    [True, False]
    """
    owned = np.require(times, requirements=["C", "W"])
    return kernels.at_or_after(owned, columns_of(frontier, times.shape[1]))
