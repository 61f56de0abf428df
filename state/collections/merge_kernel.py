"""The compiled merge of two chunks into a third one.

A chunk has a static part (rows of one time, each with diff 1) and a dynamic part (rows with time
and diff). Both are CSR: sorted key hashes, offsets into rows, values ascending per key. Times have
the shape (rows, depth). Cost: 10 to 50 ns per row.
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


@inlined
def _advance_row(times: Int64s, row: int, frontier: Int64s, out: Int64s, to: int) -> None:
    """Write meet over f in `frontier` of join(time, f) of a row of `times` to row `to` of `out`
    (differential dataflow, "Compacting logical times"). An empty frontier leaves the time."""
    # A row as an array of its own would count references, in ten times the time.
    for d in range(times.shape[1]):
        time = times[row, d]
        least = time
        for f in range(len(frontier)):
            at = max(time, frontier[f, d])
            least = at if f == 0 else min(least, at)
        out[to, d] = least


@compiled
def advance(time: Int64s, frontier: Int64s, out: Int64s) -> None:
    """Write a time, advanced to `frontier`, to `out`."""
    depth = len(time)
    _advance_row(time.reshape(1, depth), 0, frontier, out.reshape(1, depth), 0)


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
def _sink(times: Int64s, diffs: Int64s, start: int, root: int, count: int) -> None:
    """Let row `root` of a heap of rows from `start` on sink below later ones."""
    while True:
        child = 2 * root + 1
        if child >= count:
            return
        if child + 1 < count and _earlier(times, start + child, start + child + 1):
            child += 1
        if not _earlier(times, start + root, start + child):
            return
        _swap(times, diffs, start + root, start + child)
        root = child


@compiled
def _sort_times(times: Int64s, diffs: Int64s, start: int, end: int) -> None:
    """Sort rows by time, in place."""
    ascend = True
    for i in range(start + 1, end):
        ascend &= not _earlier(times, i, i - 1)
    if ascend:
        # So it is where `advance` has made all times one.
        return
    count = end - start
    if count > 24:
        for root in range(count // 2 - 1, -1, -1):
            _sink(times, diffs, start, root, count)
        for last in range(count - 1, 0, -1):
            _swap(times, diffs, start, start + last)
            _sink(times, diffs, start, 0, last)
        return
    for i in range(start + 1, end):
        j = i
        while j > start and _earlier(times, j, j - 1):
            _swap(times, diffs, j, j - 1)
            j -= 1


@compiled
def consolidate_times(times: Int64s, diffs: Int64s, start: int, end: int) -> int:
    """Sort rows by time, add up equal times, drop zeros, in place. Return the end of those left."""
    _sort_times(times, diffs, start, end)
    left = start
    for i in range(start, end):
        if left > start and _same(times, i, left - 1):
            diffs[left - 1] += diffs[i]
            continue
        if left > start and diffs[left - 1] == 0:
            left -= 1
        for d in range(times.shape[1]):
            times[left, d] = times[i, d]
        diffs[left] = diffs[i]
        left += 1
    if left > start and diffs[left - 1] == 0:
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
            _advance_row(times, other, frontier, o_times, row)
            o_diffs[row] = diffs[other]
            row, end = row + 1, end + 1
        if row - kept > 1:
            row = consolidate_times(o_times, o_diffs, kept, row)
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
def _is_at(times: Int64s, row: int, floor: Int64s) -> bool:
    """Whether a row has the time `floor`."""
    for d in range(len(floor)):  # noqa: SIM110
        if times[row, d] != floor[d]:
            return False
    return True


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
    depth, room = len(o_floor), len(o_values)
    # The times of static rows.
    floors = np.empty((2, depth), np.int64)
    advance(a_floor, frontier, floors[0])
    advance(b_floor, frontier, floors[1])
    times, diffs = np.empty((32, depth), np.int64), np.empty(32, np.int64)
    ak, ar, adk, adr = cursors[A_KEY], cursors[A_ROW], cursors[A_DKEY], cursors[A_DROW]
    bk, br, bdk, bdr = cursors[B_KEY], cursors[B_ROW], cursors[B_DKEY], cursors[B_DROW]
    ok, orow, odk, odr = cursors[O_KEY], cursors[O_ROW], cursors[O_DKEY], cursors[O_DROW]
    spent = 0
    while True:
        has_a, has_ad = ar < len(a_values), adr < len(a_dvalues)
        has_b, has_bd = br < len(b_values), bdr < len(b_dvalues)
        if not (has_a or has_ad or cursors[A_ENDED]):
            why = NEEDS_A
            break
        if not (has_b or has_bd or cursors[B_ENDED]):
            why = NEEDS_B
            break
        if not (has_a or has_ad or has_b or has_bd):
            why = MERGED
            break
        if spent >= fuel:
            why = OUT_OF_FUEL
            break
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
        if max(orow, odr) + count > room:
            why = FULL
            break
        spent += count
        if count > len(diffs):
            times, diffs = np.empty((2 * count, depth), np.int64), np.empty(2 * count, np.int64)
        n = 0
        if in_a:
            for d in range(depth):
                times[n, d] = floors[0, d]
            diffs[n] = 1
            n += 1
            ar += 1
            ak += int(ar == a_offsets[ak + 1])
        if in_b:
            for d in range(depth):
                times[n, d] = floors[1, d]
            diffs[n] = 1
            n += 1
            br += 1
            bk += int(br == b_offsets[bk + 1])
        if a_end > adr:
            for row in range(adr, a_end):
                _advance_row(a_times, row, frontier, times, n)
                diffs[n] = a_diffs[row]
                n += 1
            adr = a_end
            adk += int(adr == a_doffsets[adk + 1])
        if b_end > bdr:
            for row in range(bdr, b_end):
                _advance_row(b_times, row, frontier, times, n)
                diffs[n] = b_diffs[row]
                n += 1
            bdr = b_end
            bdk += int(bdr == b_doffsets[bdk + 1])
        if n > 1 or diffs[0] == 0:
            n = consolidate_times(times, diffs, 0, n)
        for i in range(n):
            if diffs[i] == 1 and _is_at(times, i, o_floor):
                if ok == 0 or o_keys[ok - 1] != key:
                    o_keys[ok], o_offsets[ok] = key, orow
                    ok += 1
                o_values[orow] = value
                orow += 1
                continue
            if odk == 0 or o_dkeys[odk - 1] != key:
                o_dkeys[odk], o_doffsets[odk] = key, odr
                odk += 1
            o_dvalues[odr], o_diffs[odr] = value, diffs[i]
            for d in range(depth):
                o_times[odr, d] = times[i, d]
            odr += 1
    cursors[A_KEY], cursors[A_ROW], cursors[A_DKEY], cursors[A_DROW] = ak, ar, adk, adr
    cursors[B_KEY], cursors[B_ROW], cursors[B_DKEY], cursors[B_DROW] = bk, br, bdk, bdr
    cursors[O_KEY], cursors[O_ROW], cursors[O_DKEY], cursors[O_DROW] = ok, orow, odk, odr
    cursors[CHARGED] += spent
    return why
