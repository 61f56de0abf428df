"""A message's payload: records as columns.

A record's place in the total order of its flow is (time, origin, partition, offset, index, bytes of
its value): `origin` numbers the source (or the operator whose timer emitted it), `partition` and
`offset` say where it was read (or the key's hash, and 0 for a timer or 1 for a notice), `index` is
the position among the outputs of one input. All columns have the same length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import numpy as np
import numpy.typing as npt

from meander.dataflow.records.packing import guessed_size_of, size_of
from meander.state.encoding import codec
from meander.state.encoding.cells import pick
from meander.state.encoding.codec import UnencodableError

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HEAD = 3
"""Bytes before those of a byte string, at most, up to 65,535 of them."""
ROW_BYTES = 128
"""About what a record takes beside its value's bytes: columns, key, and Python's objects."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Records as columns; `keys` and `hashes` stand once the stream has been keyed.

    Shapes: every array and list is (n,). `keys` are encoded by `codec`, `hashes` are xxh3
    of those bytes, and a key's bin is the top bits of its hash. `size` is about how many bytes
    the values take when encoded, 0 while nobody has needed to know; `packed` is `values` encoded,
    where that has been done.
    """

    times: Int64s
    origins: Int64s
    partitions: Int64s
    offsets: Int64s
    indexes: Int64s
    values: list[object]
    keys: list[bytes] | None = None
    hashes: UInt64s | None = None
    size: int = 0
    packed: bytes | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Int64s) -> Batch:
        """The named rows, in the order named."""
        chosen: list[int] = rows.tolist()
        return Batch(
            self.times[rows], self.origins[rows], self.partitions[rows], self.offsets[rows],
            self.indexes[rows], pick(self.values, chosen),
            None if self.keys is None else pick(self.keys, chosen),
            None if self.hashes is None else self.hashes[rows],
            self.size * len(rows) // max(len(self), 1),
        )  # fmt: skip

    def with_values(self, values: list[object]) -> Batch:
        """The same records with other values."""
        return self._with(values, 0, None)

    def with_packed(self, packed: bytes) -> Batch:
        """The same records, whose values these are when encoded."""
        return self._with(self.values, len(packed), packed)

    def without_keys(self) -> Batch:
        """The same records on a stream that has none."""
        return self if self.keys is None else replace(self, keys=None, hashes=None)

    def _with(self, values: list[object], size: int, packed: bytes | None) -> Batch:
        # As `replace` does, for a third of the price.
        return Batch(
            self.times, self.origins, self.partitions, self.offsets, self.indexes, values,
            self.keys, self.hashes, size, packed,
        )  # fmt: skip

    def with_size(self, size: int) -> Batch:
        """The same records, whose values take so many bytes when encoded."""
        return self._with(self.values, size, self.packed)

    @property
    def places(self) -> UInt64s:
        """The hashes whose top bits are the records' bins: those of their keys, or where they have
        none those of the partitions that they come from. Shape (n,)."""
        if self.hashes is not None:
            return self.hashes
        # Multiples of the golden ratio are spread evenly, however few there are.
        numbers = self.partitions + (self.origins << 32)
        return numbers.astype(np.uint64) * _GOLDEN

    @property
    def weight(self) -> int:
        """About how many bytes it takes in memory, once measured."""
        return self.size + ROW_BYTES * len(self)

    @property
    def guessed_weight(self) -> int:
        """The same, of a sample of the values where it has not been measured."""
        if self.size:
            return self.weight
        return guessed_size_of(self.values) + ROW_BYTES * len(self)

    def measured(self) -> Batch:
        """The same with `size` known; values that cannot be encoded count as they lie in memory."""
        if self.size or not self.values:
            return self
        if {*map(type, self.values)} == {bytes}:
            size = sum(map(len, cast(list[bytes], self.values))) + _HEAD * len(self)
            return self._with(self.values, size, self.packed)
        return self._with(self.values, size_of(self.values), self.packed)

    def isolated(self) -> Batch:
        """The same records with values of their own: who changes one in place changes it here
        only. Values that cannot be encoded are shared, as nobody else knows how to copy them."""
        try:
            if codec.all_fixed(self.values):
                return self._with(self.values, self.size, None)
            packed = codec.encode(self.values) if self.packed is None else self.packed
        except UnencodableError:
            return self._with([_own(value) for value in self.values], self.size, self.packed)
        return self._with(cast(list[object], codec.decode(packed)), self.size, None)

    @staticmethod
    def concat(batches: list[Batch]) -> Batch:
        """All records of all batches, in order; either all batches are keyed or none."""
        if len(batches) == 1:
            return batches[0]
        keyed = batches[0].keys is not None
        assert all((b.keys is not None) == keyed for b in batches), "one place, one kind of records"
        return Batch(
            np.concatenate([b.times for b in batches]),
            np.concatenate([b.origins for b in batches]),
            np.concatenate([b.partitions for b in batches]),
            np.concatenate([b.offsets for b in batches]),
            np.concatenate([b.indexes for b in batches]),
            list(chain.from_iterable(b.values for b in batches)),
            list(chain.from_iterable(b.keys or () for b in batches)) if keyed else None,
            np.concatenate([b.hashes for b in batches if b.hashes is not None]) if keyed else None,
            sum(b.size for b in batches),
        )


def _own(value: object) -> object:
    try:
        return codec.unseal(codec.seal(value))
    except UnencodableError:
        return value
