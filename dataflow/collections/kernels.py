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
def _before(times: Int64s, i: int, others: Int64s, j: int) -> bool:
    """Whether row i of `times` is at or before row j of `others`."""
    for d in range(times.shape[1]):  # noqa: SIM110
        if times[i, d] > others[j, d]:
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
def _swap(times: Int64s, i: int, j: int) -> None:
    for d in range(times.shape[1]):
        held = times[i, d]
        times[i, d] = times[j, d]
        times[j, d] = held


@compiled
def _sink(times: Int64s, root: int, count: int) -> None:
    """Let row `root` of a heap of times sink below later ones."""
    while True:
        child = 2 * root + 1
        if child >= count:
            return
        if child + 1 < count and _earlier(times, child, child + 1):
            child += 1
        if not _earlier(times, root, child):
            return
        _swap(times, root, child)
        root = child


@compiled
def _distinct(times: Int64s, count: int) -> int:
    """Sort times in place and drop repeated ones; return their number."""
    if count > 24:
        for root in range(count // 2 - 1, -1, -1):
            _sink(times, root, count)
        for last in range(count - 1, 0, -1):
            _swap(times, 0, last)
            _sink(times, 0, last)
    else:
        for i in range(1, count):
            j = i
            while j > 0 and _earlier(times, j, j - 1):
                _swap(times, j, j - 1)
                j -= 1
    left = min(count, 1)
    for i in range(1, count):
        if _earlier(times, left - 1, i):
            for d in range(times.shape[1]):
                times[left, d] = times[i, d]
            left += 1
    return left


@compiled
def _gathered(order: Int64s, start: int, end: int, times: Int64s, out: Int64s, at: int) -> int:
    """Copy some times in order to `out` from row `at` on; return the next row."""
    for place in range(start, end):
        for d in range(times.shape[1]):
            out[at, d] = times[order[place], d]
        at += 1
    return at


@compiled
def _doubled(rows: Int64s) -> Int64s:
    """Return twice the room, with the same first rows; shape (n, columns)."""
    more = np.empty((2 * len(rows), rows.shape[1]), np.int64)
    for i in range(len(rows)):
        for d in range(rows.shape[1]):
            more[i, d] = rows[i, d]
    return more


@compiled
def _longer(column: Int64s) -> Int64s:
    """Return a column of twice the length, with the same first values."""
    more = np.empty(2 * len(column), np.int64)
    for i in range(len(column)):
        more[i] = column[i]
    return more


@compiled
def _closed(found: Int64s, count: int, every: Int64s, total: int) -> tuple[Int64s, int]:
    """Return the joins of `count` found times with any of `total` times of a key.

    Each pass adds the joins with one further time; a join has as many parts as coordinates.
    """
    depth = found.shape[1]
    for _ in range(depth):
        joins, at = np.empty((count * total, depth), np.int64), 0
        for i in range(count):
            for j in range(total):
                for d in range(depth):
                    joins[at, d] = max(found[i, d], every[j, d])
                at += 1
        at = _distinct(joins, at)
        if at == count:
            break
        found, count = joins, at
    return found, count


@inlined
def _lies_last(
    f_order: Int64s, f_start: int, f_end: int, f_times: Int64s,
    h_order: Int64s, h_start: int, h_end: int, h_times: Int64s,
) -> bool:  # fmt: skip
    """Whether all fresh times of a key are one, with all its other times at or before it."""
    last = f_order[f_start]
    for place in range(f_start + 1, f_end):
        for d in range(f_times.shape[1]):
            if f_times[f_order[place], d] != f_times[last, d]:
                return False
    for place in range(h_start, h_end):  # noqa: SIM110
        if not _before(h_times, h_order[place], f_times, last):
            return False
    return True


@compiled
def interesting(  # noqa: C901
    f_order: Int64s, f_offsets: Int64s, f_times: Int64s,
    h_order: Int64s, h_offsets: Int64s, h_times: Int64s, upper: Int64s,
) -> tuple[Int64s, Bools]:  # fmt: skip
    """Return the times at which each key may change: joins of fresh times with any of the key.

    A row has the query, and the coordinates of the time, in total order per key. Return too which
    times lie before the frontier `upper`.
    """
    depth = f_times.shape[1]
    rows, at = np.empty((64, 1 + depth), np.int64), 0
    for q in range(len(f_offsets) - 1):
        fresh = f_offsets[q + 1] - f_offsets[q]
        if fresh and _lies_last(
            f_order, f_offsets[q], f_offsets[q + 1], f_times,
            h_order, h_offsets[q], h_offsets[q + 1], h_times,
        ):  # fmt: skip
            # No join gives another time. So it is mostly, and arrays per key would cost more.
            if at == len(rows):
                rows = _doubled(rows)
            rows[at, 0] = q
            for d in range(depth):
                rows[at, 1 + d] = f_times[f_order[f_offsets[q]], d]
            at += 1
            continue
        total = fresh + h_offsets[q + 1] - h_offsets[q]
        found = np.empty((fresh, depth), np.int64)
        count = _gathered(f_order, f_offsets[q], f_offsets[q + 1], f_times, found, 0)
        count = _distinct(found, count)
        if depth > 1:
            every = np.empty((total, depth), np.int64)
            total = _gathered(f_order, f_offsets[q], f_offsets[q + 1], f_times, every, 0)
            total = _gathered(h_order, h_offsets[q], h_offsets[q + 1], h_times, every, total)
            found, count = _closed(found, count, every, _distinct(every, total))
        while at + count > len(rows):
            rows = _doubled(rows)
        for i in range(count):
            rows[at, 0] = q
            for d in range(depth):
                rows[at, 1 + d] = found[i, d]
            at += 1
    ready = np.empty(at, np.bool_)
    for i in range(at):
        ready[i] = True
        for f in range(len(upper)):
            later = True
            for d in range(depth):
                later &= upper[f, d] <= rows[i, 1 + d]
            ready[i] &= not later
    return rows[:at], ready


@inlined
def _first_at(times: Int64s, first: int, last: int, time: int) -> int:
    """Return the first of some ascending times, of one coordinate, that is at or after another."""
    while first < last:
        middle = (first + last) >> 1
        if times[middle, 0] < time:
            first = middle + 1
        else:
            last = middle
    return first


@inlined
def _add_up(
    rows: Int64s, start: int, end: int, row_times: Int64s, diffs: Int64s,
    times: Int64s, first: int, last: int, sums: Int64s,
) -> None:  # fmt: skip
    """Write the sum of the diffs of some rows at each of the times `first` to `last`, ascending.

    In one coordinate that costs a search per row; in more, a comparison per row and time.
    """
    for n in range(first, last):
        sums[n - first] = 0
    if times.shape[1] == 1:
        for place in range(start, end):
            row = rows[place]
            n = _first_at(times, first, last, row_times[row, 0])
            if n < last:
                sums[n - first] += diffs[row]
        for n in range(first + 1, last):
            sums[n - first] += sums[n - first - 1]
        return
    for n in range(first, last):
        for place in range(start, end):
            if _before(row_times, rows[place], times, n):
                sums[n - first] += diffs[rows[place]]


@compiled
def accumulate(  # noqa: C901
    query: Int64s, times: Int64s,
    order: Int64s, offsets: Int64s, values: Int64s, row_times: Int64s, diffs: Int64s,
) -> tuple[Int64s, Int64s, Int64s]:  # fmt: skip
    """Return per (query, time) the values with a count that is not zero, ascending: offsets,
    values, counts. Rows are ordered by (query, value), the times of a query by time."""
    starts = np.zeros(len(query) + 1, np.int64)
    # The counts of each value at each time of a query, then once more in the order of the times.
    found, counts = np.empty(64, np.int64), np.empty(64, np.int64)
    ends, sums = np.empty(64, np.int64), np.empty(64, np.int64)
    at, first = 0, 0
    while first < len(query):
        q, last = query[first], first + 1
        while last < len(query) and query[last] == q:
            last += 1
        row, end, many = offsets[q], offsets[q + 1], last - first
        groups = 0
        for r in range(row, end):
            groups += r == row or values[order[r]] != values[order[r - 1]]
        if groups > len(ends) or groups * many > len(sums):
            ends, sums = np.empty(2 * groups, np.int64), np.empty(2 * groups * many, np.int64)
        for group in range(groups):
            stop = row + 1
            while stop < end and values[order[stop]] == values[order[row]]:
                stop += 1
            _add_up(
                order, row, stop, row_times, diffs, times, first, last,
                sums[group * many : (group + 1) * many],
            )  # fmt: skip
            ends[group] = row
            row = stop
        for n in range(first, last):
            starts[n] = at
            for group in range(groups):
                count = sums[group * many + n - first]
                if count != 0:
                    if at == len(found):
                        found, counts = _longer(found), _longer(counts)
                    found[at], counts[at] = values[order[ends[group]]], count
                    at += 1
        first = last
    starts[len(query)] = at
    return starts, found[:at], counts[:at]


@compiled
def corrections(  # noqa: C901
    query: Int64s, times: Int64s, starts: Int64s, wanted: Int64s, counts: Int64s,
    order: Int64s, offsets: Int64s, values: Int64s, row_times: Int64s, diffs: Int64s,
) -> Int64s:  # fmt: skip
    """Return the updates that turn the output into the wanted values at each (query, time).

    `starts`, `wanted`, `counts` give the values of each (query, time), ascending; the other rows
    are the output so far, ordered by (query, value). A row has query, value, diff and the
    coordinates of the time.
    """
    depth = times.shape[1]
    out, places = np.empty((64, 3 + depth), np.int64), np.empty(len(query), np.int64)
    sums = np.empty(len(query), np.int64)
    at, first = 0, 0
    while first < len(query):
        q, last = query[first], first
        while last < len(query) and query[last] == q:
            places[last] = starts[last]
            last += 1
        row, end = offsets[q], offsets[q + 1]
        while True:
            # The least value that any time wants, or that the output has.
            value, some = np.int64(0), False
            for n in range(first, last):
                if places[n] < starts[n + 1]:
                    v = wanted[places[n]]
                    if not some or v < value:
                        value, some = v, True
            if row < end and (not some or values[order[row]] < value):
                value, some = values[order[row]], True
            if not some:
                break
            stop = row
            while stop < end and values[order[stop]] == value:
                stop += 1
            own, so_far = at, np.int64(0)
            _add_up(order, row, stop, row_times, diffs, times, first, last, sums)
            for n in range(first, last):
                diff = -sums[n - first]
                if places[n] < starts[n + 1] and wanted[places[n]] == value:
                    diff += counts[places[n]]
                    places[n] += 1
                if depth == 1:
                    # All earlier corrections come before this time.
                    diff -= so_far
                    so_far += diff
                else:
                    for r in range(own, at):
                        earlier = True
                        for d in range(depth):
                            earlier &= out[r, 3 + d] <= times[n, d]
                        if earlier:
                            diff -= out[r, 2]
                if diff == 0:
                    continue
                if at == len(out):
                    out = _doubled(out)
                out[at, 0], out[at, 1], out[at, 2] = q, value, diff
                for d in range(depth):
                    out[at, 3 + d] = times[n, d]
                at += 1
            row = stop
        first = last
    return out[:at]
