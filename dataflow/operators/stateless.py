"""The stateless operators: a chain of steps applies functions to each batch as it passes.

A chain of map, filter, flat_map, inspect and key_by without a fork is one operator, so progress
tracking counts it once. Records keep their place in the total order. A flat_map appends the
position of each output to the index, 20 bits a level.
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
"""The most outputs of one input, so that an index has room for the position of each."""
MOST_INDEX = 1 << (62 - INDEX_BITS)
"""The least index without room for one more position."""
ROWS = 1 << 16
"""The most records of a slice."""


class TooManyOutputsError(ValueError):
    """An error that rejects one input with more outputs than an index can distinguish."""

    def __init__(self) -> None:
        super().__init__(
            f"it gives more than {MOST_OUTPUTS:,} outputs for one input: give fewer, larger ones"
        )


class TooManyLevelsError(ValueError):
    """An error that rejects an output behind more multiplying operators than an index can
    distinguish."""

    def __init__(self) -> None:
        super().__init__(
            "more than three operators in a row multiply their inputs: "
            "do the work in fewer operators"
        )


class KeyTooLargeError(ValueError):
    """An error for a key that leaves a layer's entry too little room for a state."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"the key takes {size:,} bytes, and a bin moves only with keys of up to {KEY_LIMIT:,}: "
            "make a shorter one, such as a hash"
        )


class Step(Protocol):
    """A step that applies one stateless function in a chain."""

    @property
    def name(self) -> str:
        """Return the name in errors and dead letters."""

    @property
    def function(self) -> Callable[[Any], object]:
        """Return the function that it calls for each record."""

    @property
    def on_error(self) -> OnError:
        """Return the error policy for a record that the function cannot process."""

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """Return the batch after this step."""


@dataclass(frozen=True, slots=True)
class Map:
    """A step that replaces each value: value -> value."""

    name: str
    function: Callable[[Any], object]
    on_error: OnError

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """Return one output for each input that the function processes."""
        kept, values = each(self.function, batch, guard)
        rows = batch if kept is None else batch.take(kept)
        return rows.with_values(values)


@dataclass(frozen=True, slots=True)
class Filter:
    """A step that keeps the values for which the function returns a true value."""

    name: str
    function: Callable[[Any], object]
    on_error: OnError

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """Return the chosen rows."""
        # The truth value of a result is user code too.
        kept, verdicts = each(lambda value: bool(self.function(value)), batch, guard)
        chosen = np.flatnonzero(np.array(verdicts, np.bool_))
        return batch.take(chosen if kept is None else kept[chosen])


@dataclass(frozen=True, slots=True)
class Inspect:
    """A step that calls the function for its effect."""

    name: str
    function: Callable[[Any], object]
    on_error: OnError

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """Return the rows that the function processed, unchanged."""
        kept, _ = each(self.function, batch, guard)
        return batch if kept is None else batch.take(kept)


@dataclass(frozen=True, slots=True)
class FlatMap:
    """A step that replaces each value by any number: value -> any number of values."""

    name: str
    function: Callable[[Any], Iterable[object]]
    on_error: OnError

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """Return all outputs in order, each with its position among the outputs of its input."""
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
    """A step that gives each record a key: any plain value."""

    name: str
    function: Callable[[Any], object]
    on_error: OnError
    space: BinSpace

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """Return the rows with encoded keys and their hashes."""
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
    """A chain that applies stateless steps as one operator."""

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
        """Pass messages on, unless earlier ones still wait. Return whether any passed."""
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
        """Apply the chain to a batch and send the result. Return about the most bytes between two
        of its steps."""
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
    """Return the rows whose keys can be encoded, and these keys."""
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
    """Return the rows whose keys leave a layer's entry room for a state, and these keys."""
    if max(map(len, keys), default=0) <= KEY_LIMIT:
        return rows, keys
    kept = [row for row, key in enumerate(keys) if len(key) <= KEY_LIMIT]
    for row in sorted({*range(len(keys))}.difference(kept)):
        guard.failed(rows, row, KeyTooLargeError(len(keys[row])))
    return rows.take(np.array(kept, np.int64)), [keys[row] for row in kept]


def countable(batch: Batch, guard: Guard) -> Batch:
    """Return the rows whose index has room for another position. The others have failed."""
    full = batch.indexes >= MOST_INDEX
    if not full.any():
        return batch
    for row in np.flatnonzero(full).tolist():
        guard.failed(batch, row, TooManyLevelsError())
    return batch.take(np.flatnonzero(~full))


def append_index(indexes: Int64s, positions: Int64s) -> Int64s:
    """Return the index of each output: its input's index, then its position, shapes (n,). Indexes
    lie below `MOST_INDEX`, positions below `MOST_OUTPUTS`.

    >>> append_index(np.array([0, 0, 1]), np.array([0, 1, 0])).tolist()
    [0, 1, 1048576]
    """
    return (indexes << INDEX_BITS) | positions


def each(
    function: Callable[[Any], object], batch: Batch, guard: Guard
) -> tuple[Int64s | None, list[object]]:
    """Return the results of the function, and the rows that it processed (None for all)."""
    lost: list[int] = []
    results: list[object] = []
    pulse, take = guard.pulse, results.append
    # A chain has the name of its last step.
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
