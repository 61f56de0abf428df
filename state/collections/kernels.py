"""Compiled loops over columns: hash, sort and group rows, seek keys, gather rows.

The rows of a part of a chunk are CSR: sorted key hashes, offsets into rows, values ascending per
key. Times have the shape (rows, depth). Cost: about 10 ns per row.
"""

from __future__ import annotations

import numpy as np

from meander.state.collections.columns import (
    Bools,
    Int32s,
    Int64s,
    UInt64s,
    Values,
    compiled,
    inlined,
)

SHORT = 16
"""The most rows that are sorted by insertion."""


@inlined
def _mixed(x: np.uint64) -> np.uint64:
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


@compiled
def hashes_of(keys: Int64s) -> UInt64s:
    """Return the hash of each key: a bijection of 64-bit integers (splitmix64's last step)."""
    out = np.empty(len(keys), np.uint64)
    for i in range(len(keys)):
        out[i] = _mixed(np.uint64(keys[i]))
    return out


@compiled
def keys_of(hashes: UInt64s) -> Int64s:
    """Return the key of each hash, the inverse of `hashes_of`."""
    out = np.empty(len(hashes), np.int64)
    for i in range(len(hashes)):
        x = hashes[i]
        x ^= (x >> np.uint64(31)) ^ (x >> np.uint64(62))
        x *= np.uint64(0x319642B2D24D8EC3)
        x ^= (x >> np.uint64(27)) ^ (x >> np.uint64(54))
        x *= np.uint64(0x96DE1B173F119089)
        x ^= (x >> np.uint64(30)) ^ (x >> np.uint64(60))
        out[i] = np.int64(x)
    return out


@inlined
def _precedes(values: Int64s, row: int, other: int) -> bool:
    """Whether a row comes before another one, by value and then by place."""
    return bool(values[row] < values[other] or (values[row] == values[other] and row < other))


@compiled
def _insert_all(values: Int64s, order: Int64s, start: int, end: int) -> None:
    """Sort rows by value in place, by insertion."""
    for i in range(start + 1, end):
        row, j = order[i], i
        while j > start and _precedes(values, row, order[j - 1]):
            order[j] = order[j - 1]
            j -= 1
        order[j] = row


@compiled
def _merge_all(values: Int64s, order: Int64s, start: int, end: int) -> None:
    """Sort many rows by value in place, by merges of runs that double."""
    for first in range(start, end, SHORT):
        _insert_all(values, order, first, min(first + SHORT, end))
    spare, width = np.empty(end - start, np.int64), SHORT
    while width < end - start:
        for first in range(start, end - width, 2 * width):
            middle, last = first + width, min(first + 2 * width, end)
            for i in range(first, middle):
                spare[i - first] = order[i]
            left, right, to = 0, middle, first
            while left < width:
                if right < last and _precedes(values, order[right], spare[left]):
                    order[to] = order[right]
                    right += 1
                else:
                    order[to] = spare[left]
                    left += 1
                to += 1
        width *= 2


@compiled
def sort_values(hashes: UInt64s | Int64s, values: Int64s, order: Int64s) -> None:
    """Sort the rows of equal hashes by value, in place, where `order` sorts by hash."""
    start, n = 0, len(order)
    while start < n:
        end = start + 1
        while end < n and hashes[order[end]] == hashes[order[start]]:
            end += 1
        if end - start > SHORT:
            # Own loops, as numba compiles them ten times as fast as numpy's sort.
            _merge_all(values, order, start, end)
        else:
            _insert_all(values, order, start, end)
        start = end


@compiled
def grouped(hashes: UInt64s, order: Int64s) -> tuple[UInt64s, Int32s]:
    """Return the distinct hashes of sorted rows, and the offset of each in them."""
    keys, offsets = np.empty(len(order), np.uint64), np.empty(len(order) + 1, np.int32)
    count = 0
    for row in range(len(order)):
        if count == 0 or keys[count - 1] != hashes[order[row]]:
            keys[count] = hashes[order[row]]
            offsets[count] = row
            count += 1
    offsets[count] = len(order)
    return keys[:count].copy(), offsets[: count + 1].copy()


@compiled
def by_query(query: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """Return the order of rows by query, and the offset of each of `count` queries."""
    offsets = np.zeros(count + 1, np.int64)
    for row in range(len(query)):
        offsets[query[row] + 1] += 1
    for q in range(count):
        offsets[q + 1] += offsets[q]
    order, place = np.empty(len(query), np.int64), offsets.copy()
    for row in range(len(query)):
        order[place[query[row]]] = row
        place[query[row]] += 1
    return order, offsets


def sorted_rows(hashes: UInt64s, values: Int64s) -> Int64s:
    """Return the order of rows by (hash, value).

    >>> sorted_rows(np.array([7, 3, 7], np.uint64), np.array([2, 9, 1])).tolist()
    [1, 2, 0]
    """
    order = np.argsort(hashes)
    sort_values(hashes, values, order)
    return order


@compiled
def by_value(query: Int64s, values: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """Return the order of rows by (query, value), and the offset of each of `count` queries."""
    order, offsets = by_query(query, count)
    sort_values(query, values, order)
    return order, offsets


@inlined
def _seek(keys: UInt64s, start: int, key: np.uint64) -> int:
    """The first place from `start` on whose key is not before `key`, by galloping."""
    n = len(keys)
    if start >= n or keys[start] >= key:
        return start
    step, low = 1, start
    while low + step < n and keys[low + step] < key:
        low += step
        step <<= 1
    high = min(low + step, n)
    low += 1
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _estimate(keys: UInt64s, key: np.uint64) -> int:
    """A place at or before the one of `key`: hashes lie evenly between the first and the last."""
    n = len(keys)
    first, last = keys[0], keys[n - 1]
    if key <= first:
        return 0
    if key > last:
        return n
    place = int((float(key - first) / (float(last - first) + 1.0)) * n)
    place = min(max(place, 0), n - 1)
    step = 4
    while place > 0 and keys[place] >= key:
        place -= step
        step <<= 1
    return max(place, 0)


@compiled
def locate(
    keys: UInt64s,
    offsets: Int32s,
    queries: UInt64s,
    by_estimate: bool,
    starts: Int64s,
    ends: Int64s,
) -> int:
    """Write the row range of each sorted query to `starts` and `ends`. Return the rows of all."""
    place, rows = 0, 0
    # An estimate is some sixty places off, so galloping is faster where queries lie closer.
    by_estimate = by_estimate and len(keys) > 64 * len(queries)
    for q in range(len(queries)):
        key = queries[q]
        if by_estimate:
            place = max(place, _estimate(keys, key))
        place = _seek(keys, place, key)
        if place < len(keys) and keys[place] == key:
            starts[q], ends[q] = offsets[place], offsets[place + 1]
        else:
            starts[q], ends[q] = 0, 0
        rows += ends[q] - starts[q]
    return rows


@compiled
def at_or_after(times: Int64s, bounds: Int64s) -> Bools:
    """Return which times, shape (n, depth), are at or after one of some bounds."""
    found = np.zeros(len(times), np.bool_)
    for row in range(len(times)):
        for b in range(len(bounds)):
            later = True
            for d in range(times.shape[1]):
                later &= times[row, d] >= bounds[b, d]
            found[row] |= later
    return found


@compiled
def gather_static(
    values: Values, starts: Int64s, ends: Int64s, floor: Int64s, first: int,
    o_query: Int64s, o_values: Int64s, o_times: Int64s, o_diffs: Int64s, at: int,
) -> int:  # fmt: skip
    """Copy static rows of queries to columns from row `at` on. `first` numbers the first query."""
    for q in range(len(starts)):
        for row in range(starts[q], ends[q]):
            o_query[at] = first + q
            o_values[at] = values[row]
            o_diffs[at] = 1
            for d in range(len(floor)):
                o_times[at, d] = floor[d]
            at += 1
    return at


@compiled
def gather_dynamic(
    values: Values, times: Int64s, diffs: Int64s, starts: Int64s, ends: Int64s, first: int,
    o_query: Int64s, o_values: Int64s, o_times: Int64s, o_diffs: Int64s, at: int,
) -> int:  # fmt: skip
    """Copy dynamic rows of queries to columns from row `at` on. `first` numbers the first query."""
    for q in range(len(starts)):
        for row in range(starts[q], ends[q]):
            o_query[at] = first + q
            o_values[at] = values[row]
            o_diffs[at] = diffs[row]
            for d in range(times.shape[1]):
                o_times[at, d] = times[row, d]
            at += 1
    return at
