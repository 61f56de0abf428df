"""The visits of the flow of `windows_flow.py`, and its results as one thread computes them from all
visits at once.

Logical times order the visits of a user, and say which row of a table a visit meets. They depend on
decisions of a run, so a topic with one result per visit tells them, within bounds that hold for all
runs. All else follows from them.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from meander.state.times.time import from_millis

PARTITIONS, USERS = 3, 40
START = 1_700_000_000_000
STEP = 4
"""Milliseconds from one visit to the next."""
MINUTE, GAP, NEAR, LATE = 1000, 200, 100, 3000
"""Milliseconds of a tumbling window, of the gap of a session, between two visits that the join
pairs at most, and of the lateness of all."""
HOP, SLIDE = 500, 300
"""Milliseconds between two windows that hop, and of one that slides."""
COUNT, TOP = 5, 3
"""The visits of a window of a count, and the results of a window over all users."""
NAMELESS = 7
"""A user whose row is deleted before the first visit."""
DISORDER, MARGIN, TOO_LATE = 300, 2000, 9000
"""Milliseconds that a visit may come late, that an idle advance may add to that, which is less than
one feed takes, and that a visit comes too late by."""
BEFORE, DUE = START - TOO_LATE, START + 4500
"""The time of the rows of users, and the one at which those with a time to live end, while visits
come."""
LIVE = DUE - BEFORE
"""The time to live of these rows, in milliseconds."""

TABLES = "homed", "hosted"
"""The topics with the changes of tables that change with each move."""
Times = Mapping[int, int]
"""The logical times of records by their numbers."""
Rows = dict[str, object]
"""The rows of a table by key."""
Changes = defaultdict[str, list[tuple[int, object]]]
"""The times and the new rows of the changes of each key."""


class Visit(NamedTuple):
    """A visit: its number, who comes, the own time and the partition."""

    n: int
    user: int | None
    at: int
    partition: int

    @property
    def value(self) -> dict[str, object]:
        return {"n": self.n, "user": self.user, "at": self.at}


class Home(NamedTuple):
    """A change of the home of a user: its number, the user, the host or None where the user leaves,
    and the own time."""

    n: int
    user: int
    host: int | None
    at: int

    @property
    def key(self) -> bytes:
        return b"u%d" % self.user

    @property
    def value(self) -> dict[str, object]:
        host = None if self.host is None else f"u{self.host}"
        return {"n": self.n, "user": self.user, "host": host}


def visit_of(n: int) -> Visit:
    rng = random.Random(n)
    delay = TOO_LATE if n > 100 and rng.random() < 1 / 30 else rng.randrange(DISORDER)
    return Visit(n, rng.randrange(USERS), START + n * STEP - delay, rng.randrange(PARTITIONS))


def home_of(n: int) -> Home:
    rng = random.Random(f"home {n}")
    host = None if rng.random() < 1 / 5 else rng.randrange(USERS)
    return Home(n, rng.randrange(USERS), host, START + n * STEP - DISORDER)


class Reference:
    """What one thread makes of all visits at once."""

    def __init__(self, fed: Sequence[Visit], homes: Sequence[Home]) -> None:
        self._fed, self._homes = fed, homes
        self.visits = [visit for visit in fed if visit.user is not None]

    @cached_property
    def exact(self) -> dict[str, Counter[str]]:
        """Return the results that follow from the visits alone, by topic."""
        late = self._late
        by_user = self._by_user(visit for visit in self.visits if visit not in late)
        hops = _windows(by_user, lambda mine: _hopping(mine, HOP))
        lost = Counter(json.dumps(visit.value, sort_keys=True) for visit in late)
        # A late visit is late on both sides of the join.
        return {
            "minutes": _lists(_windows(by_user, lambda mine: _hopping(mine, MINUTE))),
            "late-minutes": lost,
            "sessions": _lists(_windows(by_user, _sessions)), "late-sessions": lost,
            "named": Counter(map(_named, self.visits)),
            "pairs": Counter(one for mine in by_user.values() for one in _pairs(mine)),
            "late-pairs": lost + lost,
            "hops": Counter(
                _result(user, start, end, len(some)) for user, start, end, some in hops
            ),
            "late-hops": lost, "top": Counter(_top(hops)), "hop-lists": _lists(hops),
            "slides": _lists(_windows(by_user, _sliding)),
            "guest-changes": Counter(_guest_changes()),
            "moves": Counter(json.dumps(home.value, sort_keys=True) for home in self._homes),
        }  # fmt: skip

    @property
    def full_counts(self) -> int:
        """Return how many windows of a count are full."""
        return sum(len(mine) // COUNT for mine in self._by_user(self.visits).values())

    def check_times(self, visits: Times, moves: Times) -> None:
        """Check that logical times lie within their bounds, and never decrease in a partition."""
        newest = [0] * PARTITIONS
        for visit, earliest, latest in self._spans():
            if visit.user is not None:
                time = visits[visit.n]
                assert max(newest[visit.partition], from_millis(earliest)) <= time, visit
                assert time <= from_millis(latest), visit
                newest[visit.partition] = time
        for home in self._homes:
            latest = home.at + DISORDER + MARGIN
            assert from_millis(home.at) <= moves[home.n] <= from_millis(latest), home

    def check_counts(self, counts: Sequence[bytes], times: Times) -> None:
        """Check the windows of a count, which take the visits in their total order (I9)."""
        ordered = sorted(self.visits, key=lambda one: (times[one.n], one.partition, one.n))
        wanted = [
            {"key": user, "start": min(ats), "end": max(ats) + 1, "value": [one.n for one in some]}
            for user, mine in self._by_user(ordered).items()
            for first in range(0, len(mine) - COUNT + 1, COUNT)
            if (some := mine[first : first + COUNT]) and (ats := [one.at for one in some])
        ]
        assert sorted(map(json.loads, counts), key=_place) == sorted(wanted, key=_place)

    def check_received(self, received: Sequence[bytes], times: Times) -> None:
        """Check that each visit has met its row before the row ended, and no row from then on."""
        before = Counter(times[visit.n] < from_millis(DUE) for visit in self.visits)
        assert min(before[True], before[False]) > 30, "rows end among the visits"
        assert Counter(map(canonical, received)) == Counter(
            _named(visit, is_there=times[visit.n] < from_millis(DUE)) for visit in self.visits
        )

    def last_rows(self) -> dict[str, Rows]:
        """Return the last rows of both tables, by topic."""
        return _tables({one.user: one for one in self._homes})

    def changes(self, times: Times) -> dict[str, Changes]:
        """Return the changes of both tables by topic: at most one of a key at each time."""

        def moved_at(home: Home) -> int:
            return times[home.n]

        homes = dict[int, Home]()
        before, changes = _tables(homes), {topic: Changes(list) for topic in TABLES}
        for time, moved in groupby(sorted(self._homes, key=moved_at), key=moved_at):
            homes |= {one.user: one for one in moved}
            after = _tables(homes)
            for topic, found in changes.items():
                was, now = before[topic], after[topic]
                for key in was | now:
                    if was.get(key) != now.get(key):
                        found[key].append((time, now.get(key)))
            before = after
        return changes

    @cached_property
    def _late(self) -> set[Visit]:
        """Return the visits that are late for all their windows, which no decision can change."""
        late = set[Visit]()
        for visit, earliest, latest in self._spans():
            last = max(visit.at // HOP * HOP + MINUTE, visit.at + GAP, visit.at + SLIDE)
            if last + LATE <= earliest:
                late.add(visit)
            else:
                assert latest < visit.at + 1 + LATE, "no decision makes it late"
        return late

    def _spans(self) -> Iterator[tuple[Visit, int, int]]:
        """Yield each visit with bounds of its logical time in milliseconds."""
        newest, latest = [0] * PARTITIONS, 0
        for visit in self._fed:
            newest[visit.partition] = max(newest[visit.partition], visit.at)
            latest = max(latest, visit.at)
            yield visit, newest[visit.partition], latest + MARGIN

    @staticmethod
    def _by_user(visits: Iterable[Visit]) -> dict[int, list[Visit]]:
        found = defaultdict[int, list[Visit]](list)
        for visit in visits:
            assert visit.user is not None
            found[visit.user].append(visit)
        return found


Window = tuple[int, int, int, list[Visit]]
"""The user, the start and the end of a window, and its visits."""


def _windows(
    by_user: Mapping[int, list[Visit]],
    windows: Callable[[list[Visit]], Iterable[tuple[int, int, list[Visit]]]],
) -> list[Window]:
    """Return the windows of all users, whose visits come in the order of their own times."""
    return [
        (user, *window)
        for user, mine in by_user.items()
        for window in windows(sorted(mine, key=lambda visit: visit.at))
    ]


def _hopping(visits: Sequence[Visit], every: int) -> Iterator[tuple[int, int, list[Visit]]]:
    found = defaultdict[int, list[Visit]](list)
    for visit in visits:
        last = visit.at // every * every
        for start in range(last - MINUTE + every, last + 1, every):
            found[start].append(visit)
    for start, some in found.items():
        yield start, start + MINUTE, some


def _sliding(visits: Sequence[Visit]) -> Iterator[tuple[int, int, list[Visit]]]:
    for at in {visit.at for visit in visits}:
        yield at + 1 - SLIDE, at + 1, [one for one in visits if at - SLIDE < one.at <= at]


def _sessions(visits: Sequence[Visit]) -> Iterator[tuple[int, int, list[Visit]]]:
    found = [visits[0]]
    for before, visit in pairwise(visits):
        if visit.at >= before.at + GAP:
            yield found[0].at, before.at + GAP, found
            found = []
        found.append(visit)
    yield found[0].at, found[-1].at + GAP, found


def _lists(windows: Iterable[Window]) -> Counter[str]:
    return Counter(
        _result(user, start, end, sorted(visit.n for visit in some))
        for user, start, end, some in windows
    )


def _top(windows: Iterable[Window]) -> Iterator[str]:
    """Yield the users with the most visits of each window; equal ones by their numbers."""
    found = defaultdict[tuple[int, int], list[tuple[int, int]]](list)
    for user, start, end, some in windows:
        found[start, end].append((-len(some), user))
    for (start, end), ranked in found.items():
        first = [
            {"key": user, "start": start, "end": end, "value": -less}
            for less, user in sorted(ranked)[:TOP]
        ]
        yield json.dumps({"start": start, "end": end, "value": first}, sort_keys=True)


def _pairs(visits: Sequence[Visit]) -> Iterator[str]:
    """Yield the pairs of the visits of a user."""
    for one in visits:
        for other in visits:
            if 1 <= other.at - one.at <= NEAR:
                yield json.dumps({"n": one.n, "other": other.n}, sort_keys=True)


def _tables(homes: Mapping[int, Home]) -> dict[str, Rows]:
    """Return the rows of both tables by topic: the users that have a name and a home, and those
    whose host has both."""
    homed = {
        one.user: {"n": one.n, "name": name}
        for one in homes.values()
        if one.host is not None and (name := _name(one.user)) is not None
    }
    hosted = {
        one.user: {"n": one.n, "host": homed[one.host]}
        for one in homes.values()
        if one.host in homed
    }
    return {
        topic: {f"u{user}": row for user, row in rows.items()}
        for topic, rows in zip(TABLES, (homed, hosted), strict=True)
    }


def _guest_changes() -> Iterator[str]:
    """Yield the changes of a table whose rows end: each row comes once, and goes once."""
    for user in range(USERS):
        if (name := _name(user)) is not None:
            for before, after in (None, {"name": name}), ({"name": name}, None):
                change = {"key": f"u{user}", "before": before, "after": after}
                yield json.dumps(change, sort_keys=True)


def _name(user: int | None) -> str | None:
    return None if user == NAMELESS else f"user {user}"


def _named(visit: Visit, *, is_there: bool = True) -> str:
    """Return a visit with the name in its row, while the row is there."""
    name = _name(visit.user) if is_there else None
    return json.dumps({"n": visit.n, "name": name}, sort_keys=True)


def _result(user: int, start: int, end: int, value: object) -> str:
    return json.dumps({"key": user, "start": start, "end": end, "value": value}, sort_keys=True)


def _place(window: dict[str, Any]) -> tuple[int, list[int]]:
    return window["key"], window["value"]


def canonical(result: bytes) -> str:
    """Return a result with its numbers in order: their order depends on decisions about times."""
    value = json.loads(result)
    if "value" in value and "key" in value and isinstance(value["value"], list):
        value["value"].sort()
    return json.dumps(value, sort_keys=True)
