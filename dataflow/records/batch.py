"""The batch: the records of a message as columns of equal length.

The place of a record in the total order is (time, origin, partition, offset, index, bytes of its
value). `origin` numbers the source, or the operator whose timer emitted the record. `partition` and
`offset` name the position in the source. For a timer they are the key's hash and 0, and for a
notification the key's hash and 1. `index` is the position among the outputs of one input.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import numpy as np
import numpy.typing as npt

from meander.dataflow.records import extra_columns
from meander.dataflow.records.extra_columns import EVENT_MS, ExtraColumn, ExtraColumns
from meander.dataflow.records.packing import (
    decode_own_values,
    encode_values,
    encoded_size,
    estimated_size,
)
from meander.state.encoding import codec
from meander.state.encoding.cells import pick
from meander.state.encoding.codec import UnencodableError
from meander.state.encoding.value_columns import Values, concat_values

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HEAD = 3
"""The most bytes of a msgpack head before a byte string of up to 65,535 bytes."""
ROW_BYTES = 128
"""The approximate bytes of a record besides its value: columns, key, and Python objects."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that holds records as columns. A keyed stream also has `keys` and `hashes`.

    Shapes: every array and list is (n,). `codec` encodes `keys`, `hashes` are xxh3 of those bytes,
    and the top bits of a hash are the bin. `values` are any objects, or tuples of numbers as
    columns. `size` is about the encoded bytes of the values, 0 while unknown. `packed` holds the
    encoded values where they exist. `extra` holds the extra columns that a function asks for.
    """

    times: Int64s
    origins: Int64s
    partitions: Int64s
    offsets: Int64s
    indexes: Int64s
    values: Values
    keys: list[bytes] | None = None
    hashes: UInt64s | None = None
    size: int = 0
    packed: bytes | None = None
    extra: ExtraColumns | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Int64s) -> Batch:
        """Return rows by number, in the given order."""
        chosen: list[int] = rows.tolist()
        values = self.values
        return Batch(
            self.times[rows], self.origins[rows], self.partitions[rows], self.offsets[rows],
            self.indexes[rows],
            # A check for the abstract type costs ten times that for a list.
            pick(values, chosen) if isinstance(values, list) else values.take(rows),
            None if self.keys is None else pick(self.keys, chosen),
            None if self.hashes is None else self.hashes[rows],
            self.size * len(rows) // max(len(self), 1), None,
            extra_columns.take(self.extra, rows) if self.extra else None,
        )  # fmt: skip

    def between(self, first: int, end: int) -> Batch:
        """Return consecutive rows, without a copy of their columns."""
        rows = slice(first, end)
        values = self.values[rows]
        return Batch(
            self.times[rows], self.origins[rows], self.partitions[rows], self.offsets[rows],
            self.indexes[rows], values,
            None if self.keys is None else self.keys[rows],
            None if self.hashes is None else self.hashes[rows],
            self.size * len(values) // max(len(self), 1), None,
            extra_columns.between(self.extra, rows) if self.extra else None,
        )  # fmt: skip

    def with_values(self, values: Values) -> Batch:
        """Return the same records with other values."""
        return self._with(values, 0, None)

    def with_outputs(self, indexes: Int64s, values: Values) -> Batch:
        """Return the same records with other indexes and values."""
        return Batch(
            self.times, self.origins, self.partitions, self.offsets, indexes, values,
            self.keys, self.hashes, extra=self.extra,
        )  # fmt: skip

    def with_keys(self, keys: list[bytes], hashes: UInt64s) -> Batch:
        """Return the same records with other keys, and their hashes."""
        return Batch(
            self.times, self.origins, self.partitions, self.offsets, self.indexes, self.values,
            keys, hashes, extra=self.extra,
        )  # fmt: skip

    def extra_column(self, name: str) -> ExtraColumn:
        """Return the values of an extra column, shape (n,)."""
        return extra_columns.column_of(name, self.extra, self.times)

    def with_own_times(self, own: Int64s) -> Batch:
        """Return the same records with other own times, shape (n,)."""
        extra = {**(self.extra or {}), EVENT_MS: own}
        if (own == extra_columns.column_of(EVENT_MS, None, self.times)).all():
            # A batch without the column stands for records whose own times are their logical ones.
            del extra[EVENT_MS]
        return replace(self, extra=extra or None)

    def with_packed(self, packed: bytes) -> Batch:
        """Return the same records with their encoded values."""
        return self._with(self.values, len(packed), packed)

    def without_keys(self) -> Batch:
        """Return the same records without keys."""
        return self if self.keys is None else replace(self, keys=None, hashes=None)

    def _with(self, values: Values, size: int, packed: bytes | None) -> Batch:
        # `replace` takes three times as long.
        return Batch(
            self.times, self.origins, self.partitions, self.offsets, self.indexes, values,
            self.keys, self.hashes, size, packed, self.extra,
        )  # fmt: skip

    def with_size(self, size: int) -> Batch:
        """Return the same records with the number of encoded bytes of their values."""
        return self._with(self.values, size, self.packed)

    @property
    def bin_hashes(self) -> UInt64s:
        """Return hashes whose top bits are the bins of the records, shape (n,): hashes of the keys,
        or without keys of the source partitions."""
        if self.hashes is not None:
            return self.hashes
        # Multiples of the golden ratio spread even few partitions evenly.
        numbers = self.partitions + (self.origins << 32)
        return numbers.astype(np.uint64) * _GOLDEN

    @property
    def weight(self) -> int:
        """Return about the bytes in memory of a measured batch."""
        return self.size + ROW_BYTES * len(self)

    @property
    def estimated_weight(self) -> int:
        """Return about the bytes in memory, from a sample of the values in an unmeasured batch."""
        if self.size:
            return self.weight
        return estimated_size(self.values) + ROW_BYTES * len(self)

    def measured(self) -> Batch:
        """Return the same batch with a known `size`. An unencodable value counts its bytes in
        memory."""
        if self.size or not self.values:
            return self
        if type(self.values) is list and {*map(type, self.values)} == {bytes}:
            size = sum(map(len, cast(list[bytes], self.values))) + _HEAD * len(self)
            return self._with(self.values, size, self.packed)
        return self._with(self.values, encoded_size(self.values), self.packed)

    def isolated(self) -> Batch:
        """Return the same records with copies of the values, so that a change in place does not
        affect other batches. Unencodable values stay shared."""
        try:
            if not isinstance(self.values, list):
                return self._with(self.values, self.size, None)
            values = codec.own_copies(self.values)
            if values is None:
                packed = encode_values(self.values) if self.packed is None else self.packed
                values = decode_own_values(packed)
        except UnencodableError:
            values = [own_value(value) for value in self.values]
        return self._with(values, self.size, None)

    @staticmethod
    def concat(batches: list[Batch]) -> Batch:
        """Return all records of some batches in order. All batches have keys, or none has."""
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
            concat_values([b.values for b in batches]),
            list(chain.from_iterable(b.keys or () for b in batches)) if keyed else None,
            np.concatenate([b.hashes for b in batches if b.hashes is not None]) if keyed else None,
            sum(b.size for b in batches),
            None,
            extra_columns.concat([(b.extra, b.times) for b in batches])
            if any(b.extra for b in batches)
            else None,
        )


def own_value(value: object) -> object:
    """Return a copy of a value that may change in place. An unencodable value stays shared."""
    try:
        return codec.unseal(codec.seal(value))
    except UnencodableError:
        return value
