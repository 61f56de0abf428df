"""Compiled loops over the columns of chunks: merge, seek, gather, consolidate.

A chunk has a static part (rows of one time, each with diff 1) and a dynamic part (rows with time
and diff). Both are CSR: sorted key hashes, offsets into rows, rows sorted by value. Times have the
shape (rows, depth). Each function is a loop without objects, and releases the GIL. Cost: about
10 ns per row; compiled code is cached on disk.
"""

from __future__ import annotations

import numpy as np
from numba import njit

MERGED, NEEDS_A, NEEDS_B, FULL, OUT_OF_FUEL = range(5)
"""Why `merge` returned."""
A_KEY, A_ROW, A_DKEY, A_DROW, B_KEY, B_ROW, B_DKEY, B_DROW = range(8)
O_KEY, O_ROW, O_DKEY, O_DROW, A_ENDED, B_ENDED, CHARGED = range(8, 15)
"""Places of the cursors of a merge."""
CURSORS = 15
_TOP = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True, inline="always")
def _mixed(x):
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


@njit(cache=True, nogil=True)
def hashes_of(keys):
    """Return the hash of each key: a bijection of 64-bit integers (splitmix64's last step)."""
    out = np.empty(len(keys), np.uint64)
    for i in range(len(keys)):
        out[i] = _mixed(np.uint64(keys[i]))
    return out


@njit(cache=True, nogil=True)
def keys_of(hashes):
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


@njit(cache=True, nogil=True)
def advance(time, frontier, out):
    """Write meet over f in `frontier` of join(time, f) to `out` (differential dataflow,
    "Compacting logical times"). An empty frontier leaves the time."""
    depth = len(time)
    for d in range(depth):
        out[d] = time[d]
    for f in range(len(frontier)):
        for d in range(depth):
            at = max(time[d], frontier[f, d])
            out[d] = at if f == 0 else min(out[d], at)


@njit(cache=True, nogil=True, inline="always")
def _earlier(times, i, j):
    """Whether row i precedes row j in lexicographic order."""
    for d in range(times.shape[1]):
        if times[i, d] != times[j, d]:
            return times[i, d] < times[j, d]
    return False


@njit(cache=True, nogil=True, inline="always")
def _same(times, i, other, j):
    for d in range(times.shape[1]):
        if times[i, d] != other[j, d]:
            return False
    return True


@njit(cache=True, nogil=True)
def consolidate_times(times, diffs, count):
    """Sort `count` rows by time, add up equal times, drop zeros. Return the rows left, in place."""
    if count > 24:
        for d in range(times.shape[1] - 1, -1, -1):
            order = np.argsort(times[:count, d], kind="mergesort")
            sorted_times, sorted_diffs = times[:count][order], diffs[:count][order]
            times[:count], diffs[:count] = sorted_times, sorted_diffs
    for i in range(1, count):
        j = i
        while j > 0 and _earlier(times, j, j - 1):
            for d in range(times.shape[1]):
                swap = times[j, d]
                times[j, d] = times[j - 1, d]
                times[j - 1, d] = swap
            held = diffs[j]
            diffs[j] = diffs[j - 1]
            diffs[j - 1] = held
            j -= 1
    left = 0
    for i in range(count):
        if left and _same(times, i, times, left - 1):
            diffs[left - 1] += diffs[i]
            continue
        if left and diffs[left - 1] == 0:
            left -= 1
        for d in range(times.shape[1]):
            times[left, d] = times[i, d]
        diffs[left] = diffs[i]
        left += 1
    if left and diffs[left - 1] == 0:
        left -= 1
    return left


@njit(cache=True, nogil=True, inline="always")
def _put_static(keys, offsets, values, cursors, key, value):
    k = cursors[O_KEY]
    if k == 0 or keys[k - 1] != key:
        keys[k] = key
        offsets[k] = cursors[O_ROW]
        cursors[O_KEY] = k + 1
    values[cursors[O_ROW]] = value
    cursors[O_ROW] += 1


@njit(cache=True, nogil=True)
def merge(
    a_keys, a_offsets, a_values, a_dkeys, a_doffsets, a_dvalues, a_times, a_diffs, a_floor,
    b_keys, b_offsets, b_values, b_dkeys, b_doffsets, b_dvalues, b_times, b_diffs, b_floor,
    o_keys, o_offsets, o_values, o_dkeys, o_doffsets, o_dvalues, o_times, o_diffs, o_floor,
    frontier, cursors, fuel,
):  # fmt: skip
    """Merge two chunks into an output chunk until one is used up, it is full, or fuel ends.

    `cursors` hold the places in all three. Each row taken charges one. A (key, value) is taken
    whole. Return why the merge stopped.
    """
    depth = len(o_floor)
    room = len(o_values)
    moved = np.empty(depth, np.int64)
    advance(a_floor, frontier, moved)
    a_static = True
    for d in range(depth):
        a_static &= moved[d] == o_floor[d]
    advance(b_floor, frontier, moved)
    b_static = True
    for d in range(depth):
        b_static &= moved[d] == o_floor[d]
    times, diffs = np.empty((32, depth), np.int64), np.empty(32, np.int64)
    spent = 0
    while True:
        ak, ar, adk, adr = cursors[A_KEY], cursors[A_ROW], cursors[A_DKEY], cursors[A_DROW]
        bk, br, bdk, bdr = cursors[B_KEY], cursors[B_ROW], cursors[B_DKEY], cursors[B_DROW]
        has_a, has_ad = ar < len(a_values), adr < len(a_dvalues)
        has_b, has_bd = br < len(b_values), bdr < len(b_dvalues)
        if not (has_a or has_ad or cursors[A_ENDED]):
            return NEEDS_A
        if not (has_b or has_bd or cursors[B_ENDED]):
            return NEEDS_B
        if not (has_a or has_ad or has_b or has_bd):
            return MERGED
        if spent >= fuel:
            return OUT_OF_FUEL
        # The least (key, value) of the four runs; `count` rows have it.
        key, value, found = _TOP, np.int64(0), False
        if has_a:
            key, value, found = a_keys[ak], np.int64(a_values[ar]), True
        if has_ad:
            k, v = a_dkeys[adk], np.int64(a_dvalues[adr])
            if not found or k < key or (k == key and v < value):
                key, value, found = k, v, True
        if has_b:
            k, v = b_keys[bk], np.int64(b_values[br])
            if not found or k < key or (k == key and v < value):
                key, value, found = k, v, True
        if has_bd:
            k, v = b_dkeys[bdk], np.int64(b_dvalues[bdr])
            if not found or k < key or (k == key and v < value):
                key, value, found = k, v, True
        in_a = has_a and a_keys[ak] == key and a_values[ar] == value
        in_b = has_b and b_keys[bk] == key and b_values[br] == value
        a_end, b_end = adr, bdr
        if has_ad and a_dkeys[adk] == key:
            while a_end < a_doffsets[adk + 1] and a_dvalues[a_end] == value:
                a_end += 1
        if has_bd and b_dkeys[bdk] == key:
            while b_end < b_doffsets[bdk + 1] and b_dvalues[b_end] == value:
                b_end += 1
        count = (a_end - adr) + (b_end - bdr) + int(in_a) + int(in_b)
        if max(cursors[O_ROW], cursors[O_DROW]) + count > room:
            return FULL
        spent += count
        cursors[CHARGED] += count
        if count == 1 and ((in_a and a_static) or (in_b and b_static)):
            _put_static(o_keys, o_offsets, o_values, cursors, key, value)
        else:
            if count > len(diffs):
                times, diffs = np.empty((2 * count, depth), np.int64), np.empty(2 * count, np.int64)
            n = 0
            if in_a:
                advance(a_floor, frontier, times[n])
                diffs[n] = 1
                n += 1
            if in_b:
                advance(b_floor, frontier, times[n])
                diffs[n] = 1
                n += 1
            for row in range(adr, a_end):
                advance(a_times[row], frontier, times[n])
                diffs[n] = a_diffs[row]
                n += 1
            for row in range(bdr, b_end):
                advance(b_times[row], frontier, times[n])
                diffs[n] = b_diffs[row]
                n += 1
            n = consolidate_times(times, diffs, n)
            for i in range(n):
                static = diffs[i] == 1
                for d in range(depth):
                    static &= times[i, d] == o_floor[d]
                if static:
                    _put_static(o_keys, o_offsets, o_values, cursors, key, value)
                    continue
                k, row = cursors[O_DKEY], cursors[O_DROW]
                if k == 0 or o_dkeys[k - 1] != key:
                    o_dkeys[k] = key
                    o_doffsets[k] = row
                    cursors[O_DKEY] = k + 1
                o_dvalues[row] = value
                o_diffs[row] = diffs[i]
                for d in range(depth):
                    o_times[row, d] = times[i, d]
                cursors[O_DROW] = row + 1
        if in_a:
            cursors[A_ROW] = ar + 1
            cursors[A_KEY] = ak + int(ar + 1 == a_offsets[ak + 1])
        if in_b:
            cursors[B_ROW] = br + 1
            cursors[B_KEY] = bk + int(br + 1 == b_offsets[bk + 1])
        if a_end > adr:
            cursors[A_DROW] = a_end
            cursors[A_DKEY] = adk + int(a_end == a_doffsets[adk + 1])
        if b_end > bdr:
            cursors[B_DROW] = b_end
            cursors[B_DKEY] = bdk + int(b_end == b_doffsets[bdk + 1])


@njit(cache=True, nogil=True)
def sort_values(hashes, values, order):
    """Sort the rows of equal hashes by value, in place, where `order` sorts by hash."""
    start, n = 0, len(order)
    while start < n:
        end = start + 1
        while end < n and hashes[order[end]] == hashes[order[start]]:
            end += 1
        if end - start > 24:
            order[start:end] = order[start:end][
                np.argsort(values[order[start:end]], kind="mergesort")
            ]
        else:
            for i in range(start + 1, end):
                row, j = order[i], i
                while j > start and values[order[j - 1]] > values[row]:
                    order[j] = order[j - 1]
                    j -= 1
                order[j] = row
        start = end


@njit(cache=True, nogil=True)
def grouped(hashes, order):
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


@njit(cache=True, nogil=True, inline="always")
def _seek(keys, start, key):
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


@njit(cache=True, nogil=True, inline="always")
def _estimate(keys, key):
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


@njit(cache=True, nogil=True)
def locate(keys, offsets, queries, by_estimate, starts, ends):
    """Write the row range of each sorted query to `starts` and `ends`. Return the rows of all."""
    place, rows = 0, 0
    for q in range(len(queries)):
        key = queries[q]
        if by_estimate and len(keys):
            place = max(place, _estimate(keys, key))
        place = _seek(keys, place, key)
        if place < len(keys) and keys[place] == key:
            starts[q], ends[q] = offsets[place], offsets[place + 1]
        else:
            starts[q], ends[q] = 0, 0
        rows += ends[q] - starts[q]
    return rows


@njit(cache=True, nogil=True)
def gather_static(values, starts, ends, floor, first, o_query, o_values, o_times, o_diffs, at):
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


@njit(cache=True, nogil=True)
def gather_dynamic(
    values, times, diffs, starts, ends, first, o_query, o_values, o_times, o_diffs, at
):
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
