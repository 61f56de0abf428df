"""Compiled loops of lookups: how much keys propose, what, and which proposals have support.

Rows are in runs of consecutive rows with one key; run q is the rows `firsts[q]` to `ends[q]`. A row
sees the updates with outer times below `before`. The places of a run's key in a chunk are `starts`
to `stops`, where values ascend. Cost: the proposals, and per support a galloping search. A count
costs a comparison per update, of `most` at most.
"""

from __future__ import annotations

from meander.state.collections.columns import Int64s, Values, compiled, inlined


@compiled
def count_static(
    firsts: Int64s, ends: Int64s, starts: Int64s, stops: Int64s, before: Int64s,
    floor: int, counts: Int64s,
) -> None:  # fmt: skip
    """Add to the count of each row the updates of one time and diff 1 that it sees."""
    for q in range(len(starts)):
        for row in range(firsts[q], ends[q]):
            if floor < before[row]:
                counts[row] += stops[q] - starts[q]


@compiled
def count_dynamic(
    firsts: Int64s, ends: Int64s, starts: Int64s, stops: Int64s, before: Int64s,
    times: Int64s, most: int, counts: Int64s,
) -> None:  # fmt: skip
    """Add to the count of each row the updates that it sees. A row sees all updates of a key behind
    the first `most`, whatever their times."""
    for q in range(len(starts)):
        last, seen = min(stops[q], starts[q] + most), 0
        for row in range(firsts[q], ends[q]):
            if row == firsts[q] or before[row] != before[row - 1]:
                seen = stops[q] - last
                for place in range(starts[q], last):
                    seen += int(times[place, 0] < before[row])
            counts[row] += seen


@compiled
def propose_static(
    firsts: Int64s, ends: Int64s, starts: Int64s, stops: Int64s, before: Int64s,
    values: Values, floor: int, rows: Int64s, found: Int64s, diffs: Int64s,
) -> int:  # fmt: skip
    """Write the row, the value and the diff of each proposal of updates of one time and diff 1.
    Return their number."""
    at = 0
    for q in range(len(starts)):
        if starts[q] == stops[q]:
            continue
        for row in range(firsts[q], ends[q]):
            if floor >= before[row]:
                continue
            for place in range(starts[q], stops[q]):
                rows[at], found[at], diffs[at] = row, values[place], 1
                at += 1
    return at


@compiled
def propose_dynamic(
    firsts: Int64s, ends: Int64s, starts: Int64s, stops: Int64s, before: Int64s,
    values: Values, times: Int64s, changes: Int64s, rows: Int64s, found: Int64s, diffs: Int64s,
) -> int:  # fmt: skip
    """Write the row, the value and the diff of each proposal. Return their number. Updates of one
    value that cancel before the time of a row propose nothing."""
    at = 0
    for q in range(len(starts)):
        if starts[q] == stops[q]:
            continue
        for row in range(firsts[q], ends[q]):
            place = starts[q]
            while place < stops[q]:
                value, total = values[place], 0
                while place < stops[q] and values[place] == value:
                    if times[place, 0] < before[row]:
                        total += changes[place]
                    place += 1
                if total != 0:
                    rows[at], found[at], diffs[at] = row, value, total
                    at += 1
    return at


@inlined
def _seek(values: Values, start: int, stop: int, value: int) -> int:
    """The first place from `start` to `stop` whose value is not below another, by galloping."""
    if start >= stop or values[start] >= value:
        return start
    step, low = 1, start
    while low + step < stop and values[low + step] < value:
        low += step
        step <<= 1
    high = min(low + step, stop)
    low += 1
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _next(values: Values, start: int, place: int, stop: int, value: int) -> int:
    """The same from the place of the last search on, or from `start` where values descend."""
    behind = place > start and values[place - 1] >= value
    return _seek(values, start if behind else place, stop, value)


@compiled
def support_static(
    firsts: Int64s, ends: Int64s, starts: Int64s, stops: Int64s, before: Int64s, wanted: Int64s,
    values: Values, floor: int, support: Int64s,
) -> None:  # fmt: skip
    """Add 1 to the support of each row whose wanted value is there at one time, with diff 1."""
    for q in range(len(starts)):
        if starts[q] == stops[q]:
            continue
        place = starts[q]
        for row in range(firsts[q], ends[q]):
            value = wanted[row]
            place = _next(values, starts[q], place, stops[q], value)
            if place < stops[q] and values[place] == value and floor < before[row]:
                support[row] += 1


@compiled
def support_dynamic(
    firsts: Int64s, ends: Int64s, starts: Int64s, stops: Int64s, before: Int64s, wanted: Int64s,
    values: Values, times: Int64s, changes: Int64s, support: Int64s,
) -> None:  # fmt: skip
    """Add to the support of each row the diffs of its wanted value."""
    for q in range(len(starts)):
        if starts[q] == stops[q]:
            continue
        place = starts[q]
        for row in range(firsts[q], ends[q]):
            value = wanted[row]
            place = _next(values, starts[q], place, stops[q], value)
            at = place
            while at < stops[q] and values[at] == value:
                if times[at, 0] < before[row]:
                    support[row] += changes[at]
                at += 1
