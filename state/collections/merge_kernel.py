"""The compiled merge of two chunks into a third one.

A chunk has a static part (rows of one time, each with diff 1) and a dynamic part (rows with time
and diff). Both are CSR: sorted key hashes, offsets into rows, values ascending per key. Times have
the shape (rows, depth). Cost: about 10 ns per row.
"""

from __future__ import annotations

import numpy as np

from meander.state.collections.columns import (
    Int32s,
    Int64s,
    UInt64s,
    Values,
    compiled,
    inlined,
)

MERGED, NEEDS_A, NEEDS_B, FULL, OUT_OF_FUEL = range(5)
"""Why `merge` returned."""
A_KEY, A_ROW, A_DKEY, A_DROW, B_KEY, B_ROW, B_DKEY, B_DROW = range(8)
O_KEY, O_ROW, O_DKEY, O_DROW, A_ENDED, B_ENDED, CHARGED = range(8, 15)
"""Places of the cursors of a merge."""
CURSORS = 15
_TOP = np.uint64(0xFFFFFFFFFFFFFFFF)


@compiled
def advance(time: Int64s, frontier: Int64s, out: Int64s) -> None:
    """Write meet over f in `frontier` of join(time, f) to `out` (differential dataflow,
    "Compacting logical times"). An empty frontier leaves the time."""
    depth = len(time)
    for d in range(depth):
        out[d] = time[d]
    for f in range(len(frontier)):
        for d in range(depth):
            at = max(time[d], frontier[f, d])
            out[d] = at if f == 0 else min(out[d], at)


@inlined
def _earlier(times: Int64s, i: int, j: int) -> bool:
    """Whether row i precedes row j in lexicographic order."""
    for d in range(times.shape[1]):
        if times[i, d] != times[j, d]:
            return bool(times[i, d] < times[j, d])
    return False


@inlined
def _same(times: Int64s, i: int, j: int) -> bool:
    for d in range(times.shape[1]):  # noqa: SIM110
        if times[i, d] != times[j, d]:
            return False
    return True


@compiled
def _swap(times: Int64s, diffs: Int64s, i: int, j: int) -> None:
    for d in range(times.shape[1]):
        held = times[i, d]
        times[i, d] = times[j, d]
        times[j, d] = held
    held = diffs[i]
    diffs[i] = diffs[j]
    diffs[j] = held


@compiled
def _sink(times: Int64s, diffs: Int64s, root: int, count: int) -> None:
    """Let row `root` of a heap of rows sink below later ones."""
    while True:
        child = 2 * root + 1
        if child >= count:
            return
        if child + 1 < count and _earlier(times, child, child + 1):
            child += 1
        if not _earlier(times, root, child):
            return
        _swap(times, diffs, root, child)
        root = child


@compiled
def consolidate_times(times: Int64s, diffs: Int64s, count: int) -> int:  # noqa: C901
    """Sort `count` rows by time, add up equal times, drop zeros. Return the rows left, in place."""
    if count > 24:
        for root in range(count // 2 - 1, -1, -1):
            _sink(times, diffs, root, count)
        for last in range(count - 1, 0, -1):
            _swap(times, diffs, 0, last)
            _sink(times, diffs, 0, last)
    else:
        for i in range(1, count):
            j = i
            while j > 0 and _earlier(times, j, j - 1):
                _swap(times, diffs, j, j - 1)
                j -= 1
    left = 0
    for i in range(count):
        if left and _same(times, i, left - 1):
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


@compiled
def consolidate(
    hashes: UInt64s, values: Int64s, times: Int64s, diffs: Int64s, order: Int64s, frontier: Int64s,
    o_keys: UInt64s, o_offsets: Int32s, o_values: Int64s, o_times: Int64s, o_diffs: Int64s,
) -> tuple[int, int]:  # fmt: skip
    """Write rows that `order` sorts by (hash, value) as the dynamic part of a chunk, with times
    advanced to `frontier`, equal times added up, and zeros dropped. Return its keys and rows."""
    key, row, start, n = 0, 0, 0, len(order)
    while start < n:
        first, end, kept = order[start], start, row
        while end < n:
            other = order[end]
            if hashes[other] != hashes[first] or values[other] != values[first]:
                break
            advance(times[other], frontier, o_times[row])
            o_diffs[row] = diffs[other]
            row, end = row + 1, end + 1
        if row - kept > 1:
            row = kept + consolidate_times(o_times[kept:], o_diffs[kept:], row - kept)
        elif o_diffs[kept] == 0:
            row = kept
        for place in range(kept, row):
            o_values[place] = values[first]
        if row > kept and (key == 0 or o_keys[key - 1] != hashes[first]):
            o_keys[key], o_offsets[key] = hashes[first], kept
            key += 1
        start = end
    o_offsets[key] = row
    return key, row


@inlined
def _put_static(
    keys: UInt64s, offsets: Int32s, values: Values, cursors: Int64s, key: np.uint64, value: np.int64
) -> None:
    k = cursors[O_KEY]
    if k == 0 or keys[k - 1] != key:
        keys[k] = key
        offsets[k] = cursors[O_ROW]
        cursors[O_KEY] = k + 1
    values[cursors[O_ROW]] = value
    cursors[O_ROW] += 1


@compiled
def merge(  # noqa: C901
    a_keys: UInt64s, a_offsets: Int32s, a_values: Values,
    a_dkeys: UInt64s, a_doffsets: Int32s, a_dvalues: Values,
    a_times: Int64s, a_diffs: Int64s, a_floor: Int64s,
    b_keys: UInt64s, b_offsets: Int32s, b_values: Values,
    b_dkeys: UInt64s, b_doffsets: Int32s, b_dvalues: Values,
    b_times: Int64s, b_diffs: Int64s, b_floor: Int64s,
    o_keys: UInt64s, o_offsets: Int32s, o_values: Values,
    o_dkeys: UInt64s, o_doffsets: Int32s, o_dvalues: Values,
    o_times: Int64s, o_diffs: Int64s, o_floor: Int64s,
    frontier: Int64s, cursors: Int64s, fuel: int,
) -> int:  # fmt: skip
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
