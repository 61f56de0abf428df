"""Random flows with tables, and what they give: each table as a function from times to rows.

The reference knows no states, notifications or stages: it looks up the newest row of a key at a
time, and compares a joined table with itself at the time before. The states that operators keep
are listed beside it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meander import KeyedStream
from meander.dataflow.api.joined import How
from meander.dataflow.tables.copies import entry_key
from meander.state.encoding import codec
from meander.state.keys.bins import BinSpace
from tests.support.property import shapes
from tests.support.property.reference import Dues, Record, Refusals, States, in_order

Rows = Mapping[Any, Any]
"""The rows of a table at a time, by key."""
FIRST_ORIGIN = 2
"""The number of the first operator, behind both sources."""


@dataclass(frozen=True)
class Joins:
    """What the joins of a random flow do."""

    swapped: bool
    """Whether the source that is defined first has the table."""
    how: How
    on: bool
    copies: bool
    ttl: int | None
    """The milliseconds for which a row lives."""
    second: How
    foreign: bool
    """Whether the tables join by a foreign key."""


def joins_of(seed: int, bits: int) -> Joins:
    """The joins of a case. Each bin has a copy only where there are few."""
    rng = random.Random(f"tables {seed}")
    hows: Sequence[How] = "inner", "left"
    on = rng.random() < 0.6
    return Joins(
        rng.random() < 0.5, rng.choice(hows), on, on and bits <= 2 and rng.random() < 0.7,
        rng.choice([None, None, 3, 300, 20_000]), rng.choice(hows), rng.random() < 0.5,
    )  # fmt: skip


# -- as a flow


def change(record: Any) -> tuple[int, int | None]:
    """A change of the table: partitions share its keys."""
    return record["k"] % 5, None if record["v"] % 3 == 0 else record["v"]


def customer(order: Any) -> int:
    """The key that an order looks up."""
    key: int = (order["k"] + order["v"]) % 7
    return key


def answer(order: Any, row: Any) -> dict[str, object]:
    """The result of an order with its row."""
    if order["v"] == 9:
        raise shapes.Refused
    return {"k": order["k"], "v": [order["v"], row]}


def left_change(result: Any) -> tuple[int, list[Any] | None]:
    """A change of the left table."""
    return result["k"], None if result["v"][0] % 4 == 0 else result["v"]


def foreign_key(row: Any) -> int | None:
    """The foreign key of a left row."""
    number: int = row[0]
    return None if number == 3 else number % 5


def both(left: Any, right: Any) -> list[Any]:
    """The row of a joined table."""
    return [left, right]


def define(
    seed: int, bits: int, first: KeyedStream[Any], other: KeyedStream[Any]
) -> KeyedStream[Any]:
    """A stream joined with a table, whose results are a table that joins with this table again."""
    joins = joins_of(seed, bits)
    orders, changes = (other, first) if joins.swapped else (first, other)
    table = changes.table(change, "rows", ttl=None if joins.ttl is None else joins.ttl / 1000)
    options: dict[str, Any] = {"how": joins.how, "step": answer, "name": "a"}
    if joins.on:
        options |= {"on": customer, "copies": "everywhere" if joins.copies else "one"}
    left = orders.join(table, **options).table(left_change, "left")
    more: dict[str, Any] = {"on": foreign_key} if joins.foreign else {}
    return left.join(table, how=joins.second, step=both, name="b", **more).changes("c")


# -- as a reference


def expected(
    seed: int, bits: int, first: Sequence[Record], other: Sequence[Record]
) -> tuple[list[Record], States, Refusals, Dues]:
    """Results, final states, what is set aside, and when the states of the first join expire."""
    joins, refused = joins_of(seed, bits), Refusals()
    orders, changes = (other, first) if joins.swapped else (first, other)
    table = History(in_order(changes), change, joins.ttl)
    results = list[Record]()
    for order in in_order(orders):
        key = customer(order.value) if joins.on else shapes.key(order.value)
        row = table.at(order.order[0]).get(key)
        if row is None and joins.how == "inner":
            continue
        try:
            results.append(Record(order.order, answer(order.value, row)))
        except shapes.Refused:
            refused.append(("a", order.value))
    left = History(results, left_change, None)
    joined = Joined(joins, left, table)
    states, dues = joined.states(), Dues()
    newest = {key: (time, row) for time, key, row in table.changes}
    for key, (time, row) in newest.items():
        spaces = range(1 << bits) if joins.copies else [None]
        names = [codec.encode(key) if bin is None else entry_key(bin, key) for bin in spaces]
        states.setdefault("a", {}).update(dict.fromkeys(names, row) if row is not None else {})
        if row is not None and joins.ttl is not None:
            due = ((time >> 20) + joins.ttl) << 20
            dues.setdefault("a", {}).update(dict.fromkeys(names, due))
    states.setdefault("a", {})
    return joined.results(), states, refused, dues


class History:
    """All changes of a table in their order, and so its rows at each time."""

    def __init__(
        self,
        records: Sequence[Record],
        function: Callable[[Any], tuple[Any, Any]],
        ttl: int | None,
    ) -> None:
        self.changes = [(one.order[0], *function(one.value)) for one in records]
        self._ttl = ttl

    @property
    def times(self) -> set[int]:
        """The times at which rows may change, by a record or by their end."""
        ends = {self._end(time) for time, _, row in self.changes if row is not None}
        return {time for time, *_ in self.changes} | (ends if self._ttl is not None else set())

    def at(self, time: int) -> Rows:
        """The rows at a time."""
        newest = {key: (since, row) for since, key, row in self.changes if since <= time}
        return {
            key: row for key, (since, row) in newest.items()
            if row is not None and (self._ttl is None or time < self._end(since))
        }  # fmt: skip

    def _end(self, since: int) -> int:
        return ((since >> 20) + (self._ttl or 0)) << 20


@dataclass(frozen=True)
class Joined:
    """Two tables as one."""

    joins: Joins
    left: History
    right: History

    @property
    def times(self) -> list[int]:
        """The times at which rows may change."""
        return sorted(self.left.times | self.right.times)

    def at(self, time: int) -> Rows:
        """The rows at a time."""
        right, found = self.right.at(time), dict[Any, Any]()
        for key, row in self.left.at(time).items():
            other = right.get(foreign_key(row) if self.joins.foreign else key)
            if other is not None or self.joins.second == "left":
                found[key] = both(row, other)
        return found

    def results(self) -> list[Record]:
        """The changes of the rows, each by a notification at its time."""
        operators = 3 if self.joins.foreign else 1
        origin = FIRST_ORIGIN + 1 + (self.joins.ttl is not None) + operators
        found, before = list[Record](), dict[Any, Any]()
        for time in self.times:
            after = {**self.at(time)}
            for key in before.keys() | after.keys():
                told = {"key": key, "before": before.get(key), "after": after.get(key)}
                if told["before"] != told["after"]:
                    place = time, origin, hash_of(key), 1, 0
                    found.append(Record(place, told))
            before = after
        return in_order(found)

    def states(self) -> States:
        """The states that the operators keep in the end."""
        end = 1 << 62
        left, right, both_ = self.left.at(end), self.right.at(end), self.at(end)
        states: States = {"c": {codec.encode(key): [row, None] for key, row in both_.items()}}
        if self.joins.ttl is not None:
            states["rows expiry"] = {}
        if not self.joins.foreign:
            states["b"] = {
                codec.encode(key): [[left.get(key), right.get(key)], None]
                for key in left.keys() | right.keys()
            }
            return states
        lists = self._left_rows()
        states["b left"] = {codec.encode(k): [[foreign_key(row)], None] for k, row in left.items()}
        states["b pairs"] = {
            codec.encode(key): [right.get(key), lists[key], {}, None]
            for key in lists.keys() | right.keys()
            if lists[key] or key in right
        }
        states["b"] = {codec.encode(key): [True, None] for key in both_}
        return states

    def _left_rows(self) -> defaultdict[Any, dict[bytes, Any]]:
        """The left rows at each foreign key, in the order in which they came."""
        lists: defaultdict[Any, dict[bytes, Any]] = defaultdict(dict)
        at = dict[Any, Any]()
        for time in self.times:
            rows = self.left.at(time)
            for key in sorted({k for t, k, _ in self.left.changes if t == time}, key=hash_of):
                name, row = codec.encode(key), rows.get(key)
                if key in at and (row is None or at[key] != foreign_key(row)):
                    lists[at.pop(key)].pop(name, None)
                if row is not None:
                    at[key] = foreign_key(row)
                    lists[at[key]][name] = (key, row)
        return lists


def hash_of(key: object) -> int:
    """The place of a key among those that are called at one time."""
    return int(BinSpace(0).hash_keys([codec.encode(key)]).view("int64")[0])
