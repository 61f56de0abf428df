"""Compiled loops of join and reduce over rows of traces.

Rows have the columns query (the place of a key among those asked for), value, time and diff. Times
have the shape (rows, depth), in the product order. Cost: a join costs its output; a reduction
costs, per time of a key, the rows of that key.
"""

from __future__ import annotations

import numpy as np

from meander.state.collections.columns import Bools, Int64s, compiled, inlined


@compiled
def count_pairs(a_offsets: Int64s, b_query: Int64s) -> int:
    """Return the number of pairs of rows with equal queries; `a_offsets` (queries + 1,)."""
    total = 0
    for row in range(len(b_query)):
        total += a_offsets[b_query[row] + 1] - a_offsets[b_query[row]]
    return total


@compiled
def pair(
    a_order: Int64s, a_offsets: Int64s, a_values: Int64s, a_times: Int64s, a_diffs: Int64s,
    b_query: Int64s, b_values: Int64s, b_times: Int64s, b_diffs: Int64s, start: int, skip: int,
    o_query: Int64s, o_left: Int64s, o_right: Int64s, o_times: Int64s, o_diffs: Int64s,
) -> tuple[int, int, int]:  # fmt: skip
    """Write pairs of rows with equal queries: the join of the times, the product of the diffs.

    Begin at row `start` of b, behind its first `skip` pairs, and end when the output is full.
    Return the next row, the pairs to skip there, and the pairs written.
    """
    at, room, depth = 0, len(o_query), a_times.shape[1]
    for row in range(start, len(b_query)):
        q = b_query[row]
        for place in range(a_offsets[q] + skip, a_offsets[q + 1]):
            if at == room:
                return row, place - a_offsets[q], at
            other = a_order[place]
            o_query[at] = q
            o_left[at], o_right[at] = a_values[other], b_values[row]
            o_diffs[at] = a_diffs[other] * b_diffs[row]
            for d in range(depth):
                o_times[at, d] = max(a_times[other, d], b_times[row, d])
            at += 1
        skip = 0
    return len(b_query), 0, at


@inlined
def _before(time: Int64s, other: Int64s) -> bool:
    """Whether `time` <= `other`."""
    for d in range(len(time)):  # noqa: SIM110
        if time[d] > other[d]:
            return False
    return True


@inlined
def _earlier(times: Int64s, i: int, j: int) -> bool:
    """Whether row i precedes row j in lexicographic order."""
    for d in range(times.shape[1]):
        if times[i, d] != times[j, d]:
            return bool(times[i, d] < times[j, d])
    return False


@compiled
def _distinct(times: Int64s, count: int) -> int:
    """Sort times in place and drop repeated ones; return their number."""
    if count > 24:
        for d in range(times.shape[1] - 1, -1, -1):
            times[:count] = times[:count][np.argsort(times[:count, d], kind="mergesort")]
    for i in range(1, count):
        j = i
        while j > 0 and _earlier(times, j, j - 1):
            for d in range(times.shape[1]):
                times[j, d], times[j - 1, d] = times[j - 1, d], times[j, d]
            j -= 1
    left = min(count, 1)
    for i in range(1, count):
        if _earlier(times, left - 1, i):
            times[left] = times[i]
            left += 1
    return left


@compiled
def _closed(fresh: Int64s, history: Int64s) -> Int64s:
    """Return the times at which a key may change: joins of fresh times with any times of the key.

    Each pass adds the joins with one further time; a join has as many parts as coordinates.
    """
    depth = fresh.shape[1]
    found = fresh.copy()
    found = found[: _distinct(found, len(found))]
    if depth == 1:
        return found
    every = np.concatenate((history, fresh))
    every = every[: _distinct(every, len(every))]
    for _ in range(depth):
        joins = np.empty((len(found) * len(every), depth), np.int64)
        at = 0
        for i in range(len(found)):
            for j in range(len(every)):
                for d in range(depth):
                    joins[at, d] = max(found[i, d], every[j, d])
                at += 1
        joins = joins[: _distinct(joins, at)]
        if len(joins) == len(found):
            break
        found = joins
    return found


@compiled
def interesting(
    f_order: Int64s, f_offsets: Int64s, f_times: Int64s,
    h_order: Int64s, h_offsets: Int64s, h_times: Int64s, upper: Int64s,
) -> tuple[Int64s, Int64s, Bools]:  # fmt: skip
    """Return the times at which each key may change, as (query, time) in total order per key, and
    whether each lies before the frontier `upper`."""
    depth = f_times.shape[1]
    query, times = np.empty(64, np.int64), np.empty((64, depth), np.int64)
    ready = np.empty(64, np.bool_)
    at = 0
    for q in range(len(f_offsets) - 1):
        fresh = f_times[f_order[f_offsets[q] : f_offsets[q + 1]]]
        history = h_times[h_order[h_offsets[q] : h_offsets[q + 1]]]
        found = _closed(fresh, history)
        while at + len(found) > len(query):
            query = np.concatenate((query, query))
            times = np.concatenate((times, times))
            ready = np.concatenate((ready, ready))
        for i in range(len(found)):
            query[at] = q
            times[at] = found[i]
            ready[at] = True
            for f in range(len(upper)):
                if _before(upper[f], found[i]):
                    ready[at] = False
            at += 1
    return query[:at], times[:at], ready[:at]


@compiled
def accumulate(
    query: Int64s, times: Int64s,
    order: Int64s, offsets: Int64s, values: Int64s, row_times: Int64s, diffs: Int64s,
) -> tuple[Int64s, Int64s, Int64s]:  # fmt: skip
    """Return per (query, time) the values with a count that is not zero, ascending: offsets,
    values, counts. Rows are ordered by (query, value)."""
    room = 0
    for n in range(len(query)):
        room += offsets[query[n] + 1] - offsets[query[n]]
    starts = np.empty(len(query) + 1, np.int64)
    found, counts = np.empty(room, np.int64), np.empty(room, np.int64)
    at = 0
    for n in range(len(query)):
        starts[n] = at
        row, end = offsets[query[n]], offsets[query[n] + 1]
        while row < end:
            value, count = values[order[row]], 0
            while row < end and values[order[row]] == value:
                if _before(row_times[order[row]], times[n]):
                    count += diffs[order[row]]
                row += 1
            if count != 0:
                found[at], counts[at] = value, count
                at += 1
    starts[len(query)] = at
    return starts, found[:at], counts[:at]


@compiled
def corrections(  # noqa: C901
    query: Int64s, times: Int64s, starts: Int64s, wanted: Int64s, counts: Int64s,
    order: Int64s, offsets: Int64s, values: Int64s, row_times: Int64s, diffs: Int64s,
) -> tuple[Int64s, Int64s, Int64s, Int64s]:  # fmt: skip
    """Return the updates that turn the output into the wanted values at each (query, time).

    `starts`, `wanted`, `counts` give the values of each (query, time), ascending; the other rows
    are the output so far, ordered by (query, value). Return query, value, time and diff.
    """
    o_query, o_values, o_diffs = (
        np.empty(64, np.int64),
        np.empty(64, np.int64),
        np.empty(64, np.int64),
    )
    o_times = np.empty((64, times.shape[1]), np.int64)
    at, first = 0, 0
    while first < len(query):
        q, last = query[first], first
        while last < len(query) and query[last] == q:
            last += 1
        places = starts[first:last].copy()
        row, end = offsets[q], offsets[q + 1]
        while True:
            # The least value that any time wants, or that the output has.
            value, some = np.int64(0), False
            for n in range(first, last):
                if places[n - first] < starts[n + 1]:
                    v = wanted[places[n - first]]
                    if not some or v < value:
                        value, some = v, True
            if row < end and (not some or values[order[row]] < value):
                value, some = values[order[row]], True
            if not some:
                break
            stop = row
            while stop < end and values[order[stop]] == value:
                stop += 1
            own = at
            for n in range(first, last):
                diff = np.int64(0)
                if places[n - first] < starts[n + 1] and wanted[places[n - first]] == value:
                    diff = counts[places[n - first]]
                    places[n - first] += 1
                for r in range(row, stop):
                    if _before(row_times[order[r]], times[n]):
                        diff -= diffs[order[r]]
                for r in range(own, at):
                    if _before(o_times[r], times[n]):
                        diff -= o_diffs[r]
                if diff == 0:
                    continue
                if at == len(o_query):
                    o_query = np.concatenate((o_query, o_query))
                    o_values = np.concatenate((o_values, o_values))
                    o_times = np.concatenate((o_times, o_times))
                    o_diffs = np.concatenate((o_diffs, o_diffs))
                o_query[at], o_values[at], o_diffs[at] = q, value, diff
                o_times[at] = times[n]
                at += 1
            row = stop
        first = last
    return o_query[:at], o_values[:at], o_times[:at], o_diffs[:at]
