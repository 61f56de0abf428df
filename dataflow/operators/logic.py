"""What a stateful operator does with its records: fold, or the general process function.

A logic is lent the states of the keys at hand and sees the records in order; it changes the states
and yields results. States are sealed after each record (`state.codec`): a function that fails
half-way leaves the state as it was, and nobody keeps a reference to a state that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import numpy as np

from dataflow.batch import Batch
from dataflow.operators.errors import Guard, failure
from dataflow.operators.rows import Rows
from dataflow.operators.steps import (
    MOST_INDEX,
    MOST_OUTPUTS,
    TooManyLevelsError,
    TooManyOutputsError,
    append_index,
)
from schemas.errors import MeanderError
from state import codec
from state.cells import ABSENT, weigh
from state.codec import StateCodec
from state.extraction import ENTRY_BYTES, STATE_LIMIT
from state.store import Bins, Loan, Store
from state.time import from_millis, to_millis, whole

States = list[object]
"""Sealed states by slot; one that is `ABSENT` is of a key that has none yet."""

LARGEST = STATE_LIMIT - ENTRY_BYTES
"""Bytes of a key and its state, which are one entry of a layer."""

_WORD = 1 << 63

Timer = tuple[int, bytes]
"""A time and the encoded key that wants to be called then."""


Why = Literal["timer", "notice"]
"""Why a key is called back: its timer is due, or all of a time has come."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What a call has brought about besides results at the first output."""

    timers: Sequence[Timer] = ()
    notices: Sequence[Timer] = ()
    """Outer times and keys to be called once all of that time, in the call's rounds, has come."""
    batches: Sequence[Batch] = ()
    """What goes to the other outputs, one batch each."""


NOTHING = Beside()


class Logic(Protocol):
    """The part of a stateful operator that differs."""

    timed: bool
    """Whether records of one time must be applied before later ones are begun, as something of its
    own may come between."""

    def apply(self, store: Store, bins: Bins, rows: Rows) -> Batch:
        """Apply records in order; the results, each under its input's place in the order."""

    def fire(self, store: Store, bins: Bins, fired: Batch, why: Why) -> Batch:
        """Call back the keys of `fired`, a batch without values, one row per key and time."""

    def beside(self) -> Beside:
        """What the last call has brought about besides its results."""


class StateTooLargeError(MeanderError):
    """A state that is too large for an entry of a layer, beside its key."""

    def __init__(self, size: int, key: int) -> None:
        super().__init__(
            "a state",
            f"it takes {size:,} bytes and its key {key:,}, and a bin moves only with entries of "
            f"up to {LARGEST:,}",
            "keep less per key, or spread it over several keys",
        )


class Sealing:
    """How one operator's states are sealed: by the plain codec, or the user's own."""

    def __init__(self, codec_: StateCodec) -> None:
        self.codec = codec_
        self.plain = codec_.name == codec.PLAIN.name
        """Whether a plain value that nobody can change is its own seal."""

    def seal(self, state: object, key: bytes) -> object:
        """The state of a key so that nobody can change it. Raises MeanderError for one that could
        not move: what a flow answers must not depend on whether its bins do."""
        sealed = codec.seal(state) if self.plain else self._own(state)
        room = LARGEST - len(key)
        # What it takes in memory is known for less than its bytes, and is more than half of them.
        if weigh(sealed) > room // 2 and (size := len(codec.encoded(sealed))) > room:
            raise StateTooLargeError(size, len(key))
        return sealed

    def _own(self, state: object) -> codec.Sealed:
        data: object = self.codec.encode(state)
        if not isinstance(data, bytes):
            raise MeanderError(
                f"codec {self.codec.name!r}",
                f"its encode returned {type(data).__name__}, and only bytes can move",
                "return bytes",
            )
        return codec.Sealed(data)

    def unseal(self, sealed: object) -> object:
        """The state, afresh if it could be changed."""
        if not isinstance(sealed, codec.Sealed):
            return sealed
        return codec.decode(sealed.data) if self.plain else self.codec.decode(sealed.data)


class Fold:
    """`(state, value) -> (state, result)`, one result per record."""

    timed = False

    def __init__(
        self,
        init: Callable[[], object],
        step: Callable[[object, object], tuple[object, object]],
        sealing: Sealing,
        guard: Guard,
    ) -> None:
        self._init, self._step, self._sealing, self._guard = init, step, sealing, guard
        self._plain = sealing.plain

    def apply(self, store: Store, bins: Bins, rows: Rows) -> Batch:
        """One result per record that the function took."""
        assert rows.batch.keys is not None
        with store.lend(rows.batch.keys, bins) as lent:
            return self._fold(lent.sealed, lent.slots.tolist(), rows.batch)

    def _fold(self, states: States, slots: list[int], batch: Batch) -> Batch:
        seal, unseal, step = self._sealing.seal, self._sealing.unseal, self._step
        assert batch.keys is not None
        keys = batch.keys
        lost: list[int] = []
        results: list[object] = []
        pulse, answer, plain = self._guard.pulse, results.append, self._plain
        for row, (slot, value) in enumerate(zip(slots, batch.values, strict=True)):
            if pulse.due:
                pulse.beat()
            try:
                state = states[slot]
                if state is ABSENT:
                    state = self._init()
                elif type(state) is codec.Sealed:
                    state = unseal(state)
                state, result = step(state, value)
                # A short cut for the states of most folds; any other is looked at.
                number = type(state) is float or (type(state) is int and -_WORD < state < _WORD)
                states[slot] = state if number and plain else seal(state, keys[row])
            except failure() as error:
                self._guard.failed(batch, row, error)
                lost.append(row)
            else:
                answer(result)
        answered = batch.take(np.delete(np.arange(len(batch)), lost)) if lost else batch
        return answered.with_values(results)

    def fire(self, store: Store, bins: Bins, fired: Batch, why: Why) -> Batch:
        """A fold asks for nothing."""
        raise AssertionError("a fold has no timers")

    def beside(self) -> Beside:
        """Nothing ever."""
        return NOTHING


class Context:
    """What a process function may do besides changing its state."""

    __slots__ = ("_calls", "_emitted", "_key", "_notice", "_time", "_timers")

    def __init__(self, key: bytes, time: int, calls: Sequence[Why], side: Sequence[str]) -> None:
        self._key, self._time, self._calls = key, time, calls
        self._notice = False
        self._emitted: dict[str | None, list[object]] = {None: [], **{name: [] for name in side}}
        self._timers: list[int] = []

    @property
    def key(self) -> object:
        """The record's key, in the one form that all equal keys have (`codec.encode_key`)."""
        return codec.decode(self._key)

    @property
    def time_ms(self) -> int:
        """The record's logical time, milliseconds since 1970."""
        return to_millis(self._time)

    def emit(self, result: object, to: str | None = None) -> None:
        """Send a result at the record's time, by the operator's first output or the side output of
        a name."""
        if to not in self._emitted:
            raise ValueError(f"the operator has no side output {to!r}: name it in `side`")
        emitted = self._emitted[to]
        if len(emitted) == MOST_OUTPUTS:
            raise TooManyOutputsError
        emitted.append(result)

    def timer(self, at_ms: int) -> None:
        """Be called back for this key once the flow's time has passed `at_ms`, which must be later
        than now. Setting one twice for one key and time is setting it once."""
        time = from_millis(whole(at_ms))
        if time <= self._time:
            raise ValueError(f"a timer for {at_ms} ms is not after the record's {self.time_ms} ms")
        if "timer" not in self._calls:
            raise ValueError("the operator has no on_timer function to call back")
        self._timers.append(time)

    def notify(self) -> None:
        """Be called back for this key once all of this time has come, before anything later: in a
        loop once all of its round has. To ask twice for one key and time is to ask once."""
        if "notice" not in self._calls:
            raise ValueError("the operator has no on_notify function to call, or it is this one")
        self._notice = True


OnValue = Callable[[Context, object, object], object]
"""`(context, state, value) -> state`."""
OnTimer = Callable[[Context, object], object]
"""`(context, state) -> state`."""


def _with_value(on_value: OnValue, value: object, context: Context, state: object) -> object:
    return on_value(context, state, value)


@dataclass(slots=True)
class _Emitted:
    """What the process functions of one batch have emitted to one output."""

    rows: list[int]
    positions: list[int]
    values: list[object]

    def add(self, row: int, emitted: list[object]) -> None:
        """The outputs of one row."""
        self.rows.extend([row] * len(emitted))
        self.positions.extend(range(len(emitted)))
        self.values.extend(emitted)


@dataclass(slots=True)
class _Outcome:
    """What the process functions of one batch have brought about, and may ask for."""

    calls: Sequence[Why]
    emitted: dict[str | None, _Emitted]
    """By the output's name; the first has none."""
    timers: list[Timer]
    notices: list[Timer]

    @staticmethod
    def of(calls: Sequence[Why], side: Sequence[str]) -> _Outcome:
        """Nothing so far."""
        return _Outcome(calls, {name: _Emitted([], [], []) for name in (None, *side)}, [], [])

    def add(self, row: int, key: bytes, context: Context) -> None:
        """What one call has asked for."""
        for name, emitted in context._emitted.items():
            self.emitted[name].add(row, emitted)
        self.timers.extend((time, key) for time in context._timers)
        if context._notice:
            self.notices.append((context._time, key))


class Process:
    """State, results and timers per key, for one or more inputs with one key space."""

    def __init__(
        self,
        operator: str,
        init: Callable[[], object],
        on_values: Sequence[OnValue],
        on_timer: OnTimer | None,
        on_notify: OnTimer | None,
        side: Sequence[str],
        sealing: Sealing,
        guard: Guard,
    ) -> None:
        self._operator, self._init, self._on_values = operator, init, on_values
        given: dict[Why, OnTimer | None] = {"timer": on_timer, "notice": on_notify}
        self._back = {why: function for why, function in given.items() if function is not None}
        self._side, self._sealing, self._guard = side, sealing, guard
        self._beside = NOTHING
        self.timed = bool(self._back)

    def apply(self, store: Store, bins: Bins, rows: Rows) -> Batch:
        """Call the function of each record's input."""
        batch, sides = rows.batch, rows.sides.tolist()
        outcome = _Outcome.of(tuple(self._back), self._side)
        assert batch.keys is not None
        with store.lend(batch.keys, bins) as lent:
            for row, value in enumerate(batch.values):
                on_value = self._on_values[sides[row]]
                self._call(lent, batch, row, outcome, partial(_with_value, on_value, value))
        return self._results(batch, outcome)

    def fire(self, store: Store, bins: Bins, fired: Batch, why: Why) -> Batch:
        """Call the timer function of each row's key, or that for notices."""
        if why not in self._back:
            raise MeanderError(
                f"operator {self._operator!r}", f"a {why} is due and it has no function for it"
            )
        # A notice that asks for another of its time would never end.
        calls = tuple(call for call in self._back if why != "notice" or call != why)
        outcome = _Outcome.of(calls, self._side)
        assert fired.keys is not None
        with store.lend(fired.keys, bins) as lent:
            for row in range(len(fired)):
                self._call(lent, fired, row, outcome, self._back[why])
        return self._results(fired, outcome)

    def beside(self) -> Beside:
        """Timers and notices asked for, and what has been emitted to each side output."""
        return self._beside

    def _call(
        self, lent: Loan, batch: Batch, row: int, outcome: _Outcome, function: OnTimer
    ) -> None:
        assert batch.keys is not None
        if self._guard.pulse.due:
            self._guard.pulse.beat()
        key, states, slot = batch.keys[row], lent.sealed, int(lent.slots[row])
        context = Context(key, int(batch.times[row]), outcome.calls, self._side)
        try:
            sealed = states[slot]
            state = self._init() if sealed is ABSENT else self._sealing.unseal(sealed)
            sealed = self._sealing.seal(function(context, state), key)
            if batch.indexes[row] >= MOST_INDEX and any(context._emitted.values()):
                raise TooManyLevelsError
        except failure() as error:
            self._guard.failed(batch, row, error)
            return
        states[slot] = sealed
        outcome.add(row, key, context)

    def _results(self, batch: Batch, outcome: _Outcome) -> Batch:
        first, *others = (self._batch(batch, emitted) for emitted in outcome.emitted.values())
        self._beside = Beside(outcome.timers, outcome.notices, others)
        return first

    def _batch(self, batch: Batch, outcome: _Emitted) -> Batch:
        emitted = batch.take(np.array(outcome.rows, np.int64))
        positions = np.array(outcome.positions, np.int64)
        return Batch(
            emitted.times,
            emitted.origins,
            emitted.partitions,
            emitted.offsets,
            append_index(emitted.indexes, positions),
            outcome.values,
            emitted.keys,
            emitted.hashes,
        )
