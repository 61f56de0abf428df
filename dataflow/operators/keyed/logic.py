"""The logic of a stateful operator: a fold, or the general process function.

A logic applies records in order, with the calls of keys between them, to the states of their keys.
It changes the states and returns results. It seals a state after each record (`codec`). A function
that fails half-way therefore leaves the state unchanged, and holds no reference to a stored state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgpack
import numpy as np

from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.keyed.callbacks import Call, CallKind, Calls
from meander.dataflow.operators.keyed.context import Context, OnTimer, OnValue
from meander.dataflow.operators.keyed.expiry import Expiry, Lifetimes, lifetimes_of
from meander.dataflow.operators.stateless import INDEX_LIMIT, TooManyLevelsError, append_index
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.extra_columns import defaults, used_cells
from meander.schemas.errors import MeanderError
from meander.state.encoding import codec
from meander.state.encoding.cells import ABSENT, weigh
from meander.state.encoding.codec import StateCodec
from meander.state.layers.layer_writer import ENTRY_BYTES, STATE_LIMIT
from meander.state.store.store import Bins, StateBatch, Store

States = list[object]
"""Sealed states by slot. `ABSENT` stands for a key without a state."""

LARGEST = STATE_LIMIT - ENTRY_BYTES
"""The most bytes of a key and its state, which are one entry of a layer."""

_WORD = 1 << 63
_SMALL = frozenset({type(None), bool, float})
"""Types whose values fit any entry."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of one pass."""

    results: Batch
    """The results of the first output, each at the place of its input in the order."""
    rows: int
    """The number of applied records, from the first one on."""
    called: Batch | None = None
    """The keys that the pass has called."""
    side_outputs: Sequence[Batch] = ()
    """The results of the other outputs, one batch each."""


class Logic(Protocol):
    """A logic that applies records to states: a fold or a process function."""

    call_kinds: Collection[CallKind]
    """The kinds of calls for which it has a function."""
    sealing: Sealing
    """The sealing of its states."""

    def apply(self, store: Store, bins: Bins, rows: Rows, calls: Calls) -> Applied:
        """Apply records in order, and make the calls that are due between or behind them. At most
        `calls.max_calls` of both take place, but a fold applies all records."""


class StateTooLargeError(MeanderError):
    """An error for a state that does not fit an entry of a layer beside its key."""

    def __init__(self, size: int, key: int) -> None:
        super().__init__(
            "a state",
            f"it takes {size:,} bytes and its key {key:,}, and a bin moves only with entries of "
            f"up to {LARGEST:,}",
            "keep less per key, or spread it over several keys",
        )


class Sealing:
    """A sealing of one operator's states, by the plain codec or the user's own."""

    as_is = True
    """Whether a stored state without a seal is the state itself."""

    def __init__(self, codec_: StateCodec) -> None:
        self.codec = codec_
        self.plain = isinstance(codec_, codec.PlainCodec)
        """Whether an immutable plain value needs no seal."""

    def seal(self, state: object, key: bytes) -> object:
        """Return the state of a key in a form that cannot change in place. Raises MeanderError for
        a state that cannot move, so results do not depend on moves."""
        sealed = self._sealed(state)
        if type(sealed) in _SMALL:
            return sealed
        room = LARGEST - len(key)
        # Its size in memory costs less than its bytes, and exceeds half of them.
        if weigh(sealed) > room // 2 and (size := len(codec.encode_sealed(sealed))) > room:
            raise StateTooLargeError(size, len(key))
        return sealed

    def _sealed(self, state: object) -> object:
        return codec.seal(state) if self.plain else self._own(state)

    def _own(self, state: object) -> codec.Sealed:
        data: object = self.codec.encode(state)
        if not isinstance(data, bytes):
            raise MeanderError(
                f"codec {self.codec.name!r}",
                f"its encode returned {type(data).__name__}, and only bytes can move",
                "return bytes",
            )
        return codec.Sealed(data)

    def seal_after(self, before: object, state: object, key: bytes) -> object:
        """Return the same as `seal`, given the sealed state before, which is often the same."""
        same = state is before or (
            type(before) is codec.SealedCopy and before.fixed and state is before.value
        )
        return before if same and self.as_is else self.seal(state, key)

    def unseal(self, sealed: object) -> object:
        """Return the state, as a copy if it could change in place."""
        if type(sealed) not in codec.SEALS:
            return sealed
        if self.plain or not isinstance(sealed, codec.Sealed):
            return codec.unseal(sealed)
        return self.codec.decode(sealed.data)


UPGRADED = b"\xc1"
"""The first byte of a state that a version has upgraded. No encoded plain value begins with it."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The upgrade of states to the form of a later version of the logic."""

    generation: int
    """The number of upgrades of the operator, up to this one."""
    function: Callable[[Any], object]
    """From a state of the generation before to one of this generation."""


class UpgradingSealing(Sealing):
    """A sealing that upgrades a state when its key is next needed. A state of a generation behind
    the first one carries the number of its generation.

    >>> first, second = Upgrade(1, lambda n: (n, 0)), Upgrade(2, lambda pair: [*pair, "x"])
    >>> sealing = UpgradingSealing(codec.PLAIN, [first])
    >>> sealed = sealing.seal(sealing.unseal(7), b"key")
    >>> UpgradingSealing(codec.PLAIN, [first, second]).unseal(sealed)
    [7, 0, 'x']
    """

    as_is = False

    def __init__(self, codec_: StateCodec, upgrades: Sequence[Upgrade]) -> None:
        """`upgrades` are those up to the version of the logic, in order of their generations."""
        super().__init__(codec_)
        self._upgrades = upgrades
        self._mark = UPGRADED + codec.encode(upgrades[-1].generation)

    def _sealed(self, state: object) -> object:
        return codec.Sealed(self._mark + codec.encode(state))

    def unseal(self, sealed: object) -> object:
        """Return the state in the form of the version."""
        if isinstance(sealed, codec.Sealed):
            generation, state = unmarked(sealed.data)
        else:
            generation, state = 0, codec.unseal(sealed)
        for upgrade in self._upgrades:
            if upgrade.generation > generation:
                state = upgrade.function(state)
        return state


def unmarked(data: bytes) -> tuple[int, object]:
    """Return the generation and the value of a plain state's bytes.

    >>> unmarked(codec.encode([3])), unmarked(UPGRADED + codec.encode(2) + codec.encode([3]))
    ((0, [3]), (2, [3]))
    """
    if not data.startswith(UPGRADED):
        return 0, codec.decode(data)
    length = len(UPGRADED) + len(codec.encode(_generation(data)))
    return _generation(data), codec.decode(data[length:])


def _generation(data: bytes) -> int:
    """Return the number behind the mark of an upgraded state."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[len(UPGRADED) :])
    return int(unpacker.unpack())


class Fold:
    """A fold that computes one result per record: `(state, value) -> (state, result)`."""

    call_kinds: Collection[CallKind] = ()

    def __init__(
        self,
        init: Callable[[], object],
        step: Callable[[object, object], tuple[object, object]],
        sealing: Sealing,
        guard: Guard,
    ) -> None:
        self._init, self._step, self.sealing, self._guard = init, step, sealing, guard
        self._plain, self._as_is = sealing.plain and sealing.as_is, sealing.as_is

    def apply(self, store: Store, bins: Bins, rows: Rows, calls: Calls) -> Applied:
        """Return one result per record that the function processed."""
        assert rows.batch.keys is not None
        with store.open_batch(rows.batch.keys, bins) as state_batch:
            results = self._results(state_batch, rows.batch)
            return Applied(results, self._guard.end_pass(len(rows)))

    def _results(self, state_batch: StateBatch, batch: Batch) -> Batch:
        return self._fold(state_batch.sealed, state_batch.slots.tolist(), batch, [])

    def _fold(self, states: States, slots: Iterable[int], batch: Batch, failed: list[int]) -> Batch:
        """Return the results. Add the rows on which the function has failed to `failed`."""
        seal, unseal, step = self.sealing.seal, self.sealing.unseal, self._step
        assert batch.keys is not None
        keys = batch.keys
        results: list[object] = []
        keepalive, append, plain = self._guard.keepalive, results.append, self._plain
        as_is = self._as_is
        own_values = self._guard.own_values(batch)
        for row, (slot, value) in enumerate(zip(slots, own_values, strict=True)):
            if keepalive.due:
                keepalive.send()
            try:
                state = states[slot]
                if state is ABSENT:
                    state = self._init()
                elif type(state) in codec.SEALS or not as_is:
                    state = unseal(state)
                state, result = step(state, value)
                # Most folds have numbers as states, which need no check.
                number = type(state) is float or (type(state) is int and -_WORD < state < _WORD)
                states[slot] = state if number and plain else seal(state, keys[row])
            except failure() as error:
                if self._guard.stops(batch, row):
                    break
                self._guard.failed(batch, row, error)
                failed.append(row)
            else:
                append(result)
        if len(results) == len(batch):
            return batch.with_values(results)
        done = len(results) + len(failed)
        return batch.take(np.delete(np.arange(done), failed)).with_values(results)


class ExpiringFold(Fold):
    """A fold whose keys have a time to live."""

    def __init__(self, fold: Fold, expiry: Expiry) -> None:
        super().__init__(fold._init, fold._step, fold.sealing, fold._guard)
        self._expiry = expiry

    def _results(self, state_batch: StateBatch, batch: Batch) -> Batch:
        with Lifetimes(self._expiry, state_batch) as lifetimes:
            failed = list[int]()
            slots = lifetimes.each(batch.times, failed)
            return self._fold(state_batch.sealed, slots, batch, failed)


@dataclass(slots=True)
class _Emitted:
    """The results that one pass has emitted to one output."""

    rows: list[int]
    positions: list[int]
    values: list[object]

    def add(self, row: int, emitted: list[object]) -> None:
        """Add the results of one row."""
        if len(emitted) == 1:
            self.rows.append(row)
            self.positions.append(0)
            self.values.append(emitted[0])
            return
        self.rows.extend([row] * len(emitted))
        self.positions.extend(range(len(emitted)))
        self.values.extend(emitted)


@dataclass(slots=True)
class _Outcome:
    """The results that one pass has emitted, by the name of the output; None for the first."""

    emitted: dict[str | None, _Emitted]

    @staticmethod
    def of(side: Sequence[str]) -> _Outcome:
        """Return an outcome without results."""
        return _Outcome({name: _Emitted([], [], []) for name in (None, *side)})

    def add(self, row: int, context: Context) -> None:
        """Add the results of one call."""
        for name, emitted in context._emitted.items():
            self.emitted[name].add(row, emitted)


class Process:
    """A process function that handles records of one or more inputs with a state per key."""

    def __init__(
        self,
        init: Callable[[], object],
        on_values: Sequence[OnValue],
        on_timer: OnTimer | None,
        on_notify: OnTimer | None,
        on_alarm: OnTimer | None,
        side: Sequence[str],
        sealing: Sealing,
        guard: Guard,
        expiry: Expiry | None = None,
        uses: Sequence[str] = (),
        counted: Sequence[tuple[str, str]] = (),
        on_failed_timer: OnTimer | None = None,
    ) -> None:
        """`uses` are the extra columns that the functions read, and `counted` the side outputs
        whose results count, each with its counter. `on_failed_timer` is called where `on_timer` has
        failed, and sends nothing."""
        self._init, self._on_values, self._counted = init, on_values, counted
        self._on_failed_timer = on_failed_timer
        self._expiry, self._uses = expiry, uses
        callbacks: dict[CallKind, OnTimer | None] = {
            "timer": on_timer, "notification": on_notify, "alarm": on_alarm,
        }  # fmt: skip
        self._callbacks = {kind: one for kind, one in callbacks.items() if one is not None}
        self._side, self.sealing, self._guard = side, sealing, guard
        self.call_kinds: Collection[CallKind] = tuple(self._callbacks)
        self._kinds_in_notification = tuple(k for k in self._callbacks if k != "notification")
        """A notification may not request another one, which would be for the same time."""

    def apply(self, store: Store, bins: Bins, rows: Rows, calls: Calls) -> Applied:
        """Call the function of each record's input, and the functions of due timers and
        notifications."""
        batch, times, inputs = rows.batch, rows.batch.times.tolist(), rows.inputs.tolist()
        full = (batch.indexes >= INDEX_LIMIT).tolist()
        extra = used_cells(self._uses, batch.extra, batch.times)
        outcome, called, row = _Outcome.of(self._side), list[Call](), 0
        own_times = list[int]()
        values = iter(self._guard.own_values(batch))
        assert batch.keys is not None
        keys, bins = calls.with_callable_keys(batch.keys, bins)
        with (
            store.open_batch(keys, bins) as state_batch,
            lifetimes_of(self._expiry, state_batch) as lifetimes,
        ):
            of_rows = state_batch.slots.tolist()
            slots = dict(zip(keys, of_rows, strict=True))
            apply = partial(self._call, state_batch, state_batch.sealed, lifetimes)
            on_values, side, kinds = self._on_values, self._side, self.call_kinds
            count, max_calls, due = len(times), calls.max_calls, calls.next()
            while row + len(called) < max_calls:
                call: Call | None = None
                if row < count and (due is None or times[row] <= due.time):
                    place, key = row, keys[row]
                    context = Context(key, times[row], kinds, side, "", extra[row])
                    function = on_values[inputs[row]]
                    error = apply(of_rows[row], context, function, (next(values),), full[row])
                elif due is not None:
                    place, key, call = count + len(called), due.key, due
                    context = self._of_call(due)
                    error = apply(slots[key], context, self._callbacks[due.kind], (), False)
                else:
                    break
                if error is not None:
                    at = self._at(batch, place, calls, call, context)
                    if self._guard.stops(*at, call and call.due):
                        break
                if call is None:
                    row += 1
                else:
                    calls.pop(call)
                    called.append(call)
                    own_times.append(context._own_ms)
                if error is not None:
                    self._guard.failed(*at, error)
                    context = self._after_failure(call, context, partial(apply, slots[key]))
                elif context._emitted:
                    outcome.add(place, context)
                if context._timers or context._notice or call is not None:
                    calls.register(key, context._time, context._timers, context._notice)
                    due = calls.next()
        self._guard.end_pass(row)
        of_calls = calls.batch(called).with_own_times(np.array(own_times)) if called else None
        return self._applied(batch, row, outcome, of_calls)

    @staticmethod
    def _at(
        batch: Batch, row: int, calls: Calls, call: Call | None, context: Context
    ) -> tuple[Batch, int]:
        """Return a record or a call on which a function has failed, as a batch and a row."""
        return (batch, row) if call is None else (calls.batch([call], context._lost), 0)

    def _after_failure(
        self, call: Call | None, failed: Context, apply: Callable[..., object]
    ) -> Context:
        """Call the function for a failed timer if there is one. Return the context whose timers
        count: the one of this call, or an empty one."""
        failed._timers, failed._notice = [], False
        if call is None or call.kind != "timer" or self._on_failed_timer is None:
            return failed
        context = self._of_call(call)
        apply(context, self._on_failed_timer, (), False)
        context._notice = False
        return context

    def _of_call(self, call: Call) -> Context:
        """Return the context of a timer, an alarm or a notification."""
        is_notification = call.kind == "notification"
        kinds = self._kinds_in_notification if is_notification else self.call_kinds
        own = defaults(self._uses, call.time)
        return Context(call.key, call.time, kinds, self._side, call.name, own)

    def _call(
        self,
        state_batch: StateBatch,
        states: States,
        lifetimes: Lifetimes | None,
        slot: int,
        context: Context,
        function: Callable[..., object],
        value: tuple[object, ...],
        deepest: bool,
    ) -> BaseException | None:
        """Change the state of a key by a function, which takes the value of a record if there is
        one. Return the error of the function, or that of a result behind more levels than an index
        holds."""
        if self._guard.keepalive.due:
            self._guard.keepalive.send()
        if lifetimes is not None:
            lifetimes.expire(slot, context._time)
        before = states[slot]
        sealing = self.sealing
        try:
            state = self._init() if before is ABSENT else sealing.unseal(before)
            state = function(context, state, *value)
            if context._forgotten:
                after = ABSENT
            else:
                after = sealing.seal_after(before, state, context._key)
            if deepest and context._emitted:
                raise TooManyLevelsError
        except failure() as error:
            return error
        states[slot] = after
        if context._forgotten:
            state_batch.forgets = True
        if lifetimes is not None:
            lifetimes.renew(slot, context._time, before)
        return None

    def _applied(self, batch: Batch, rows: int, outcome: _Outcome, called: Batch | None) -> Applied:
        for name, counter in self._counted:
            self._guard.counters[counter] += len(outcome.emitted[name].values)
        every = batch if called is None else Batch.concat([batch, called])
        first, *others = (self._batch(every, emitted) for emitted in outcome.emitted.values())
        return Applied(first, rows, called, others)

    def _batch(self, batch: Batch, outcome: _Emitted) -> Batch:
        emitted = batch.take(np.array(outcome.rows, np.int64))
        positions = np.array(outcome.positions, np.int64)
        return emitted.with_outputs(append_index(emitted.indexes, positions), outcome.values)
