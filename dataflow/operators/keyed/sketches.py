"""Approximate aggregates as folds over columns: distinct values and quantiles, by sketches.

Guarantees that the bytes of a state follow from the values in their order alone, however batches
cut them: a distinct count by HyperLogLog, which its bytes hold whole, and quantiles by a t-digest,
which takes its values in blocks of `BLOCK`, as its bytes depend on where it is written. Equal
values of equal types count once. Cost: one reading and writing of a sketch per key and batch, up to
2 KB of a distinct count, and 6 KB of quantiles; docs/decisions.md has the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import xxhash
from datasketches import hll_sketch, hll_union, tdigest_double, tgt_hll_type

from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.records.batch import Int64s
from meander.schemas.errors import SetupError
from meander.schemas.option_values import is_number
from meander.state.encoding import codec
from meander.state.encoding.columns import Column, Columns, column_of

LOG_REGISTERS: Final = 12
"""The binary logarithm of the registers of a distinct count."""
COMPRESSION: Final = 200
"""The compression of a t-digest: about half as many centroids."""
BLOCK: Final = 256
"""The values that a t-digest takes at once."""
_BLOCK_BYTES: Final = 8 * BLOCK
_HALF: Final = 1 << 63

Digest = tuple[bytes, bytes]
"""A t-digest, empty where it has no values, and the values that wait for it."""


def distinct_fold(of: str | None) -> ColumnFold:
    """Return a fold that estimates the number of different values."""

    def step(states: Columns, values: Column) -> tuple[Columns, Column]:
        after = _each_group(states, np.arange(len(values)), values, _counted)
        return after, _estimates(after)

    return ColumnFold(
        (b"",), step, ("object",), "object", of, merge=_merged_counts, result=_estimates,
        grouped=lambda s, g, v: _each_group(s, g, v, _counted), name="approx_distinct",
    )  # fmt: skip


def quantile_fold(fractions: Sequence[float], of: str | None) -> ColumnFold:
    """Return a fold that estimates the quantiles of some fractions. Raises SetupError for others
    than 0 to 1."""
    if not fractions or not all(_is_fraction(one) for one in fractions):
        raise SetupError(
            "quantiles", f"their fractions are {fractions!r}", "give some of 0 to 1, such as 0.99"
        )
    wanted = [*map(float, fractions)]

    def results(states: Columns) -> Column:
        return column_of([_quantiles((a, b), wanted) for a, b in _digests(states)], "object")

    def step(states: Columns, values: Column) -> tuple[Columns, Column]:
        after = _each_group(states, np.arange(len(values)), values, _digested)
        return after, results(after)

    return ColumnFold(
        (b"", b""), step, ("object", "object"), "float64", of, merge=_merged_digests,
        result=results, grouped=lambda s, g, v: _each_group(s, g, v, _digested),
        name=f"quantiles({', '.join(f'{one:g}' for one in wanted)})",
    )  # fmt: skip


def _is_fraction(value: object) -> bool:
    return is_number(value) and 0 <= value <= 1


def _each_group(
    states: Columns, groups: Int64s, values: Column, add: Callable[..., tuple[bytes, ...]]
) -> Columns:
    """Return the states with the values of their groups, in order."""
    after = tuple(column.copy() for column in states)
    order = np.argsort(groups, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        group = int(groups[rows[0]])
        changed = add(*(column[group] for column in after), values[rows])
        for column, state in zip(after, changed, strict=True):
            column[group] = state
    return after


# -- distinct values


def _counted(data: bytes, values: Column) -> tuple[bytes]:
    sketch = hll_sketch.deserialize(data) if data else _new_count()
    for value in values.tolist():
        sketch.update(xxhash.xxh3_64_intdigest(codec.encode_key(value)) - _HALF)
    return (sketch.serialize_compact(),)


def _new_count() -> hll_sketch:
    return hll_sketch(LOG_REGISTERS, tgt_hll_type.HLL_4)


def _merged_counts(earlier: Columns, later: Columns) -> Columns:
    found = list[bytes]()
    for pair in zip(earlier[0].tolist(), later[0].tolist(), strict=True):
        union = hll_union(LOG_REGISTERS)
        for data in filter(None, pair):
            union.update(hll_sketch.deserialize(data))
        found.append(union.get_result(tgt_hll_type.HLL_4).serialize_compact())
    return (column_of(found, "object"),)


def _estimates(states: Columns) -> Column:
    estimates = [
        round(hll_sketch.deserialize(data).get_estimate()) if data else 0
        for data in states[0].tolist()
    ]
    return column_of(estimates, "int64")


# -- quantiles


def _digested(data: bytes, waiting: bytes, values: Column) -> Digest:
    if not np.isfinite(values).all():
        raise ValueError("a quantile orders finite numbers alone")
    return _with_values(data, waiting + values.tobytes())


def _with_values(data: bytes, waiting: bytes) -> Digest:
    """Return a digest with all full blocks of the values that wait for it."""
    while len(waiting) >= _BLOCK_BYTES:
        block, waiting = waiting[:_BLOCK_BYTES], waiting[_BLOCK_BYTES:]
        data = _digest(data, block).serialize()
    return data, waiting


def _digest(data: bytes, values: bytes) -> tdigest_double:
    digest = tdigest_double.deserialize(data) if data else tdigest_double(COMPRESSION)
    # It takes no array that cannot be written.
    digest.update(np.frombuffer(values, np.float64).copy())
    return digest


def _merged_digests(earlier: Columns, later: Columns) -> Columns:
    found = list[Digest]()
    for (data, waiting), (more, others) in zip(_digests(earlier), _digests(later), strict=True):
        merged = data or more
        if data and more:
            digest = tdigest_double.deserialize(data)
            digest.merge(tdigest_double.deserialize(more))
            merged = digest.serialize()
        found.append(_with_values(merged, waiting + others))
    parts = zip(*found, strict=True)
    return tuple(column_of(part, "object") for part in parts)


def _digests(states: Columns) -> list[Digest]:
    return [*zip(states[0].tolist(), states[1].tolist(), strict=True)]


def _quantiles(state: Digest, fractions: Sequence[float]) -> list[float]:
    digest = _digest(*state)
    return [digest.get_quantile(one) for one in fractions]
