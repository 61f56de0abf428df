"""Stateless operators: a chain of functions applied to each batch as it passes.

A chain of map, filter, flat_map, inspect and key_by without a fork is one operator, so it costs
progress tracking once. Records keep their place in the total order; a flat_map's outputs get
their position appended to the index, 20 bits a level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.adaptive_batch import BYTES, AdaptiveBatch
from meander.dataflow.operators.error_policy import Guard, OnError, failure
from meander.dataflow.operators.ports import BaseOperator, InputPort, Message, OutputPort
from meander.dataflow.records.batch import Batch, Int64s
from meander.state.encoding import codec
from meander.state.encoding.codec import UnencodableError
from meander.state.keys.bins import BinSpace
from meander.state.layers.layer_writer import KEY_LIMIT

INDEX_BITS = 20
MOST_OUTPUTS = 1 << INDEX_BITS
"""Outputs of one input, so that an index has room for the position of each."""
MOST_INDEX = 1 << (62 - INDEX_BITS)
"""From here on an index has no room for one more position."""
ROWS = 1 << 16
"""Records of a slice at most."""


class TooManyOutputsError(ValueError):
    """One input with more outputs than an index can tell apart."""

    def __init__(self) -> None:
        super().__init__(
            f"it gives more than {MOST_OUTPUTS:,} outputs for one input: give fewer, larger ones"
        )


class TooManyLevelsError(ValueError):
    """An output that has come through more multiplying operators than an index can tell apart."""

    def __init__(self) -> None:
        super().__init__(
            "more than three operators in a row multiply their inputs: "
            "do the work in fewer operators"
        )


class KeyTooLargeError(ValueError):
    """A key that leaves a layer's entry too little room for a state."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"the key takes {size:,} bytes, and a bin moves only with keys of up to {KEY_LIMIT:,}: "
            "make a shorter one, such as a hash"
        )


class Step(Protocol):
    """One stateless function of a chain."""

    @property
    def name(self) -> str:
        """How it is called in errors and dead letters."""

    @property
    def function(self) -> Callable[[Any], object]:
        """What it calls for each record."""

    @property
    def on_error(self) -> OnError:
        """What becomes of a record that it cannot take."""

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """The batch after this step."""


@dataclass(frozen=True, slots=True)
class Map:
    """value -> value."""

    name: str
    function: Callable[[Any], object]
    on_error: OnError

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """One output for each input that the function takes."""
        kept, values = each(self.function, batch, guard)
        rows = batch if kept is None else batch.take(kept)
        return rows.with_values(values)


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep the values for which the function is true."""

    name: str
    function: Callable[[Any], object]
    on_error: OnError

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """The chosen rows."""
        # To be true or not is the user's code too.
        kept, verdicts = each(lambda value: bool(self.function(value)), batch, guard)
        chosen = np.flatnonzero(np.array(verdicts, np.bool_))
        return batch.take(chosen if kept is None else kept[chosen])


@dataclass(frozen=True, slots=True)
class Inspect:
    """Call the function for its effect."""

    name: str
    function: Callable[[Any], object]
    on_error: OnError

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """The rows that the function took, unchanged."""
        kept, _ = each(self.function, batch, guard)
        return batch if kept is None else batch.take(kept)


@dataclass(frozen=True, slots=True)
class FlatMap:
    """value -> any number of values."""

    name: str
    function: Callable[[Any], Iterable[object]]
    on_error: OnError

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """All outputs, in order, each with its position among the outputs of its input."""
        batch = countable(batch, guard)
        kept, outputs = each(self._outputs, batch, guard)
        rows = batch if kept is None else batch.take(kept)
        counts = [len(many) for many in outputs if isinstance(many, list)]
        positions = [i for count in counts for i in range(count)]
        repeated = rows.take(np.repeat(np.arange(len(rows)), counts))
        return Batch(
            repeated.times,
            repeated.origins,
            repeated.partitions,
            repeated.offsets,
            append_index(repeated.indexes, np.array(positions, np.int64)),
            [value for many in outputs if isinstance(many, list) for value in many],
            repeated.keys,
            repeated.hashes,
        )

    def _outputs(self, value: object) -> list[object]:
        outputs = list(islice(self.function(value), MOST_OUTPUTS + 1))
        if len(outputs) > MOST_OUTPUTS:
            raise TooManyOutputsError
        return outputs


@dataclass(frozen=True, slots=True)
class KeyBy:
    """Give each record a key: any plain value."""

    name: str
    function: Callable[[Any], object]
    on_error: OnError
    space: BinSpace

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """The rows with encoded keys and their hashes."""
        kept, keys = each(self.function, batch, guard)
        rows = batch if kept is None else batch.take(kept)
        try:
            encoded = codec.encode_keys(keys)
        except UnencodableError:
            rows, encoded = _encodable(rows, keys, guard)
        rows, encoded = _movable(rows, encoded, guard)
        return Batch(
            rows.times,
            rows.origins,
            rows.partitions,
            rows.offsets,
            rows.indexes,
            rows.values,
            encoded,
            self.space.hash_keys(encoded),
        )


class Steps(BaseOperator):
    """A chain of stateless steps as one operator."""

    def __init__(
        self,
        source: InputPort,
        output: OutputPort,
        chain: list[tuple[Step, Guard]],
        clock: Clock,
    ) -> None:
        self._input, self._output, self._chain = source, output, chain
        self._slices = AdaptiveBatch(clock, ROWS)

    def schedule(self) -> bool:
        """Pass on what has come, unless what was passed on before still waits."""
        if self._output.blocked():
            return False
        worked, left, room = False, self._slices.rows, BYTES
        while left > 0 and room > 0 and (message := self._input.take(left)) is not None:
            assert isinstance(message.payload, Batch)
            worked = True
            left -= len(message.payload)
            with self._slices.of(len(message.payload)):
                gave = self._pass_on(message, message.payload)
                self._slices.gave(gave)
            room -= gave
        return worked

    def _pass_on(self, message: Message, batch: Batch) -> int:
        """About how many bytes its functions have given, between any two of them at most."""
        gave = 0
        with self._output.mint(message) as capability:
            for step, guard in self._chain:
                if len(batch):
                    batch = step.apply(batch, guard)
                    if isinstance(step, Map | FlatMap):
                        gave = max(gave, batch.guessed_weight)
            if len(batch):
                self._output.send(capability, message.time, batch)
        return gave


def _encodable(rows: Batch, keys: list[object], guard: Guard) -> tuple[Batch, list[bytes]]:
    """The rows whose keys can be encoded, and these."""
    encoded: list[bytes] = []
    kept: list[int] = []
    for row, key in enumerate(keys):
        try:
            encoded.append(codec.encode_key(key))
            kept.append(row)
        except UnencodableError as error:
            guard.failed(rows, row, error)
    return rows.take(np.array(kept, np.int64)), encoded


def _movable(rows: Batch, keys: list[bytes], guard: Guard) -> tuple[Batch, list[bytes]]:
    """The rows whose keys leave a layer's entry room for a state, and these keys."""
    if max(map(len, keys), default=0) <= KEY_LIMIT:
        return rows, keys
    kept = [row for row, key in enumerate(keys) if len(key) <= KEY_LIMIT]
    for row in sorted({*range(len(keys))}.difference(kept)):
        guard.failed(rows, row, KeyTooLargeError(len(keys[row])))
    return rows.take(np.array(kept, np.int64)), [keys[row] for row in kept]


def countable(batch: Batch, guard: Guard) -> Batch:
    """The rows whose index has room for a position behind it; the others have failed."""
    full = batch.indexes >= MOST_INDEX
    if not full.any():
        return batch
    for row in np.flatnonzero(full).tolist():
        guard.failed(batch, row, TooManyLevelsError())
    return batch.take(np.flatnonzero(~full))


def append_index(indexes: Int64s, positions: Int64s) -> Int64s:
    """The index of each output: its input's index, then its position, shapes (n,). Indexes lie
    below `MOST_INDEX`, positions below `MOST_OUTPUTS`.

    >>> append_index(np.array([0, 0, 1]), np.array([0, 1, 0])).tolist()
    [0, 1, 1048576]
    """
    return (indexes << INDEX_BITS) | positions


def each(
    function: Callable[[Any], object], batch: Batch, guard: Guard
) -> tuple[Int64s | None, list[object]]:
    """What the function says to each value, and the rows that it took (None for all)."""
    lost: list[int] = []
    results: list[object] = []
    pulse, take = guard.pulse, results.append
    # A chain bears the name of its last step.
    pulse.operator = guard.operator
    for row, value in enumerate(batch.values):
        if pulse.due:
            pulse.beat()
        try:
            take(function(value))
        except failure() as error:
            guard.failed(batch, row, error)
            lost.append(row)
    return np.delete(np.arange(len(batch)), lost) if lost else None, results
