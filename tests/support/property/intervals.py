"""Random flows that join two streams by own times, and what they give: from all records at once.

The reference knows no timers, no states and no closes of keys: it compares each left record with
each right one, and then says where the results stand in the total order.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from meander import KeyedStream
from meander.dataflow.operators.keyed.callbacks import Call
from meander.state.encoding import codec
from meander.state.keys.bins import BinSpace
from tests.support.property.reference import Record, States, in_order
from tests.support.property.windowing import Timed

How = Literal["inner", "left", "outer"]
LEFT, RIGHT = 0, 1
MOST = 40
"""The results of the first join that the second one gets, by key. Few keys may have all records."""


@dataclass(frozen=True)
class Operator:
    """What a join of a random flow does, in milliseconds."""

    low: int
    high: int
    late: int
    how: How

    @property
    def options(self) -> dict[str, Any]:
        return {
            "within": (self.low / 1000, self.high / 1000), "late": self.late / 1000,
            "how": self.how, "step": pair,
        }  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """The two joins of a flow, and whether the first one joins a stream with itself."""

    first: Operator
    second: Operator
    joins_itself: bool


def shape_of(seed: int) -> Shape:
    """The joins of a case."""
    rng = random.Random(f"intervals {seed}")
    return Shape(random_operator(rng), random_operator(rng), rng.random() < 0.3)


def random_operator(rng: random.Random) -> Operator:
    scale = rng.choice([5, 50, 2000])
    low = rng.choice([-2 * scale, -scale, -1, 0, 0, 1, scale])
    high = low + rng.choice([0, 1, scale, 3 * scale])
    late = rng.choice([0, 1, scale // 2, 10 * scale])
    hows: Sequence[How] = ["inner", "left", "outer", "outer"]
    return Operator(low, high, late, rng.choice(hows))


def rows_of(seed: int) -> int:
    """The most records of a block in a case."""
    return random.Random(f"blocks {seed}").choice([1, 2, 5, 64])


# -- as a flow


def pair(left: Any, right: Any) -> object:
    one = right if left is None else left
    v = 3 * (900 if left is None else left["v"]) + 5 * (700 if right is None else right["v"])
    return {"k": one["k"], "v": v % 1009}


def number(context: Any, state: Any, value: Any) -> object:
    if state < MOST:
        context.emit({"k": value["k"], "v": value["v"] + state % 3})
    return state + 1


def number_late(context: Any, state: Any, value: Any) -> object:
    if state < MOST:
        context.emit({"k": value["k"], "v": -value["v"] - 1})
    return state + 1


def define(seed: int, keyed: KeyedStream[Any]) -> KeyedStream[Any]:
    """A join, whose results and late records join with the records again."""
    shape = shape_of(seed)
    left = keyed.filter(is_left)
    right = aside(left) if shape.joins_itself else keyed.filter(is_right)
    made = left.join(right, name="a", **shape.first.options)
    told = made.connect(made.side("late"), "b", int, number, number_late)
    return told.join(aside(keyed.filter(is_other)), name="c", **shape.second.options)


def is_left(value: Any) -> bool:
    return bool(value["v"] % 3 == 0)


def is_right(value: Any) -> bool:
    return bool(value["v"] % 3 == 1)


def is_other(value: Any) -> bool:
    return bool(value["v"] % 3 == 2)


def aside(keyed: KeyedStream[Any]) -> KeyedStream[Any]:
    """The same records at other places of the total order, so that no two results have one."""
    return keyed.flat_map(lambda value: [None, value]).filter(lambda value: value is not None)


# -- as a reference


def expected(seed: int, records: Sequence[Timed]) -> tuple[list[Record], States]:
    """Results and final states of the flow of a seed."""
    shape = shape_of(seed)
    left = [one for one in records if is_left(one.value)]
    right = [one for one in records if is_right(one.value)]
    made, late = joined(shape.first, 1, left, _aside(left) if shape.joins_itself else right)
    told, states = numbered(made, late)
    others = _aside([one for one in records if is_other(one.value)])
    found, _ = joined(shape.second, 3, told, others)
    return in_order([Record(r.order, r.value) for r in found]), {"a": {}, "b": states, "c": {}}


def _aside(records: Sequence[Timed]) -> list[Timed]:
    return [Timed((*r.order[:4], r.order[4] << 20 | 1), r.value, r.at) for r in records]


def numbered(made: Sequence[Timed], late: Sequence[Timed]) -> tuple[list[Timed], Any]:
    """What the operator between the joins makes of both outputs of the first one."""
    states: dict[bytes, Any] = defaultdict(int)
    found = list[Timed]()
    for side, one in _in_order(made, late):
        key = codec.encode(one.value["k"])
        v = -one.value["v"] - 1 if side else one.value["v"] + states[key] % 3
        states[key] += 1
        if states[key] <= MOST:
            order = (*one.order[:4], one.order[4] << 20)
            found.append(Timed(order, {"k": one.value["k"], "v": v}, one.at))
    return found, dict(states)


def joined(
    operator: Operator, origin: int, left: Sequence[Timed], right: Sequence[Timed]
) -> tuple[list[Timed], list[Timed]]:
    """Return the results of a join, and the late records."""
    arrivals = _in_order(left, right)
    late = [one for _, one in arrivals if one.ms > one.at + operator.late]
    kept = [(n, side, one) for n, (side, one) in enumerate(arrivals) if one not in late]
    pairs = [
        (first, second, one, other)
        for first, side, one in kept
        for second, other_side, other in kept
        if (side, other_side) == (LEFT, RIGHT)
        and one.value["k"] == other.value["k"]
        and one.at + operator.low <= other.at <= one.at + operator.high
    ]
    found = list[Timed]()
    for n, _, one in kept:
        # The partners that have come before, in the order of own times and of arrival.
        before = sorted(
            ((right if first == n else left).at, min(first, second), left, right)
            for first, second, left, right in pairs
            if n == max(first, second)
        )
        values = [
            (pair(left.value, right.value), max(left.at, right.at)) for *_, left, right in before
        ]
        found += _placed(one.order, values)
    met = {n for first, second, *_ in pairs for n in (first, second)}
    found += _alone(operator, origin, [entry for entry in kept if entry[0] not in met])
    sent = [Timed((*one.order[:4], one.order[4] << 20), one.value, one.at) for one in late]
    return found, sent


def _alone(
    operator: Operator, origin: int, unpaired: Sequence[tuple[int, int, Timed]]
) -> list[Timed]:
    """The results of records without a partner: at their closes, by key."""
    found, by_close = list[Timed](), defaultdict[tuple[int, bytes], list[Any]](list)
    for _, side, one in unpaired:
        if operator.how == "inner" or (operator.how == "left" and side == RIGHT):
            continue
        value = pair(None, one.value) if side else pair(one.value, None)
        last = one.at + (-operator.low if side else operator.high)
        close, own = last + operator.late + 1, max(one.at, last)
        if close <= one.ms:
            found += _placed(one.order, [(value, own)])
        else:
            by_close[close, codec.encode(one.value["k"])].append((side, (value, own)))
    for (close, key), some in by_close.items():
        time, hashed = (close << 20) - 1, int(BinSpace(0).hash_keys([key]).view("int64")[0])
        place = time, origin, hashed, Call(time, "timer", key).offset, 0
        values = [value for side in (LEFT, RIGHT) for of, value in some if of == side]
        found += _placed(place, values)
    return found


def _placed(order: Any, values: Sequence[tuple[object, int]]) -> list[Timed]:
    """Results of one input, each with its own time."""
    return [
        Timed((*order[:4], (order[4] << 20) | n), value, at) for n, (value, at) in enumerate(values)
    ]


def _in_order(left: Sequence[Timed], right: Sequence[Timed]) -> list[tuple[int, Timed]]:
    """Both inputs in the order in which an operator takes them."""
    both = [(LEFT, one) for one in left] + [(RIGHT, one) for one in right]
    return sorted(both, key=lambda e: (e[1].order, e[0], codec.encode(e[1].value)))
