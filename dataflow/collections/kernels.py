"""Compiled loops of join and reduce over rows of traces.

Rows have the columns query (the place of a key among those asked for), value, time and diff. Times
have the shape (rows, depth), in the product order. Cost: a join costs its output; a reduction
costs, per time of a key, the rows of that key.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from meander.state.collections.kernels import consolidate_times, sort_values


@njit(cache=True, nogil=True)
def by_query(query, values, count):
    """Return the order of rows by (query, value), and the offset of each of `count` queries."""
    offsets = np.zeros(count + 1, np.int64)
    for row in range(len(query)):
        offsets[query[row] + 1] += 1
    for q in range(count):
        offsets[q + 1] += offsets[q]
    order, place = np.empty(len(query), np.int64), offsets.copy()
    for row in range(len(query)):
        order[place[query[row]]] = row
        place[query[row]] += 1
    sort_values(query, values, order)
    return order, offsets


@njit(cache=True, nogil=True)
def count_pairs(a_offsets, b_query):
    """Return the number of pairs of rows with equal queries; `a_offsets` (queries + 1,)."""
    total = 0
    for row in range(len(b_query)):
        total += a_offsets[b_query[row] + 1] - a_offsets[b_query[row]]
    return total


@njit(cache=True, nogil=True)
def pair(
    a_order, a_offsets, a_values, a_times, a_diffs, b_query, b_values, b_times, b_diffs,
    start, skip, o_query, o_left, o_right, o_times, o_diffs,
):  # fmt: skip
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


@njit(cache=True, nogil=True, inline="always")
def _before(time, other):
    """Whether `time` <= `other`."""
    for d in range(len(time)):
        if time[d] > other[d]:
            return False
    return True


@njit(cache=True, nogil=True)
def _distinct(times, count):
    """Sort times in place and drop repeated ones; return their number."""
    ones = np.ones(count, np.int64)
    return consolidate_times(times, ones, count)


@njit(cache=True, nogil=True)
def _closed(fresh, history):
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


@njit(cache=True, nogil=True)
def interesting(f_order, f_offsets, f_times, h_order, h_offsets, h_times, upper):
    """Return the times at which each key may change, as (query, time) in total order per key, and
    whether each lies before the frontier `upper`."""
    depth = f_times.shape[1]
    query, times, ready = np.empty(64, np.int64), np.empty((64, depth), np.int64), np.empty(64, np.bool_)
    at = 0
    for q in range(len(f_offsets) - 1):
        fresh = f_times[f_order[f_offsets[q] : f_offsets[q + 1]]]
        history = h_times[h_order[h_offsets[q] : h_offsets[q + 1]]]
        found = _closed(fresh, history)
        if at + len(found) > len(query):
            room = 2 * (at + len(found))
            more_query, more_times = np.empty(room, np.int64), np.empty((room, depth), np.int64)
            more_ready = np.empty(room, np.bool_)
            more_query[:at], more_times[:at], more_ready[:at] = query[:at], times[:at], ready[:at]
            query, times, ready = more_query, more_times, more_ready
        for i in range(len(found)):
            query[at] = q
            times[at] = found[i]
            ready[at] = True
            for f in range(len(upper)):
                if _before(upper[f], found[i]):
                    ready[at] = False
            at += 1
    return query[:at], times[:at], ready[:at]


@njit(cache=True, nogil=True)
def accumulate(query, times, order, offsets, values, row_times, diffs):
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


@njit(cache=True, nogil=True)
def corrections(
    query, times, starts, wanted, counts, order, offsets, values, row_times, diffs
):
    """Return the updates that turn the output into the wanted values at each (query, time).

    `starts`, `wanted`, `counts` give the values of each (query, time), ascending; the other rows
    are the output so far, ordered by (query, value). Return query, value, time and diff.
    """
    depth = times.shape[1]
    room = 64
    o_query, o_values = np.empty(room, np.int64), np.empty(room, np.int64)
    o_times, o_diffs = np.empty((room, depth), np.int64), np.empty(room, np.int64)
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
                if at == room:
                    room *= 2
                    more_query, more_values = np.empty(room, np.int64), np.empty(room, np.int64)
                    more_times, more_diffs = np.empty((room, depth), np.int64), np.empty(room, np.int64)
                    more_query[:at], more_values[:at] = o_query, o_values
                    more_times[:at], more_diffs[:at] = o_times, o_diffs
                    o_query, o_values, o_times, o_diffs = more_query, more_values, more_times, more_diffs
                o_query[at], o_values[at], o_diffs[at] = q, value, diff
                o_times[at] = times[n]
                at += 1
            row = stop
        first = last
    return o_query[:at], o_values[:at], o_times[:at], o_diffs[:at]
