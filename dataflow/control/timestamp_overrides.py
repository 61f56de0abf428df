"""The timestamp overrides of sources: times of records that logs alone do not give (design 2).

The time of a record is the running maximum of the times that its partition asks for. An override
replaces it in two cases: an idle advance, or a record of the future whose time is rejected.

Guarantees that logs and overrides repeat the time of each record. An override travels in the
progress update that makes it effective, so it is known wherever a frontier has passed its time.
Cost: one override per idle advance and per run of future records; nothing per record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meander.dataflow.interfaces import Partition
from meander.dataflow.records.batch import Int64s
from meander.state.times.time import MIN_TIME

BEHIND_ALL = 1 << 62
"""A time behind the end of a bounded run, later than all results of that run."""


class TimestampOverride(NamedTuple):
    """A timestamp override that one source gives the next record of a partition."""

    origin: int
    """The number of the source in the flow."""
    partition: Partition
    offset: int
    """The offset of the next record, behind the last sent record."""
    time: int
    """The least time of that record and of all records behind it."""
    last: int | None = None
    """The last offset of a run of future records that have exactly this time; else None."""


class Rulings:
    """The received overrides that are not committed yet. One place keeps the override of the latest
    time, as no record came between.

    >>> heard = Rulings()
    >>> one = TimestampOverride(0, Partition(1), 7, 5)
    >>> heard.add([one, one._replace(time=9)])
    >>> [ruling.time for ruling in heard.take()], bool(heard)
    ([9], False)
    """

    def __init__(self) -> None:
        self._heard: dict[tuple[int, int, int, int | None], TimestampOverride] = {}

    def add(self, rulings: Iterable[TimestampOverride]) -> None:
        """Add received overrides, in any order. Several readers may have sent those of one
        place."""
        for one in rulings:
            place = one.origin, one.partition, one.offset, one.last
            known = self._heard.get(place)
            if known is None or one.time > known.time:
                self._heard[place] = one

    def __iter__(self) -> Iterator[TimestampOverride]:
        return iter(self._heard.values())

    def __len__(self) -> int:
        return len(self._heard)

    def take(self) -> tuple[TimestampOverride, ...]:
        """Return and remove all overrides."""
        taken, self._heard = tuple(self._heard.values()), {}
        return taken


class PartitionOverrides:
    """The overrides that are known of one partition.

    >>> one = TimestampOverride(0, Partition(0), 3, 20)
    >>> track = PartitionOverrides(100, [one, one._replace(offset=5, time=50)])
    >>> track.floors(np.array([2, 3, 4, 5])).tolist(), track.floor(9)
    ([0, 20, 20, 50], 50)
    """

    def __init__(self, mark: int, rulings: Sequence[TimestampOverride] = ()) -> None:
        self.mark = mark
        """A time before which the source gives no further overrides."""
        moves = sorted((r.offset, r.time) for r in rulings if r.last is None)
        self._offsets = np.array([offset for offset, _ in moves], np.int64)
        times = [MIN_TIME, *(time for _, time in moves)]
        self._floors = np.maximum.accumulate(np.array(times, np.int64))
        runs = sorted((r.offset, r.last) for r in rulings if r.last is not None)
        self._firsts = np.array([first for first, _ in runs], np.int64)
        self._lasts = np.maximum.accumulate(np.array([-1, *(last for _, last in runs)], np.int64))
        self.end = max((1 + (r.offset if r.last is None else r.last) for r in rulings), default=0)
        """The offset from which no override is known."""

    def floors(self, offsets: Int64s) -> Int64s:
        """Return the least times of the records at some offsets."""
        return self._floors[np.searchsorted(self._offsets, offsets, side="right")]

    def floor(self, offset: int) -> int:
        """Return the least time of the record at an offset and of all behind it."""
        return int(self.floors(np.array([offset]))[0])

    def future(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return a mask of the records at some offsets whose times are rejected."""
        return offsets <= self._lasts[np.searchsorted(self._firsts, offsets, side="right")]


class OverrideHistory:
    """A history that holds the overrides of earlier executions. A replay follows it, and gives no
    others before the mark.

    The history must hold all overrides before the mark. Behind the mark it may hold any.

    >>> OverrideHistory().of(0, Partition(3)).mark == MIN_TIME
    True
    """

    def __init__(
        self, mark: int = MIN_TIME, rulings: Iterable[TimestampOverride] = (),
        marks: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        """Take overrides and marks. `marks` hold single sources whose results no other source
        shares."""
        self.mark = mark
        """The time before which committed results stay as they are."""
        self._marks = marks or {}
        found = defaultdict[tuple[int, Partition], list[TimestampOverride]](list)
        for ruling in rulings:
            if ruling.time == BEHIND_ALL:
                continue  # its time depends on the committed results, which this does not know
            found[ruling.origin, ruling.partition].append(ruling)
        self._tracks = {
            place: PartitionOverrides(self._of(place[0]), some) for place, some in found.items()
        }

    def of(self, origin: int, partition: Partition) -> PartitionOverrides:
        """Return the overrides of a partition of a source. `origin` is the number of the source in
        the flow."""
        return self._tracks.get((origin, partition)) or PartitionOverrides(self._of(origin))

    def _of(self, origin: int) -> int:
        return self._marks.get(origin, self.mark)


NO_PAST = OverrideHistory()
"""The history of a new flow."""
