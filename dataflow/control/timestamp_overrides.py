"""The timestamp overrides of sources: times of records that logs alone do not give (design 2).

The time of a record is the running maximum of the times that its partition requests. An override
replaces it in two cases: an idle advance, or the rejected time of a future record.

Guarantees that logs and overrides repeat the time of each record. An override travels in the
progress update that makes it effective, so each member that sees a frontier pass its time has it.
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
    """A timestamp override for the next record of a partition."""

    origin: int
    """The number of the source in the flow."""
    partition: Partition
    offset: int
    """The offset of the next record, behind the last sent record."""
    time: int
    """The least time of that record and of all later ones."""
    last: int | None = None
    """The last offset of a run of future records with exactly this time; None for an advance."""


class PendingOverrides:
    """A set of overrides that no commit marker has yet. Of several overrides at one offset the
    latest time counts, as no record is between them.

    >>> pending = PendingOverrides()
    >>> one = TimestampOverride(0, Partition(1), 7, 5)
    >>> pending.add([one, one._replace(time=9)])
    >>> [override.time for override in pending.drain()], bool(pending)
    ([9], False)
    """

    def __init__(self) -> None:
        self._overrides: dict[tuple[int, int, int, int | None], TimestampOverride] = {}

    def add(self, overrides: Iterable[TimestampOverride]) -> None:
        """Add overrides in any order. Several readers may send overrides at one offset."""
        for one in overrides:
            place = one.origin, one.partition, one.offset, one.last
            known = self._overrides.get(place)
            if known is None or one.time > known.time:
                self._overrides[place] = one

    def __iter__(self) -> Iterator[TimestampOverride]:
        return iter(self._overrides.values())

    def __len__(self) -> int:
        return len(self._overrides)

    def drain(self) -> tuple[TimestampOverride, ...]:
        """Remove and return all overrides."""
        drained, self._overrides = tuple(self._overrides.values()), {}
        return drained


class PartitionOverrides:
    """A table of the known overrides of one partition.

    >>> one = TimestampOverride(0, Partition(0), 3, 20)
    >>> overrides = PartitionOverrides(100, [one, one._replace(offset=5, time=50)])
    >>> overrides.floors(np.array([2, 3, 4, 5])).tolist(), overrides.floor(9)
    ([0, 20, 20, 50], 50)
    """

    def __init__(self, replay_end: int, overrides: Sequence[TimestampOverride] = ()) -> None:
        self.replay_end = replay_end
        """The time before which the source gives no further overrides."""
        advances = sorted((one.offset, one.time) for one in overrides if one.last is None)
        self._offsets = np.array([offset for offset, _ in advances], np.int64)
        times = [MIN_TIME, *(time for _, time in advances)]
        self._floors = np.maximum.accumulate(np.array(times, np.int64))
        self.latest = int(self._floors[-1])
        """The time of the last advance, or `MIN_TIME`."""
        runs = sorted((one.offset, one.last) for one in overrides if one.last is not None)
        self._firsts = np.array([first for first, _ in runs], np.int64)
        self._lasts = np.maximum.accumulate(np.array([-1, *(last for _, last in runs)], np.int64))
        last = (one.offset if one.last is None else one.last for one in overrides)
        self.end = 1 + max(last, default=-1)
        """The offset from which no override is known."""

    def floors(self, offsets: Int64s) -> Int64s:
        """Return the least times of the records at some offsets."""
        return self._floors[np.searchsorted(self._offsets, offsets, side="right")]

    def floor(self, offset: int) -> int:
        """Return the least time of the record at an offset and of all later ones."""
        return int(self.floors(np.array([offset]))[0])

    def future(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return a mask of the records at some offsets with rejected times."""
        return offsets <= self._lasts[np.searchsorted(self._firsts, offsets, side="right")]


class OverrideHistory:
    """A history of the overrides of earlier executions. A replay follows it, and gives no others
    before its end.

    The history holds all overrides before the end of the replay, and may hold later ones.

    >>> OverrideHistory().of(0, Partition(3)).replay_end == MIN_TIME
    True
    """

    def __init__(
        self, replay_end: int = MIN_TIME, overrides: Iterable[TimestampOverride] = (),
        replay_ends: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        """`replay_ends` are those of single sources, by number."""
        self.replay_end = replay_end
        """The time before which a replay repeats committed results."""
        self._replay_ends = replay_ends or {}
        found = defaultdict[tuple[int, Partition], list[TimestampOverride]](list)
        for override in overrides:
            if override.time == BEHIND_ALL:
                continue  # its time depends on committed results, which are unknown here
            found[override.origin, override.partition].append(override)
        self._partitions = {
            place: PartitionOverrides(self._replay_end_of(place[0]), some)
            for place, some in found.items()
        }

    def of(self, origin: int, partition: Partition) -> PartitionOverrides:
        """Return the overrides of a partition. `origin` is the number of its source in the flow."""
        known = self._partitions.get((origin, partition))
        return known or PartitionOverrides(self._replay_end_of(origin))

    def _replay_end_of(self, origin: int) -> int:
        return self._replay_ends.get(origin, self.replay_end)


NO_OVERRIDES = OverrideHistory()
"""The history of a new flow."""
