"""The identity of a record: when it was due, microseconds since 1970, and its kind in two bits.

Its result repeats it, so that latencies tell the operator, and the bins that move, apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from benchmarks import load
from benchmarks.open_loop import Lost
from meander.app.measurement.latencies import Timeline
from meander.app.measurement.open_loop import LoadRecord, Measured
from meander.state.keys.bins import BinSpace

STAYS, UNAFFECTED, MOVES = 0, 1, 2
"""The kinds: a key of the affected operator whose bin stays, the other operator, and a key of the
affected operator whose bin moves."""
_BITS, _UNAFFECTED_BIT = 3, 1
BINS = BinSpace(8)


def is_affected(identity: int) -> bool:
    """Return whether the record is one of the affected operator.

    >>> [is_affected(one) for one in (4_000 | STAYS, 4_000 | UNAFFECTED, 4_000 | MOVES)]
    [True, False, True]
    """
    return not identity & _UNAFFECTED_BIT


def records(
    moved: Collection[int], dues: Iterator[float], partitions: int, keys: int, skewed: bool
) -> Iterator[LoadRecord]:
    """Keys drawn at random, in turns for both operators; the bins in `moved` are those that move.
    What is due in one millisecond goes to one partition."""
    drawn = load.keys(2, keys, skewed=skewed)
    for number, (key, due) in enumerate(zip(drawn, dues, strict=False)):
        affected = MOVES if BINS.bin_of(key) in moved else STAYS
        identity = int(due * 1e6) & ~_BITS | (UNAFFECTED if number % 2 else affected)
        yield LoadRecord(key, b"%b %d" % (key, identity), identity // 1000 % partitions, [])


@dataclass(frozen=True, slots=True)
class Timelines:
    """What came of the records of each kind."""

    affected: Timeline
    """Of the affected operator, those of moving bins included."""
    moved: Timeline
    unaffected: Timeline

    @classmethod
    def of(cls, measured: Measured) -> Self:
        """Take the first result of each record. Raises Lost where records have none."""
        identities, first = np.unique(measured.identities, return_index=True)
        if len(identities) < len(measured.due):
            lost = len(measured.due) - len(identities)
            raise Lost(f"{lost:,} of {len(measured.due):,} records have no result")
        due, kinds = identities / 1e6, identities & _BITS
        took = (measured.arrived[first] - due) * 1000
        masks = kinds != UNAFFECTED, kinds == MOVES, kinds == UNAFFECTED
        return cls(*(Timeline.of(due[mask], took[mask]) for mask in masks))
