"""Random flows with windows, and what they give: computed from all records of a key at once.

The reference knows no timers and no states: it lists the windows that the own times make, and of
each the records that are not late for it. Sessions alone depend on the order, as a closed one takes
no more records; it lists their members again with each record.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from meander import (
    KeyedStream,
    ProcessedStream,
    Window,
    columns,
    count,
    hopping,
    session,
    sliding,
    tumbling,
)
from meander.dataflow.api.windowed import Emit
from meander.dataflow.operators.keyed.callbacks import Call
from meander.dataflow.windows.window import Counts, Hopping, Sessions, Sliding, Windows
from meander.state.encoding import codec
from meander.state.keys.bins import BinSpace
from tests.support.property import shapes
from tests.support.property.reference import Order, Record, Refusals, States, in_order


@dataclass(frozen=True)
class Operator:
    """What an operator of a random flow does."""

    windows: Windows
    emit: Emit
    aggregate: str = "list"
    """The name of what it makes of the values: a fold of rows, or over columns."""
    failing: Literal["step", "close"] | None = None
    """The function that raises for some records or windows."""

    def refuses(self, record: Timed) -> bool:
        """Return whether the function of a record raises."""
        return self.failing == "step" and record.value["v"] % 5 == 2

    def loses(self, members: Sequence[Timed]) -> bool:
        """Return whether the function of a close raises."""
        return self.failing == "close" and sum(one.value["v"] for one in members) % 3 == 1

    def taken(self, record: Timed) -> int:
        """Return the value of a record for the aggregate, which may use own times."""
        own = record.at % 10 if self.aggregate == "append" else 0
        return int(record.value["v"]) + own

    def state(self, records: Sequence[Timed]) -> Any:
        """Return the state of an incomplete window by its records, in order."""
        values = [*map(self.taken, records)]
        match self.aggregate:
            case "list":
                return values
            case "append":
                return (tuple(values),)
            case "mean":
                return len(values), float(sum(values))
            case "max":
                return 1, max(values)
            case _:
                return (self.give(records),)

    def give(self, records: Sequence[Timed]) -> Any:
        """Return the result of a window by its records, in order."""
        values = [*map(self.taken, records)]
        match self.aggregate:
            case "count":
                return len(values)
            case "sum":
                return sum(values)
            case "mean":
                total = 0.0
                for value in values:
                    total += value
                return total / len(values)
            case "last":
                return values[-1]
            case "max":
                return max(values)
            case _:
                return values


class Timed(NamedTuple):
    """A record with its own time."""

    order: Order
    value: Any
    at: int

    @property
    def ms(self) -> int:
        return self.order[0] >> 20


def appended(states: Any, values: Any, event_ms: Any) -> Any:
    """A step over columns that does not commute, and uses own times."""
    after, taken = np.empty(len(values), object), (values + event_ms % 10).tolist()
    after[:] = [(*state, value) for state, value in zip(states[0], taken, strict=True)]
    return (after,), after


def joined(earlier: Any, later: Any) -> Any:
    after = np.empty(len(earlier[0]), object)
    after[:] = [(*a, *b) for a, b in zip(earlier[0], later[0], strict=True)]
    return (after,)


def listed(states: Any) -> Any:
    found = np.empty(len(states[0]), object)
    found[:] = [[*state] for state in states[0]]
    return found


FOLDS = {
    "count": columns.count(), "sum": columns.sum("v", "int64"), "max": columns.max("v", "int64"),
    "mean": columns.mean("v"), "last": columns.last("v"),
    "append": columns.ColumnFold(
        ((),), appended, ("object",), "int64", "v", ("event_ms",), merge=joined, result=listed
    ),
}  # fmt: skip
"""Folds over columns: of numbers and of objects, with a grouped step and without one."""


def operators_of(seed: int) -> tuple[Operator, Operator]:
    """The two operators with windows of a case."""
    rng, failing = random.Random(f"windows {seed}"), random.Random(f"failing {seed}")
    operators = [random_operator(rng, columnar=seed % 3 != 0) for _ in range(2)]
    first, second = (some_failing(one, failing) for one in operators)
    return first, second


def some_failing(operator: Operator, rng: random.Random) -> Operator:
    """The same operator, some of whose functions of rows may raise."""
    failing: Literal["step", "close"] | None = rng.choice([None, None, "step", "close"])
    of_rows = operator.aggregate == "list" and not isinstance(operator.windows, Sliding)
    if not of_rows or (failing == "close" and operator.emit != "closed"):
        return operator
    return replace(operator, failing=failing)


def random_operator(rng: random.Random, columnar: bool) -> Operator:
    scale = rng.choice([0.01, 0.1, 2.0])
    late = rng.choice([0.0, 0.3, 2.0, 20.0]) * scale
    kinds: list[Windows] = [
        tumbling(scale, late=late, offset=rng.choice([0, 0.003])),
        hopping(scale, every=scale / rng.choice([1.5, 2, 4]), late=late),
        session(scale, longest=rng.choice([None, scale, 3 * scale]), late=late),
        session(scale / 4, longest=rng.choice([None, scale]), late=late),
        sliding(scale, late=late),
        count(rng.choice([1, 2, 5])),
    ]
    windows = rng.choice(kinds)
    emits: list[Emit] = ["closed", "closed", "each"]
    if isinstance(windows, Hopping | Sessions):
        emits += [scale / 3, 1.3 * scale]
    emit = rng.choice(emits)
    # Columns have the seeds' own choice, so that a fold of rows keeps the cases it has.
    aggregate = rng.choice([*FOLDS, "list"]) if columnar else "list"
    return Operator(windows, emit, aggregate)


# -- as a flow


def append(state: Any, value: Any) -> list[int]:
    return [*state, value["v"]]


def picky(state: list[int], value: Any) -> list[int]:
    """Fails half-way: the state has changed."""
    state.append(value["v"])
    if value["v"] % 5 == 2:
        raise shapes.Refused
    return state


def append_in_process(context: Any, state: Any, value: Any) -> list[int]:
    return append(state, value)


def close(context: Any, state: Any) -> None:
    context.emit({"key": context.key, **context.window._asdict(), "value": state})
    if sum(state) % 3 == 1:
        raise shapes.Refused


def both(earlier: Any, later: Any) -> list[int]:
    return [*earlier, *later]


def total(value: Any) -> int:
    return sum(value) if isinstance(value, list) else int(value)


def number(context: Any, state: Any, result: Any) -> object:
    context.emit({"k": result["key"], "v": 1000 * (state + 1) + total(result["value"])})
    return state + 1


def number_late(context: Any, state: Any, value: Any) -> object:
    context.emit({"k": value["k"], "v": -1000 * (state + 1) - value["v"]})
    return state + 1


def define(seed: int, keyed: KeyedStream[Any]) -> KeyedStream[Any]:
    """Windows, whose results and late records lie in windows again."""
    first, second = operators_of(seed)
    made = applied(keyed, "a", first)
    told = made.connect(made.side("late"), "b", int, number, number_late)
    return applied(told, "c", second)


def applied(keyed: KeyedStream[Any], name: str, operator: Operator) -> ProcessedStream[Any, Any]:
    windowed = keyed.window(name, operator.windows)
    if operator.aggregate != "list":
        return windowed.fold(FOLDS[operator.aggregate], emit=operator.emit)
    if operator.failing == "close":
        return windowed.process(list, append_in_process, close, merge=both)
    step = picky if operator.failing == "step" else append
    return windowed.fold(list, step, merge=both, emit=operator.emit)


# -- as a reference


def expected(seed: int, records: Sequence[Timed]) -> tuple[list[Record], States, Refusals]:
    """Results, final states and refused records of the flow of a seed."""
    first, second = (
        Reference(one, origin) for one, origin in zip(operators_of(seed), (1, 3), strict=True)
    )
    results, late, a = first.run(records)
    told, b = numbered(results, late)
    found, _, c = second.run(told)
    refused: Refusals = [("a", one) for one in first.refused] + [("c", o) for o in second.refused]
    written = in_order([Record(one.order, one.value) for one in found])
    return written, {"a": a, "b": b, "c": c}, refused


def numbered(results: Sequence[Timed], late: Sequence[Timed]) -> tuple[list[Timed], Any]:
    """What the operator between the windows makes of both outputs of the first ones."""
    sided = [(one, 0) for one in results] + [(one, 1) for one in late]
    states: dict[bytes, Any] = defaultdict(int)
    found = list[Timed]()
    for one, side in sorted(sided, key=lambda e: (e[0].order, e[1], codec.encode(e[0].value))):
        k = one.value["k"] if side else one.value["key"]
        n = states[codec.encode(k)] = states[codec.encode(k)] + 1
        v = -1000 * n - one.value["v"] if side else 1000 * n + total(one.value["value"])
        found.append(Timed((*one.order[:4], one.order[4] << 20), {"k": k, "v": v}, one.at))
    return found, dict(states)


@dataclass
class Session:
    """A session of the reference."""

    records: list[Timed]
    gap: int
    longest: int
    pending: int | None = None
    """When it gives its next result before its close."""

    @property
    def window(self) -> Window:
        ats = [one.at for one in self.records]
        return Window(min(ats), min(max(ats) + self.gap, min(ats) + self.longest))

    def joined(self, opened: Sequence[Session]) -> list[Session]:
        """Of a session of one record: the open ones that become one with it."""
        own, group, span = self.window, list[Session](), self.window
        for other in sorted(opened, key=lambda m: m.window):
            start, end = other.window
            if start < own.end and own.start < end:
                least, most = min(span.start, start), max(span.end, end)
                if most - least <= self.longest or (not group and start <= own.start):
                    group.append(other)
                    span = Window(least, min(most, least + self.longest))
        return group


@dataclass
class Reference:
    """What one operator with windows gives."""

    operator: Operator
    origin: int
    given: list[tuple[Order, int, Any, int]] = field(default_factory=list)
    """The place of each call that gives a result, the start of its window, the result and its own
    time."""
    refused: list[object] = field(default_factory=list)
    """The values of records whose function raises, and what windows lose whose close does."""

    def run(self, records: Sequence[Timed]) -> tuple[list[Timed], list[Timed], dict[bytes, object]]:
        """Return results, late records and the final states."""
        by_key: dict[bytes, list[Timed]] = defaultdict(list)
        for one in sorted(records, key=lambda r: (r.order, codec.encode(r.value))):
            by_key[codec.encode(one.value["k"])].append(one)
        late, states = list[Timed](), dict[bytes, object]()
        for key, some in by_key.items():
            match self.operator.windows:
                case Hopping() as windows:
                    late += self._fixed(key, some, windows)
                case Sessions() as windows:
                    late += self._sessions(key, self._accepted(some, windows), windows)
                case Sliding() as windows:
                    late += self._sliding(key, some, windows)
                case Counts(size):
                    if rest := self._counts(some, size):
                        state = self.operator.state(rest)
                        states[key] = [*_extent(rest), len(rest), state]
        sent = [Timed((*r.order[:4], r.order[4] << 20), r.value, r.at) for r in late]
        return [*self._placed()], sent, states

    def _placed(self) -> Iterator[Timed]:
        calls: dict[Order, list[tuple[int, Any, int]]] = defaultdict(list)
        for place, start, result, at in self.given:
            calls[place].append((start, result, at))
        for place, some in calls.items():
            for i, (_, result, at) in enumerate(sorted(some, key=lambda one: one[0])):
                yield Timed((*place[:4], (place[4] << 20) | i), result, at)

    def _at_record(self, by: Timed, window: Window, members: Sequence[Timed]) -> None:
        self.given.append((by.order, window.start, self._result(window, members), by.at))

    def _at_close(self, key: bytes, close: int, window: Window, members: Sequence[Timed]) -> None:
        if self.operator.loses(members):
            lost = self._result(window, members)
            lost["state"] = lost.pop("value")
            self.refused.append(lost)
        else:
            self._before(key, close, window.start, window, members)

    def _before(
        self, key: bytes, ms: int, name: int, window: Window, members: Sequence[Timed]
    ) -> None:
        """By the timer of a name at the last time before a millisecond."""
        time, hashed = (ms << 20) - 1, int(BinSpace(0).hash_keys([key]).view("int64")[0])
        place = time, self.origin, hashed, Call(time, "timer", key, str(name)).offset, 0
        result = self._result(window, members)
        self.given.append((place, window.start, result, min(ms, window.end) - 1))

    def _boundary(self, ms: int) -> int | None:
        emit = self.operator.emit
        if isinstance(emit, str):
            return None
        every = round(emit * 1000)
        return (ms // every + 1) * every

    def _fixed(self, key: bytes, records: list[Timed], windows: Hopping) -> list[Timed]:
        def takes(window: Window, one: Timed) -> bool:
            return window.holds(one.at) and one.ms < window.end + windows.late_ms

        def is_late(one: Timed) -> bool:
            return not any(takes(window, one) for window in _holding(windows, one.at))

        refused = [one for one in records if self.operator.refuses(one) and not is_late(one)]
        self.refused += [one.value for one in refused]
        records = [one for one in records if one not in refused]
        for window in {window for one in records for window in _holding(windows, one.at)}:
            members = [one for one in records if takes(window, one)]
            close = window.end + windows.late_ms
            if not members:
                continue
            if self.operator.emit == "each":
                for n, one in enumerate(members, 1):
                    self._at_record(one, window, members[:n])
                continue
            pending: int | None = None
            for n, one in enumerate(members):
                if pending is not None and pending <= one.ms:
                    self._before(key, pending, window.start, window, members[:n])
                    pending = None
                pending = pending or self._boundary(one.ms)
            if pending is not None and pending < close:
                self._before(key, pending, window.start, window, members)
            self._at_close(key, close, window, members)
        return [*filter(is_late, records)]

    def _accepted(self, records: list[Timed], windows: Sessions) -> list[Timed]:
        """The records of a key whose function does not raise, and late ones, which have none."""
        found, accepted = list[Session](), list[Timed]()
        for one in records:
            own = Session([one], windows.gap_ms, windows.longest_ms)
            group = own.joined([m for m in found if m.window.end + windows.late_ms > one.ms])
            if not group and own.window.end + windows.late_ms <= one.ms:
                accepted.append(one)
            elif self.operator.refuses(one):
                self.refused.append(one.value)
            else:
                accepted.append(one)
                own.records = [r for m in group for r in m.records] + [one]
                found = [m for m in found if m not in group] + [own]
        return accepted

    def _sessions(self, key: bytes, records: list[Timed], windows: Sessions) -> list[Timed]:
        found, late = list[Session](), list[Timed]()

        def flush(until: int) -> None:
            for one in found:
                if one.pending is not None and one.pending <= until:
                    self._before(key, one.pending, one.window.start, one.window, one.records)
                    one.pending = None

        for one in records:
            flush(one.ms)
            own = Session([one], windows.gap_ms, windows.longest_ms)
            group = own.joined([m for m in found if m.window.end + windows.late_ms > one.ms])
            if not group and own.window.end + windows.late_ms <= one.ms:
                late.append(one)
                continue
            pendings = [m.pending for m in group] + [self._boundary(one.ms)]
            own.records = [r for m in group for r in m.records] + [one]
            close = own.window.end + windows.late_ms
            own.pending = min((p for p in pendings if p is not None and p < close), default=None)
            found = [m for m in found if m not in group] + [own]
            if self.operator.emit == "each":
                self._at_record(one, own.window, own.records)
        flush(1 << 50)
        if self.operator.emit != "each":
            for m in found:
                self._at_close(key, m.window.end + windows.late_ms, m.window, m.records)
        return late

    def _sliding(self, key: bytes, records: list[Timed], windows: Sliding) -> list[Timed]:
        size, late = windows.size_ms, windows.late_ms
        for at in {one.at for one in records}:
            window, close = Window(at + 1 - size, at + 1), at + 1 + late
            starts = [one for one in records if one.at == at and one.ms < close]
            members = [one for one in records if window.holds(one.at) and one.ms < close]
            if not starts:
                continue
            if self.operator.emit != "each":
                self._before(key, close, at, window, members)
            for n, one in enumerate(members, 1):
                if self.operator.emit == "each" and records.index(one) >= records.index(starts[0]):
                    self._at_record(one, window, members[:n])
        return [one for one in records if one.ms >= one.at + size + late]

    def _result(self, window: Window, members: Sequence[Timed]) -> dict[str, object]:
        k: object = members[0].value["k"]
        value = self.operator.give(members)
        return {"key": k, "start": window.start, "end": window.end, "value": value}

    def _counts(self, records: list[Timed], size: int) -> list[Timed]:
        """Return the records of the incomplete window."""
        members = list[Timed]()
        for one in records:
            full = len(members) + 1 == size
            if self.operator.refuses(one) or (full and self.operator.loses([*members, one])):
                self.refused.append(one.value)
                continue
            members = [*members, one]
            if self.operator.emit == "each" or full:
                self._at_record(one, _extent(members), members)
            if full:
                members = []
        return members


def _holding(windows: Hopping, at: int) -> list[Window]:
    near = range(at - windows.size_ms, at + 1)
    starts = [s for s in near if (s - windows.offset_ms) % windows.every_ms == 0]
    return [Window(s, s + windows.size_ms) for s in starts if s + windows.size_ms > at]


def _extent(members: Sequence[Timed]) -> Window:
    ats = [one.at for one in members]
    return Window(min(ats), max(ats) + 1)
