"""The stateless operators: a chain of steps applies functions to each batch.

A chain of map, filter, flat_map, inspect and key_by without a fork is one operator, so progress
tracking counts it once. Records keep their place in the total order. A flat_map appends the
position of each output to the index, 20 bits per level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np

from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.adaptive_batch import BYTES, AdaptiveBatch
from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.ports import BaseOperator, InputPort, Message, OutputPort
from meander.dataflow.operators.retries import OnError
from meander.dataflow.records.batch import Batch, Int64s
from meander.state.encoding import codec
from meander.state.encoding.codec import UnencodableError
from meander.state.keys.bins import BinSpace
from meander.state.layers.layer_writer import KEY_LIMIT

INDEX_BITS = 20
MAX_OUTPUTS = 1 << INDEX_BITS
"""The most outputs of one input: an index has room for the position of each."""
INDEX_LIMIT = 1 << (62 - INDEX_BITS)
"""The least index without room for a further position."""
MAX_ROWS = 1 << 16
"""The most records of a slice."""


class TooManyOutputsError(ValueError):
    """An error that rejects one input with more outputs than an index can distinguish."""

    def __init__(self) -> None:
        super().__init__(
            f"it gives more than {MAX_OUTPUTS:,} outputs for one input: give fewer, larger ones"
        )


class TooManyLevelsError(ValueError):
    """An error that rejects an output behind more flat_maps in a row than an index has room for."""

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
        rows, values = apply_each(self.function, batch, guard)
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
        rows, verdicts = apply_each(lambda value: bool(self.function(value)), batch, guard)
        return rows.take(np.flatnonzero(np.array(verdicts, np.bool_)))


@dataclass(frozen=True, slots=True)
class Inspect:
    """A step that calls the function for its effect."""

    name: str
    function: Callable[[Any], object]
    on_error: OnError

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """Return the rows that the function processed, unchanged."""
        return apply_each(self.function, batch, guard)[0]


@dataclass(frozen=True, slots=True)
class FlatMap:
    """A step that replaces each value by any number: value -> any number of values."""

    name: str
    function: Callable[[Any], Iterable[object]]
    on_error: OnError

    def apply(self, batch: Batch, guard: Guard) -> Batch:
        """Return all outputs in order, each with its position among the outputs of its input."""
        full = batch.indexes >= INDEX_LIMIT
        outputs_of = self._checked(full.tolist()) if full.any() else self._outputs
        rows, outputs = apply_each(outputs_of, batch, guard)
        counts = [len(many) for many in outputs if isinstance(many, list)]
        positions = [i for count in counts for i in range(count)]
        repeated = rows.take(np.repeat(np.arange(len(rows)), counts))
        return repeated.with_outputs(
            append_index(repeated.indexes, np.array(positions, np.int64)),
            [value for many in outputs if isinstance(many, list) for value in many],
        )

    def _checked(self, full: Iterable[bool]) -> Callable[[object], list[object]]:
        """Return the function for one record after another, of which some have no room for a
        further position."""
        is_full = iter(full)

        def outputs(value: object) -> list[object]:
            if next(is_full):
                raise TooManyLevelsError
            return self._outputs(value)

        return outputs

    def _outputs(self, value: object) -> list[object]:
        outputs = list(islice(self.function(value), MAX_OUTPUTS + 1))
        if len(outputs) > MAX_OUTPUTS:
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
        rows, keys = apply_each(self.function, batch, guard)
        try:
            encoded = codec.encode_keys(keys)
        except UnencodableError:
            rows, encoded = _encodable(rows, keys, guard)
        rows, encoded = _movable(rows, encoded, guard)
        return rows.with_keys(encoded, self.space.hash_keys(encoded))


def step_with(step: Step, function: Callable[[Any], Any]) -> Step:
    """Return a step with another function."""
    assert isinstance(step, Map | Filter | Inspect | FlatMap | KeyBy)
    return replace(step, function=function)


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
        self._batch_size = AdaptiveBatch(clock, MAX_ROWS)

    def schedule(self) -> bool:
        """Process messages, unless earlier ones still wait. Return whether there were any."""
        if self._output.blocked():
            return False
        worked, rows, size = False, self._batch_size.rows, BYTES
        while rows > 0 and size > 0 and (message := self._input.pop(rows)) is not None:
            assert isinstance(message.payload, Batch)
            worked = True
            rows -= len(message.payload)
            with self._batch_size.measure(len(message.payload)):
                output_bytes = self._apply_chain(message, message.payload)
                self._batch_size.count_output(output_bytes)
            size -= output_bytes
        return worked

    def _apply_chain(self, message: Message, batch: Batch) -> int:
        """Apply the chain to a batch and send the result. Return about the bytes of its largest
        output."""
        with self._output.mint(message) as capability:
            batch, output_bytes = apply_chain(self._chain, batch)
            if len(batch):
                self._output.send(capability, message.time, batch)
        return output_bytes


def apply_chain(chain: Iterable[tuple[Step, Guard]], batch: Batch) -> tuple[Batch, int]:
    """Return the batch after a chain of steps, and about the bytes of the largest output of a
    step."""
    output_bytes = 0
    for step, guard in chain:
        if len(batch):
            batch = step.apply(batch, guard)
            if isinstance(step, Map | FlatMap):
                output_bytes = max(output_bytes, batch.estimated_weight)
    return batch, output_bytes


def _encodable(rows: Batch, keys: list[object], guard: Guard) -> tuple[Batch, list[bytes]]:
    """Return the rows whose keys can be encoded, and these keys."""
    encoded: list[bytes] = []
    valid: list[int] = []
    for row, key in enumerate(keys):
        try:
            encoded.append(codec.encode_key(key))
            valid.append(row)
        except UnencodableError as error:
            guard.failed(rows, row, error)
    return rows.take(np.array(valid, np.int64)), encoded


def _movable(rows: Batch, keys: list[bytes], guard: Guard) -> tuple[Batch, list[bytes]]:
    """Return the rows whose keys leave a layer's entry room for a state, and these keys."""
    if max(map(len, keys), default=0) <= KEY_LIMIT:
        return rows, keys
    valid = [row for row, key in enumerate(keys) if len(key) <= KEY_LIMIT]
    for row in sorted({*range(len(keys))}.difference(valid)):
        guard.failed(rows, row, KeyTooLargeError(len(keys[row])))
    return rows.take(np.array(valid, np.int64)), [keys[row] for row in valid]


def with_index_room(batch: Batch, guard: Guard) -> Batch:
    """Return the rows whose index has room for a further position. The others have failed."""
    full = batch.indexes >= INDEX_LIMIT
    if not full.any():
        return batch
    for row in np.flatnonzero(full).tolist():
        guard.failed(batch, row, TooManyLevelsError())
    return batch.take(np.flatnonzero(~full))


def append_index(indexes: Int64s, positions: Int64s) -> Int64s:
    """Return the index of each output: its input's index, then its position, shapes (n,). Indexes
    lie below `INDEX_LIMIT`, positions below `MAX_OUTPUTS`.

    >>> append_index(np.array([0, 0, 1]), np.array([0, 1, 0])).tolist()
    [0, 1, 1048576]
    """
    return (indexes << INDEX_BITS) | positions


def passed_on(batch: Batch) -> Batch:
    """Return records as outputs of an operator that passes each of them on."""
    positions = np.zeros(len(batch), np.int64)
    return batch.with_outputs(append_index(batch.indexes, positions), batch.values)


def apply_each(
    function: Callable[[Any], object], batch: Batch, guard: Guard
) -> tuple[Batch, list[object]]:
    """Return the rows that the function processed, and its results. The pass ends before a row on
    which the function is called again."""
    failed: list[int] = []
    results: list[object] = []
    keepalive, append = guard.keepalive, results.append
    # A chain has the name of its last step.
    keepalive.operator = guard.operator
    for row, value in enumerate(guard.own_values(batch)):
        if keepalive.due:
            keepalive.send()
        try:
            append(function(value))
        except failure() as error:
            if guard.stops(batch, row):
                break
            guard.failed(batch, row, error)
            failed.append(row)
    if len(results) == len(batch):
        return batch, results
    done = len(results) + len(failed)
    return batch.take(np.delete(np.arange(done), failed)), results
