"""The records on disk that have no room in memory (I6).

Guarantees that reading returns equal records, in slices, in the order that their operator asks for.
One budget bounds the disk of a worker, and the flow ends with a clear error beyond it. Invariant: a
slice holds all or none of the records of one place in the total order. Cost: about 10 us per
record, for writing and reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice, repeat
from typing import Any, Literal, cast

import numpy as np

from meander.dataflow.backpressure.memory_limit import MemoryLimit
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.records.batch import Batch, Int64s, UInt64s
from meander.dataflow.records.extra_columns import Cell, cells, from_cells
from meander.dataflow.records.loop_times import Iterations
from meander.state.encoding import codec
from meander.state.encoding.codec import UnencodableError
from meander.state.encoding.value_columns import ValueColumns, Values, concat_values
from meander.state.store.spill import Entry, SpillStore

RowOrder = Literal["total", "inputs_first", "arrival"]
"""The order of records: the total order, the same with the input right behind the time, or by time
and order of arrival."""
SLICE_ROWS, SLICE_BYTES = 512, 1 << 18
"""The approximate records and bytes of one read. Records of one place stay together."""
NUMBER = 8
"""Bytes of a number in a key."""
_SIGN = np.uint64(1 << 63)
_TOGETHER = {"total": 5 * NUMBER + 1, "inputs_first": 6 * NUMBER, "arrival": 2 * NUMBER}
"""The bytes of a key that name a place. A tag begins with the input, which is part of the place.
The arrival is not."""

Refuse = Callable[[Batch, int, UnencodableError], None]
"""Handles a record whose value cannot be encoded: it drops the record, or ends the flow."""
Content = (
    tuple[bytes | None, object]
    | tuple[bytes | None, str, bytes]
    | tuple[bytes | None, str | None, object, dict[str, Cell]]
)
"""The key and the value of a record; from value columns their kinds, and the bytes of the value. A
record with extra columns has kinds or None, the value, and its values in these columns."""


class SpillBudget:
    """A budget that bounds the bytes of all operators of a worker on disk.

    >>> budget = SpillBudget(10)
    >>> budget.reserve("operator 'a'", 9); budget.release(4); budget.used
    5
    """

    def __init__(self, max_bytes: int) -> None:
        self.used, self._max_bytes = 0, max_bytes
        self.written = 0
        """Bytes written since the start."""

    def reserve(self, subject: str, size: int) -> None:
        """Count written bytes. Raises MeanderError beyond the budget."""
        self.used += size
        self.written += size
        MemoryLimit(subject, self._max_bytes, "max_spill").check(
            self.used, "this worker's records wait on disk"
        )

    def release(self, size: int) -> None:
        """Uncount bytes that have been read back."""
        self.used -= size


class DiskRows:
    """A queue that holds records of one operator, or of one of its bins, on disk. All have equal
    iterations."""

    def __init__(
        self,
        subject: str,
        iterations: Iterations,
        store: SpillStore,
        budget: SpillBudget,
        order: RowOrder,
        refuse: Refuse,
    ) -> None:
        self._subject, self._iterations, self._store = subject, iterations, store
        self._budget, self._order, self._refuse = budget, order, refuse
        self._count = 0

    @property
    def least(self) -> int | None:
        """Return the least outer time, or None."""
        first = self._store.first
        return None if first is None else int(_numbers(first[:NUMBER])[0])

    def write(self, rows: Rows) -> None:
        """Write records. Raises MeanderError beyond the budget, and any error of `refuse`."""
        batch, data, encodable = rows.batch, [], []
        for row, content in enumerate(_contents(batch)):
            try:
                data.append(codec.encode(content))
            except UnencodableError as error:
                self._refuse(batch, row, error)
            else:
                encodable.append(row)
        if not encodable:
            return
        keys = self._keys(
            rows if len(encodable) == len(rows) else rows.take(np.array(encodable, np.int64))
        )
        self._budget.reserve(self._subject, sum(map(len, keys)) + sum(map(len, data)))
        self._store.put(list(zip(keys, data, strict=True)))

    def rows(self) -> Iterator[Rows]:
        """Return all records as of the call in order, in slices. They stay on disk."""
        return self._sliced(self._store.entries())

    def _sliced(self, entries: Iterator[Entry]) -> Iterator[Rows]:
        while some := list(islice(entries, SLICE_ROWS)):
            yield self._rows(some, sum(len(data) for _, data in some))

    def pop_first(self, before: int | None) -> Rows:
        """Remove and return the first records, of outer times before `before` where given. There is
        at least one."""
        entries: list[Entry] = []
        following: bytes | None = None
        size, together = 0, _TOGETHER[self._order]
        end = None if before is None else _bytes(np.array([[before]], np.int64))
        for key, data in self._store.entries():
            full = len(entries) >= SLICE_ROWS or size >= SLICE_BYTES
            apart = entries and key[:together] != entries[-1][0][:together]
            if (full and apart) or (end is not None and key[:NUMBER] >= end):
                following = key
                break
            entries.append((key, data))
            size += len(data)
        self._budget.release(size + sum(len(key) for key, _ in entries))
        self._store.drop(entries, following)
        return self._rows(entries, size)

    def _keys(self, rows: Rows) -> list[bytes]:
        b, n = rows.batch, len(rows)
        arrived = np.arange(self._count, self._count + n)
        self._count += n
        columns = [b.origins, b.partitions, b.offsets, b.indexes, rows.tags]
        if self._order == "inputs_first":
            columns.insert(0, rows.inputs)
        columns.insert(0 if self._order == "arrival" else len(columns), arrived)
        numbers = _bytes(np.stack([b.times, *columns, b.bin_hashes.view(np.int64)], axis=1))
        width = len(numbers) // n
        return [numbers[start : start + width] for start in range(0, len(numbers), width)]

    def _rows(self, entries: list[Entry], size: int) -> Rows:
        numbers = _numbers(b"".join(key for key, _ in entries)).reshape(len(entries), -1).T
        times, *middle, hashes = numbers
        place = middle[:5] if self._order == "total" else middle[1:6]
        origins, partitions, offsets, indexes, tags = map(np.ascontiguousarray, place)
        contents = [cast(Content, codec.decode(data)) for _, data in entries]
        times = np.ascontiguousarray(times)
        # All records of one input have keys, or none has.
        keys = [key for key, *_ in contents if key is not None]
        whole = np.ascontiguousarray(hashes).view(np.uint64)
        extra = [one[3] if len(one) == 4 else {} for one in contents]
        batch = Batch(
            times, origins, partitions, offsets, indexes, _values(contents), keys or None,
            whole if keys else None, max(size, 1), None,
            from_cells(extra, times) if any(extra) else None,
        )  # fmt: skip
        return Rows(batch, tags, self._iterations)


def _contents(batch: Batch) -> Iterator[Content]:
    keys: Iterable[bytes | None] = repeat(None) if batch.keys is None else batch.keys
    values = batch.values
    if isinstance(values, ValueColumns):
        rows, kinds = values.to_rows(), values.kinds
        if batch.extra:
            return zip(keys, repeat(kinds), rows, cells(batch.extra), strict=False)
        return zip(keys, repeat(kinds), rows, strict=False)
    if batch.extra:
        return zip(keys, repeat(None), values, cells(batch.extra), strict=False)
    return zip(keys, values, strict=False)


def _values(contents: list[Content]) -> Values:
    parts: list[Values] = []
    for kinds, some in groupby(contents, lambda one: one[1] if len(one) > 2 else None):
        values: list[Any] = [one[1] if len(one) == 2 else one[2] for one in some]
        parts.append(values if kinds is None else ValueColumns.from_rows(kinds, values))
    return concat_values(parts)


def _bytes(numbers: Int64s) -> bytes:
    """Encode numbers as bytes that sort in the same order."""
    return bytes((np.ascontiguousarray(numbers).view(np.uint64) ^ _SIGN).astype(">u8").tobytes())


def _numbers(data: bytes) -> Int64s:
    """Decode `_bytes`.

    >>> _numbers(_bytes(np.array([-2, 3]))).tolist(), _bytes(np.array([-2])) < _bytes(np.array([3]))
    ([-2, 3], True)
    """
    unsigned: UInt64s = np.frombuffer(data, ">u8").astype(np.uint64)
    return (unsigned ^ _SIGN).view(np.int64)
