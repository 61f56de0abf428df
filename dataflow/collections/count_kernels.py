"""Compiled loops of counts in total order.

A moment is a key and a time at which some of its values come or go. Moments lie by key, and by time
in a key: key n has the moments `offsets[n]` to `offsets[n + 1]`. Cost: one pass over the rows.
"""

from __future__ import annotations

import numpy as np

from meander.state.collections.columns import Int64s, UInt64s, compiled


@compiled
def moments(
    hashes: UInt64s, times: Int64s, diffs: Int64s, order: Int64s
) -> tuple[UInt64s, Int64s, Int64s, Int64s]:
    """Return the moments of rows that `order` sorts by (hash, time): the hash of each key, the
    offsets, and of each moment its first row and the sum of its diffs."""
    count = len(order)
    keys, offsets = np.empty(count, np.uint64), np.empty(count + 1, np.int64)
    rows, sums = np.empty(count, np.int64), np.empty(count, np.int64)
    key, moment = 0, 0
    for place in range(count):
        row = order[place]
        new_key = key == 0 or hashes[row] != keys[key - 1]
        if new_key:
            keys[key], offsets[key] = hashes[row], moment
            key += 1
        if new_key or times[row] != times[rows[moment - 1]]:
            rows[moment], sums[moment] = row, 0
            moment += 1
        sums[moment - 1] += diffs[row]
    offsets[key] = moment
    return keys[:key].copy(), offsets[: key + 1].copy(), rows[:moment].copy(), sums[:moment].copy()


@compiled
def add_up(query: Int64s, values: Int64s, diffs: Int64s, keys: int) -> Int64s:
    """Return the count of each of some keys: the sum of value times diff of its rows."""
    counts = np.zeros(keys, np.int64)
    for row in range(len(query)):
        counts[query[row]] += values[row] * diffs[row]
    return counts


@compiled
def recounted(
    offsets: Int64s, sums: Int64s, counts: Int64s
) -> tuple[Int64s, Int64s, Int64s, Int64s, int, int]:
    """Return the rows that turn the counts before all moments into those at each moment: key,
    moment, value and diff. Return too the first moment whose count is below 0, and this count."""
    most = 2 * (offsets[-1] - offsets[0])
    keys, places = np.empty(most, np.int64), np.empty(most, np.int64)
    values, diffs = np.empty(most, np.int64), np.empty(most, np.int64)
    at, wrong, below = 0, 0, 0
    for key in range(len(counts)):
        count = counts[key]
        for moment in range(offsets[key], offsets[key + 1]):
            before = count
            count += sums[moment]
            if count < 0 and below == 0:
                wrong, below = moment, count
            if count == before:
                continue
            if before != 0:
                keys[at], places[at], values[at], diffs[at] = key, moment, before, -1
                at += 1
            if count != 0:
                keys[at], places[at], values[at], diffs[at] = key, moment, count, 1
                at += 1
    found = keys[:at].copy(), places[:at].copy(), values[:at].copy(), diffs[:at].copy()
    return (*found, wrong, below)
