"""Timers on disk: as a sorted list has them, with states and in no more memory (I2, I4, I5, I6)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from meander.dataflow.operators.keyed.spilling_queue import SpillingQueue
from meander.dataflow.operators.keyed.timer_queue import TIMER_BYTES
from meander.dataflow.operators.keyed.timers import Timers
from meander.state.encoding.timers import COUNT_ROW, ROW, Timer, index_key, tag_of
from meander.state.keys.ids import Bin, CheckpointId, ExecutionId
from meander.state.store import timer_rows
from meander.state.store.store import RowChange, Store
from meander.state.store.timer_rows import TimerRows
from tests.support.state.timers import carried, new_store, new_timers

BINS = [Bin(n) for n in range(4)]
NEAR = 5 * TIMER_BYTES
"""The bytes of about five timers."""
KEYS = [b"\xa2%d%d" % (bin, n) for bin in BINS for n in range(6)]


def bin_of(tag: bytes) -> Bin:
    return Bin(tag[1] - ord("0"))


@pytest.fixture(autouse=True)
def few_pending_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows reach the store, and a slice be small."""
    monkeypatch.setattr(timer_rows, "PENDING_ROWS", 3)


@dataclass
class Model:
    """Timers beside a sorted list of them."""

    rng: random.Random
    store: Store = field(default_factory=new_store)
    expected: list[Timer] = field(default_factory=list)
    now: int = 0
    most: int = 0
    departures: dict[Bin, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.timers = new_timers(NEAR, self.store)

    def act(self) -> None:
        """Do anything to both."""
        rng, key = self.rng, self.rng.choice(KEYS)
        name = rng.choice(["", "", "x", "xy"])
        what = rng.choices(
            ["set", "cancel", "fire", "depart", "move", "restart", "rollback"],
            [60, 15, 12, 1, 2, 1, 1],
        )[0]
        if what == "set":
            self.set(key, name, self.now + 1 + rng.choice([rng.randrange(9), rng.randrange(200)]))
        elif what == "cancel" and name:
            self.forget(tag_of(key, name))
            self.timers.cancel(bin_of(key), key, name)
        elif what == "fire":
            self.fire(self.now + rng.randrange(30), rng.choice([1, 5, 1000]))
        elif what == "depart" and (bin := bin_of(key)) not in self.departures:
            self.departures[bin] = self.now + rng.randrange(60)
            self.timers.start_departure(bin, self.departures[bin])
        elif what == "move" and self.departures:
            self.move(rng.choice([*self.departures]))
        elif what == "restart":
            self.restart()
        elif what == "rollback":
            self.roll_back()
        self.most = max(self.most, self.timers.size)

    def set(self, key: bytes, name: str, time: int) -> None:
        tag = tag_of(key, name)
        if name:
            self.forget(tag)
        if (time, tag) not in self.expected:
            self.expected.append((time, tag))
            self.expected.sort()
        self.timers.set(bin_of(key), time, key, name)

    def forget(self, tag: bytes) -> None:
        self.expected = [timer for timer in self.expected if timer[1] != tag]

    def fire(self, until: int, count: int) -> None:
        here = [one for one in self.expected if one[0] < self.end(bin_of(one[1]))]
        due = [timer for timer in here if timer[0] < until][:count]
        least = self.timers.least
        if self.expected:
            assert least is not None and least <= self.expected[0][0], "its time is held (I1)"
        assert self.timers.peek(until, count) == due
        for timer in due:
            key, name = self.timers.split(timer[1])
            assert tag_of(key, name) == timer[1] and bool(name) == (len(timer[1]) > len(KEYS[0]))
            assert self.timers.first == self.timers.pop() == timer
        self.expected = [timer for timer in self.expected if timer not in due]
        if len(due) < count:
            self.now = max(self.now, until)

    def end(self, bin: Bin) -> int:
        return self.departures.get(bin, 1 << 40)

    def move(self, bin: Bin) -> None:
        """Let a bin leave, and come back from a store elsewhere."""
        self.fire(max(self.now, self.departures[bin]), 10_000)
        near, there = carried(self.timers, self.store, bin)
        assert near == [], "what is due before has fired"
        del self.departures[bin]
        arrived = TimerRows(there)
        rows = [row for row in there.scan(bin) if row[0].startswith(ROW)]
        assert arrived.open(bin) == bool(rows)
        entries = [*there.scan(bin)]
        self.store.drop(bin)
        self.store.install(bin, [key for key, _ in entries], [state for _, state in entries])
        self.timers.install(bin, near)

    def restart(self) -> None:
        """Start again from the entries of the store, and the near timers."""
        self.timers.settle()
        near = {bin: self.timers.near(bin) for bin in BINS}
        other = new_store()
        for bin in BINS:
            entries = [*self.store.scan(bin)]
            other.install(bin, [key for key, _ in entries], [state for _, state in entries])
        self.begin(other, near)

    def roll_back(self) -> None:
        """Go on for a while, and return to where it was."""
        self.timers.settle()
        at = CheckpointId(ExecutionId(1), self.rng.randrange(1 << 30))
        self.store.record_checkpoint(at, {bin: self.timers.near(bin) for bin in BINS})
        before = [*self.expected], self.now, {**self.departures}
        self.departures = {**self.departures}
        for _ in range(10):
            key = self.rng.choice(KEYS)
            self.set(key, self.rng.choice(["", "x"]), self.now + 1 + self.rng.randrange(99))
            self.fire(self.now + self.rng.randrange(9), 3)
        self.expected, self.now, self.departures = before
        self.begin(self.store, self.store.rollback(at, BINS))

    def begin(self, store: Store, near: Any) -> None:
        self.store, self.timers = store, new_timers(NEAR, store)
        for bin in BINS:
            self.timers.install(bin, near[bin])
        for bin, time in self.departures.items():
            self.timers.start_departure(bin, time)


def run_of(seed: int, steps: int = 300) -> Model:
    model = Model(random.Random(seed))
    for _ in range(steps):
        model.act()
    for bin in [*model.departures]:
        model.move(bin)
    model.fire(1 << 40, 1 << 20)
    assert model.expected == [] and model.timers.first is None
    model.timers.settle()
    assert [row for bin in BINS for row in model.store.scan(bin)] == [], "no row stays"
    return model


def runs_of(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run_of(seed)


@pytest.mark.parametrize("seed", range(60))
def test_timers_on_disk_fire_as_those_of_a_sorted_list(seed: int) -> None:
    """I2, I5 and I6: through moves, restarts and rollbacks. Near ones stay within their bound but
    for those that a bin brings along."""
    assert run_of(seed).most <= 3 * NEAR


def test_the_store_counts_rows_apart_from_keys() -> None:
    timers = new_timers(1, store := new_store())
    timers.set(BINS[0], 9, KEYS[0])
    timers.set(BINS[0], 8, KEYS[1], "x")
    timers.settle()
    assert next(key for key, _ in store.scan(BINS[0])) == COUNT_ROW
    assert (store.keys, store.count(BINS[0])) == (0, 4)
    other = new_store()
    entries = [*store.scan(BINS[0])]
    other.install(BINS[0], [key for key, _ in entries], [state for _, state in entries])
    new_timers(1, other).install(BINS[0], [])
    assert other.keys == 0


def test_a_timer_that_is_put_off_before_its_row_is_written_takes_no_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timer_rows, "PENDING_ROWS", 1000)
    timers = new_timers(1, store := new_store())
    for time in range(100, 200):
        timers.set(BINS[0], time, KEYS[0], "idle")
    timers.settle()
    assert store.count(BINS[0]) == 3, "its row, its index row and the count"
    assert sorted(store.pop_changes(BINS[0])) == [key for key, _ in store.scan(BINS[0])]


def test_many_timers_of_one_time_stay_within_the_bound() -> None:
    """I6: also where all of them are due at once."""
    timers = new_timers(NEAR)
    tags = [b"\xcd%s" % n.to_bytes(2, "big") for n in range(2000)]
    for tag in random.Random(1).sample(tags, len(tags)):
        timers.set(Bin(tag[-1] % 4), 7, tag)
    found = []
    while (first := timers.first) is not None:
        assert timers.size <= 2 * NEAR
        found.append(timers.pop())
        assert first == found[-1]
    assert found == [(7, tag) for tag in tags]


# -- planted bugs

_load_rows, _add, _write_rows = TimerRows.load, TimerRows.add, Store.write_rows
_set_horizon = SpillingQueue._set_horizon


def _horizon_stays(queue: SpillingQueue, bin: Bin, timer: Timer) -> None:
    """A timer that becomes far behind the first horizon leaves it as it is."""
    if queue._horizon(bin) is None:
        _set_horizon(queue, bin, timer)


def _without_index(rows: TimerRows, bin: Bin, clock: Any, timer: Timer, **options: Any) -> None:
    _add(rows, bin, clock, timer, named=False, new=options.get("new", False))


def _index_stays(rows: TimerRows, bin: Bin, tag: bytes) -> bool:
    """Only the index row of a cancelled timer goes."""
    found = rows._find(bin, index_key(tag))
    if found is not None:
        key = index_key(tag)
        rows._set(RowChange(bin, key, found, None))
    return found is not None


def _rows_stay(rows: TimerRows, *args: Any, **options: Any) -> Any:
    """Timers that become near stay far as well."""
    found = _load_rows(rows, *args, **options)
    rows._pending.clear()
    return found


def _unrecorded(store: Store, rows: Any) -> None:
    """A rollback does not know of rows."""
    undo, store._undo = store._undo, type(store._undo)()
    _write_rows(store, rows)
    store._undo = undo


def _unsettled(rows: TimerRows, bin: Bin | None = None) -> None:
    """A bin leaves, and a checkpoint begins, ahead of the last rows."""


def _closed(rows: TimerRows, bin: Bin) -> bool:
    """The rows of a bin that arrives are not seen."""
    return False


BUGS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "the horizon is not moved": (SpillingQueue, "_set_horizon", _horizon_stays),
    "an index row is forgotten": (TimerRows, "add", _without_index),
    "a cancelled timer keeps its row": (TimerRows, "cancel", _index_stays),
    "rows are left after timers have fired": (TimerRows, "load", _rows_stay),
    "a rollback leaves rows as they are": (Store, "write_rows", _unrecorded),
    "rows are lost where a bin leaves": (TimerRows, "settle", _unsettled),
    "rows are lost where a bin arrives": (TimerRows, "open", _closed),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, planted = BUGS[bug]
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises(AssertionError):
        runs_of(range(20))


def test_timers_have_no_bound_but_that_of_near_ones() -> None:
    """I6: what is far is on disk."""
    timers: Timers = new_timers(NEAR)
    for n in range(3000):
        timers.set(BINS[n % 4], n * 7919 % 3001, KEYS[n % 4], f"n{n}")
        assert timers.size <= 2 * NEAR
