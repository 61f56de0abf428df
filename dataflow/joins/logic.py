"""The logic of interval joins: it pairs records with those that wait, and gives up the others.

Guarantees that the logs alone decide about pairs, as `interval.py` says, and that a step that
raises takes only its own pair: the record stays, and a dead letter has both values. Invariant: a
key with records that wait has a timer at the last time before the first of their closes, or
earlier. A pass reads and writes the state of a key once. Cost: O(pairs + log n) per record, besides
those of `KeptRecords`, and one timer per close at which records of a key go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from meander.dataflow.joins.interval import LEFT, RIGHT, IntervalJoin
from meander.dataflow.joins.kept_records import Block, KeptRecords, TooManyRecordsError, block_key
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.keyed.callbacks import Call, CallKind, Calls, TimerChange
from meander.dataflow.operators.keyed.logic import (
    LARGEST,
    Applied,
    Sealing,
    StateTooLargeError,
)
from meander.dataflow.operators.stateless import (
    INDEX_LIMIT,
    TooManyLevelsError,
    append_index,
    passed_on,
)
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.extra_columns import EVENT_MS
from meander.state.encoding import codec
from meander.state.encoding.cells import ABSENT
from meander.state.encoding.codec import Sealed
from meander.state.store.store import Bins, StateBatch, Store
from meander.state.times.time import before_millis, checked_millis, from_millis, to_millis

MAX_RESULTS: Final = 1 << 16
"""The results after which a pass ends."""
COUNTER: Final = "join_late"
"""Counts the late records."""
_SIDES: Final = LEFT, RIGHT
_FIRST: Final = -1 << 63
"""The first own time of all."""
_KINDS: Final[tuple[CallKind, ...]] = ("timer",)
_HEAD: Final = 64
"""The bytes of a block of one record besides its value, at most."""


class IntervalLogic:
    """The logic that applies an interval join."""

    call_kinds: Collection[CallKind] = _KINDS

    def __init__(self, join: IntervalJoin, sealing: Sealing, guard: Guard) -> None:
        self._join, self.sealing, self._guard = join, sealing, guard

    def apply(self, store: Store, bins: Bins, rows: Rows, calls: Calls) -> Applied:
        """Pair records with those that wait, and give up those that have closed."""
        assert rows.batch.keys is not None
        keys, all_bins = calls.with_callable_keys(rows.batch.keys, bins)
        with store.open_batch(keys, all_bins) as state_batch:
            kept = _KeptOfPass(state_batch, keys, all_bins)
            one_pass = _Pass(self._join, self._guard, rows, calls, kept)
            one_pass.run()
            kept.write()
        return one_pass.applied()


class _KeptOfPass:
    """The records that wait, of the keys of one pass. Each key is read and written once."""

    def __init__(self, state_batch: StateBatch, keys: Sequence[bytes], bins: Bins) -> None:
        self._batch, self._states = state_batch, state_batch.sealed
        self._slots = dict(zip(keys, state_batch.slots.tolist(), strict=True))
        self._bins = dict(zip(keys, bins.tolist(), strict=True))
        self._kept: dict[bytes, KeptRecords] = {}

    def of(self, key: bytes) -> KeptRecords:
        """Return the records of a key."""
        kept = self._kept.get(key)
        if kept is None:
            sealed = self._states[self._slots[key]]
            stored = None if sealed is ABSENT else codec.unseal(sealed)
            kept = self._kept[key] = KeptRecords(stored, partial(self._block, key))
        return kept

    def write(self) -> None:
        """Write the changed states and blocks."""
        blocks = dict[bytes, object]()
        bins = list[int]()
        while self._kept:
            key, kept = self._kept.popitem()
            if kept.changed:
                self._set(self._slots[key], kept.stored)
                blocks.update(found := dict(_changed_blocks(key, kept)))
                bins += [self._bins[key]] * len(found)
        if blocks:
            slots = self._batch.add([*blocks], np.array(bins, np.int64))
            for slot, stored in zip(slots.tolist(), blocks.values(), strict=True):
                self._set(slot, stored)

    def _block(self, key: bytes, side: int, number: int) -> object:
        bins = np.array([self._bins[key]], np.int64)
        (sealed,) = self._batch.read([block_key(key, side, number)], bins)
        return codec.unseal(sealed)

    def _set(self, slot: int, stored: object | None) -> None:
        """Set a state or a block from its stored form, or with None remove it."""
        if stored is None:
            self._states[slot], self._batch.forgets = ABSENT, True
        else:
            # It holds numbers and bytes only, so it needs no check.
            self._states[slot] = Sealed(codec.encode_sealed(stored))


def _changed_blocks(key: bytes, kept: KeptRecords) -> Iterator[tuple[bytes, object]]:
    """Yield the changed blocks of a key: the keys of their entries, and the stored forms, None for
    a removed one."""
    for number, side in enumerate(kept.sides):
        yield from ((block_key(key, number, one), None) for one in side.removed)
        yield from ((block_key(key, number, one.number), one.stored) for one in side.changed())


Failure = tuple[object, BaseException]
"""A value, or the two of a pair, with the error of its function."""


class _Steps:
    """The calls of a user's function with the pairs of one record, or with the records of one
    close."""

    def __init__(self, join: IntervalJoin, guard: Guard) -> None:
        self._step, self._keepalive = join.step, guard.keepalive
        self.results: list[tuple[object, int]] = []
        """The results, each with its own time."""
        self.failures: list[Failure] = []
        """The pairs on which the function has failed."""

    def call(self, side: int, value: bytes, other: bytes | None, own_ms: int) -> None:
        """Call the function with own copies of the value of a side and the other one, as it may
        change them in place."""
        if self._keepalive.due:
            self._keepalive.send()
        left, right = (value, other) if side == LEFT else (other, value)
        try:
            self.results.append((self._step(_value(left), _value(right)), own_ms))
        except failure() as error:
            self.failures.append(({"left": _value(left), "right": _value(right)}, error))


def _value(data: bytes | None) -> object:
    return None if data is None else codec.decode(data)


class _Record(NamedTuple):
    """A record that is not late."""

    key: bytes
    side: int
    own: int
    now: int
    """The milliseconds of its logical time."""
    close: int
    value: bytes
    kept: KeptRecords
    """The records of its key."""


class _Pass:
    """One pass over records and the timers between and behind them."""

    def __init__(
        self, join: IntervalJoin, guard: Guard, rows: Rows, calls: Calls, kept: _KeptOfPass
    ) -> None:
        self._join, self._interval, self._guard = join, join.interval, guard
        self._batch, self._calls, self._kept = rows.batch, calls, kept
        assert rows.batch.keys is not None
        self._keys, self._sides = rows.batch.keys, rows.inputs.tolist()
        self._times = rows.batch.times.tolist()
        self._own = np.asarray(rows.batch.extra_column(EVENT_MS)).tolist()
        self._done, self._called = 0, list[Call]()
        self._places = list[int]()
        """The row of each result, or the place of its call behind all rows."""
        self._positions = list[int]()
        self._results = list[tuple[object, int]]()
        self._late = list[int]()
        self._timers_changed = True

    def run(self) -> None:
        """Apply records and make calls, in the total order."""
        calls, count, due = self._calls, len(self._times), None
        while self._done + len(self._called) < calls.max_calls and len(self._results) < MAX_RESULTS:
            if self._timers_changed:
                due, self._timers_changed = calls.next(), False
            if self._done < count and (due is None or self._times[self._done] <= due.time):
                if not self._apply(self._done):
                    break
                self._done += 1
            elif due is not None:
                if not self._call(due):
                    break
                self._called.append(due)
            else:
                break

    def applied(self) -> Applied:
        """Return the outcome."""
        self._guard.counters[COUNTER] += len(self._late)
        called = self._calls.batch(self._called) if self._called else None
        every = self._batch if called is None else Batch.concat([self._batch, called])
        late = passed_on(self._batch.take(np.array(self._late, np.int64)))
        rows = self._guard.end_pass(self._done)
        return Applied(self._paired(every), rows, called, [late])

    def _paired(self, every: Batch) -> Batch:
        """Return the results of pairs and of closes. The own time of a pair is the later one of its
        records, in any order of their arrival."""
        rows = every.take(np.array(self._places, np.int64))
        indexes = append_index(rows.indexes, np.array(self._positions, np.int64))
        rows = rows.with_outputs(indexes, [result for result, _ in self._results])
        return rows.with_own_times(np.array([own for _, own in self._results], np.int64))

    def _apply(self, row: int) -> bool:
        """Apply a record. Return whether this is its last call."""
        try:
            record = self._record(row)
        except failure() as error:
            return self._failed([(self._batch.values[row], error)], self._batch, row)
        if record is None:
            self._late.append(row)
            return True
        steps, found = self._pairs(record)
        if steps.failures and not self._failed(steps.failures, self._batch, row):
            return False
        self._add(row, steps)
        if self._join.keeps_alone[1 - record.side]:
            for block, place in found:
                if not block.paired[place]:
                    block.paired[place] = block.changed = record.kept.changed = True
        if record.close > record.now:
            self._keep(record, bool(found))
        return True

    def _record(self, row: int) -> _Record | None:
        """Return what a record needs to pair; None for a late one. Raises an error for a record
        that may not wait."""
        if self._batch.indexes[row] >= INDEX_LIMIT:
            raise TooManyLevelsError
        side, own, key = self._sides[row], self._own[row], self._keys[row]
        now = to_millis(self._times[row])
        if self._interval.is_late(own, now):
            return None
        value = codec.encode(self._batch.values[row])
        if len(value) > LARGEST - len(key) - _HEAD:
            raise StateTooLargeError(len(value), len(key))
        close, kept = checked_millis(self._interval.close(side, own)), self._kept.of(key)
        if kept.sides[side].is_full:
            raise TooManyRecordsError
        return _Record(key, side, own, now, close, value, kept)

    def _pairs(self, record: _Record) -> tuple[_Steps, list[tuple[Block, int]]]:
        """Call the function with the pairs of a record. Return the calls, and the records of the
        other side in them."""
        _, side, own, now, close, value, kept = record
        steps, span = _Steps(self._join, self._guard), self._interval.partners(side, own)
        found = [*kept.sides[1 - side].between(*span)]
        for block, place in found:
            steps.call(side, value, block.values[place], max(own, block.times[place]))
        if close <= now and not found and self._join.keeps_alone[side]:
            steps.call(side, value, None, self._interval.alone(side, own))
        return steps, found

    def _keep(self, record: _Record, paired: bool) -> None:
        """Let a record wait until its close."""
        kept, before = record.kept, self._first_close(record.kept)
        kept.sides[record.side].insert(record.own, paired, record.value)
        kept.changed = True
        if before is None or record.close < before:
            self._set_timer(record.key, from_millis(record.now), record.close)

    def _call(self, call: Call) -> bool:
        """Give up the records of a key that have closed. Return whether this is the last call of
        the timer."""
        close, kept = to_millis(call.time) + 1, self._kept.of(call.key)
        steps, interval = _Steps(self._join, self._guard), self._interval
        ends = [interval.closed(side, close) for side in _SIDES]
        for side in _SIDES:
            if self._join.keeps_alone[side]:
                for block, place in kept.sides[side].between(_FIRST, ends[side]):
                    if not block.paired[place]:
                        own = interval.alone(side, block.times[place])
                        steps.call(side, block.values[place], None, own)
        if steps.failures and not self._failed(steps.failures, self._calls.batch([call]), 0):
            return False
        self._calls.pop(call)
        self._timers_changed = True
        self._add(len(self._times) + len(self._called), steps)
        for side in _SIDES:
            kept.changed |= kept.sides[side].drop_until(ends[side])
        following = self._first_close(kept)
        if following is not None:
            self._set_timer(call.key, call.time, following)
        return True

    def _add(self, place: int, steps: _Steps) -> None:
        if not steps.results:
            return
        self._places += [place] * len(steps.results)
        self._positions += range(len(steps.results))
        self._results += steps.results

    def _failed(self, failures: Sequence[Failure], batch: Batch, row: int) -> bool:
        """Apply the error policy to what has failed for a record or a timer. Return false where the
        functions are called again, so nothing of it may count."""
        if self._guard.stops(batch, row):
            return False
        for value, error in failures:
            self._guard.failed(batch.take(np.array([row])).with_values([value]), 0, error)
        return True

    def _first_close(self, kept: KeptRecords) -> int | None:
        """Return the first close of the records of a key."""
        left, right = (side.first for side in kept.sides)
        if left is None:
            return None if right is None else self._interval.close(RIGHT, right)
        close = self._interval.close(LEFT, left)
        return close if right is None else min(close, self._interval.close(RIGHT, right))

    def _set_timer(self, key: bytes, now: int, close_ms: int) -> None:
        timer = TimerChange("timer", before_millis(close_ms))
        self._calls.register(key, now, [timer], False)
        self._timers_changed = True
