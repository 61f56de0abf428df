"""The single-threaded reference: no workers, no frontiers, no batches, no migration.

A stage gets all its records at once, sorts them by the total order of the design and applies them
one by one; timers of a time come after the records of that time, in the order of keys and names.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from meander.dataflow.operators.keyed.callbacks import Call
from meander.state.encoding import codec
from meander.state.keys.bins import BinSpace
from tests.support.property import shapes

Order = tuple[int, int, int, int, int]
"""time, origin, partition, offset, index"""


OWN = "own"
"""The lane of a record's own key, or of its partition where it has none."""


@dataclass(frozen=True)
class Record:
    order: Order
    value: object
    side: int = 0
    to: str | None = None
    """The output by which it leaves a process function."""
    lane: object = OWN
    """Those of a lane are written in their order; of None none is kept."""


Refusals = list[tuple[str, object]]
"""What was set aside: the operator's name and the value, which is None for a timer."""


def in_order(records: Sequence[Record]) -> list[Record]:
    return sorted(records, key=lambda r: (*r.order, r.side, codec.encode(r.value)))


def _none(value: object) -> None:
    raise AssertionError(f"{value} is refused, which no function of this shape does")


def fold(
    records: list[Record],
    key: Callable[[object], object],
    init: Callable[[], object],
    step: Callable[[object, object], tuple[object, object]],
    refused: Callable[[object], None] = _none,
    lifetimes: Lifetimes | None = None,
) -> tuple[list[Record], dict[bytes, object]]:
    states: dict[bytes, object] = {}
    lifetimes = lifetimes or Lifetimes()
    results = []
    for record in in_order(records):
        k = codec.encode(key(record.value))
        lifetimes.expire(states, k, record.order[0])
        try:
            state, result = step(deepcopy(states.get(k, init())), record.value)
        except shapes.Refused:
            refused(record.value)
        else:
            lifetimes.renew(states, k, state, record.order[0])
            results.append(Record(record.order, result))
    return results, states


def flat_map(records: list[Record], function: Callable[[object], list[object]]) -> list[Record]:
    return [
        Record((*r.order[:4], (r.order[4] << 20) | i), value)
        for r in records
        for i, value in enumerate(function(r.value))
    ]


class Ask:
    """What the engine calls a context."""

    def __init__(self, key: bytes, time: int, name: str = "") -> None:
        self.key, self.time_ms = codec.decode(key), time >> 20
        self.emitted: dict[str | None, list[object]] = {}
        self.timers: list[tuple[int | None, str]] = []
        """The time and the name of each timer in order; None for the time where it is cancelled."""
        self.timer_name = name or None
        self.forgotten = False

    def emit(self, value: object, to: str | None = None) -> None:
        self.emitted.setdefault(to, []).append(value)

    def timer(self, ms: int, *, name: str | None = None) -> None:
        self.timers.append((ms << 20, name or ""))

    def cancel(self, name: str) -> None:
        self.timers.append((None, name))

    def forget(self) -> None:
        self.forgotten = True


class Pending:
    """The timers of one operator."""

    def __init__(self) -> None:
        self.timers: list[tuple[int, bytes, str]] = []
        """Time, key and name, in this order."""

    def apply(self, key: bytes, ask: Ask) -> None:
        for due, name in ask.timers:
            if name:
                self.timers = [one for one in self.timers if one[1:] != (key, name)]
            if due is not None and (due, key, name) not in self.timers:
                insort(self.timers, (due, key, name))

    def pop(self, origin: int) -> tuple[bytes, str, Order]:
        """Remove the first. Return its key and name, and the place of its results."""
        time, key, name = self.timers.pop(0)
        hashed = int(BinSpace(0).hash_keys([key]).view("int64")[0])
        return key, name, (time, origin, hashed, Call(time, "timer", key, name).offset, 0)


@dataclass
class Lifetimes:
    """How long keys live: for so many milliseconds since each record, a change of their state, or
    their first record."""

    ttl: int | None = None
    since: Literal["record", "write", "create"] = "write"
    dues: dict[bytes, int] = field(default_factory=dict)

    def expire(self, states: dict[bytes, object], key: bytes, time: int) -> None:
        if key in states and self.ttl is not None and self.dues[key] <= time:
            del states[key]

    def renew(self, states: dict[bytes, object], key: bytes, state: object, time: int) -> None:
        before = codec.encode(states[key]) if key in states else b""
        wrote = self.since == "write" and before != codec.encode(state)
        states[key] = state
        if self.ttl is not None and (not before or wrote or self.since == "record"):
            self.dues[key] = ((time >> 20) + self.ttl) << 20


def process(
    records: list[Record],
    key: Callable[[object], object],
    init: Callable[[], object],
    functions: Sequence[Callable[[Ask, object, object], object]],
    on_timer: Callable[[Ask, object], object],
    origin: int,
    refused: Callable[[object], None] = _none,
    lifetimes: Lifetimes | None = None,
) -> tuple[list[Record], dict[bytes, object]]:
    states: dict[bytes, object] = {}
    pending = Pending()
    lifetimes = lifetimes or Lifetimes()
    results: list[Record] = []
    waiting = in_order(records)
    while waiting or pending.timers:
        timers = pending.timers
        if timers and (not waiting or timers[0][0] < waiting[0].order[0]):
            k, name, order = pending.pop(origin)
            ask, value = Ask(k, order[0], name), None
            call = partial(on_timer, ask)
        else:
            record = waiting.pop(0)
            k, order, value = codec.encode(key(record.value)), record.order, record.value
            ask = Ask(k, order[0])
            call = partial(_with_value, functions[record.side], ask, value)
        lifetimes.expire(states, k, order[0])
        try:
            state = call(deepcopy(states.get(k, init())))
        except shapes.Refused:
            refused(value)
            continue
        if ask.forgotten:
            states.pop(k, None)
        else:
            lifetimes.renew(states, k, state, order[0])
        results += [
            Record((*order[:4], (order[4] << 20) | i), emitted, to=to)
            for to, many in ask.emitted.items()
            for i, emitted in enumerate(many)
        ]
        pending.apply(k, ask)
    return results, states


def _with_value(
    function: Callable[[Ask, object, object], object], ask: Ask, value: object, state: object
) -> object:
    return function(ask, state, value)


def joined(left: list[Record], right: list[Record]) -> list[Record]:
    """Two inputs of one operator."""
    return [replace(r, side=0) for r in left] + [replace(r, side=1) for r in right]


States = dict[str, dict[bytes, object]]


def faulty(records: list[Record]) -> tuple[list[Record], States, Refusals]:
    """The shape of that name, and what was set aside."""
    refusals: Refusals = []

    def by(operator: str) -> Callable[[object], None]:
        return lambda value: refusals.append((operator, value))

    kept = []
    for record in records:
        try:
            kept.append(Record(record.order, shapes.holed(record.value)))
        except shapes.Refused:
            by("map")(record.value)
    first, a = process(kept, shapes.key, shapes.empty, [shapes.moody], shapes.sulky, 1, by("a"))
    results, b = fold(first, shapes.key, lambda: (0, 0.0), shapes.mean_of_numbers, by("b"))
    return results, {"a": a, "b": b}, refusals


def sides(records: list[Record]) -> tuple[list[Record], States]:
    """The shape of that name."""
    even, odd = ([r for r in records if shapes.parity(r.value) == p] for p in ("even", "odd"))
    told, a = process(even, shapes.key, shapes.empty, [shapes.sort_out], shapes.ring, 1)
    functions = [shapes.remember, shapes.answer]
    both = joined([r for r in told if r.to is None], [r for r in told if r.to == "rest"])
    met, b = process(both, shapes.key, shapes.empty, functions, shapes.ring, 2)
    results, c = process(joined(met, odd), shapes.key, shapes.empty, functions, shapes.ring, 3)
    return results, {"a": a, "b": b, "c": c}


Dues = dict[str, dict[bytes, int]]
"""The time at which each state expires, by operator and key."""


def forgetting(records: list[Record]) -> tuple[list[Record], States, Dues]:
    """The shape of that name, and when its states expire."""
    lifetimes = {
        "a": Lifetimes(shapes.LONG), "b": Lifetimes(shapes.SHORT, "record"),
        "c": Lifetimes(shapes.LONG, "create"), "d": Lifetimes(shapes.LONG, "record"),
    }  # fmt: skip
    told, a = process(
        records, shapes.key, shapes.empty, [shapes.forgetful], shapes.drowsy, 1,
        lifetimes=lifetimes["a"],
    )  # fmt: skip
    counted, b = fold(told, shapes.key, shapes.zero, shapes.total, lifetimes=lifetimes["b"])
    once, c = process(
        counted, shapes.key, shapes.empty, [shapes.renewed], _no_timer, 3, lifetimes=lifetimes["c"]
    )  # fmt: skip
    mean = fold(once, shapes.key, lambda: (0, 0.0), shapes.mean, lifetimes=lifetimes["d"])
    states = {"a": a, "b": b, "c": c, "d": mean[1]}
    return mean[0], states, {name: one.dues for name, one in lifetimes.items()}


def _no_timer(ask: Ask, state: object) -> object:
    raise AssertionError("no function of this operator sets a timer")


def expected(kind: str, records: list[Record], others: list[Record]) -> tuple[list[Record], States]:
    """Results and final states of a shape; not for "arrival", whose order is not a function."""
    match kind:
        case "chain":
            first, a = fold(records, shapes.key, shapes.zero, shapes.total)
            mapped = [Record(r.order, shapes.double(r.value)) for r in first]
            results, b = fold(mapped, shapes.key, shapes.empty, shapes.trail)
            return results, {"a": a, "b": b}
        case "rekey":
            first, a = fold(records, shapes.key, shapes.zero, shapes.total)
            split = flat_map(first, shapes.parts)
            results, b = fold(split, shapes.third, shapes.empty, shapes.trail)
            return results, {"a": a, "b": b}
        case "timers":
            functions = [shapes.remember]
            first, a = process(records, shapes.key, shapes.empty, functions, shapes.ring, 1)
            results, b = process(first, shapes.key, shapes.empty, [shapes.follow], shapes.ring, 2)
            return results, {"a": a, "b": b}
        case "connect":
            both = joined(records, others)
            functions = [shapes.remember, shapes.answer]
            results, a = process(both, shapes.key, shapes.empty, functions, shapes.ring, 2)
            return results, {"a": a}
        case "sides":
            return sides(records)
        case "alone":
            first, a = fold(records, shapes.key, shapes.zero, shapes.total)
            mapped = [Record(r.order, shapes.double(r.value)) for r in first]
            functions = [shapes.remember, shapes.answer]
            both = joined(mapped, records)
            met, b = process(both, shapes.key, shapes.empty, functions, shapes.ring, 2)
            results, c = fold(met, shapes.key, shapes.empty, shapes.trail)
            return results, {"a": a, "b": b, "c": c}
        case "columns":
            results, a = fold(records, shapes.key, lambda: (0, 0.0), shapes.mean)
            return results, {"a": a}
        case "faulty":
            results, states, _ = faulty(records)
            return results, states
        case "flaky":
            first, a = fold(records, shapes.key, shapes.zero, shapes.total)
            mapped = [Record(r.order, shapes.double(r.value)) for r in first]
            functions = [shapes.remember]
            results, b = process(mapped, shapes.key, shapes.empty, functions, shapes.ring, 2)
            return results, {"a": a, "b": b}
    raise ValueError(kind)
