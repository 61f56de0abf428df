"""What sources rule about records' times, where their logs alone do not say them (design 2).

A record's time is the running maximum of what its partition's records ask for, unless its source
rules otherwise: the partition has moved on by itself, so all from an offset on have at least that
time; or a record asks for a time too far ahead, which counts for nothing. Guarantees that logs and
rulings give each record the time it had: a ruling travels in the update of progress that makes it
effective, so whoever sees a frontier pass T has heard all that was ruled before T. Cost: one
ruling per move of an idle partition and per run of records of the future; nothing per record.
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
"""The time of what follows the end of a bounded run: later than all that is out of that run."""


class TimestampOverride(NamedTuple):
    """One ruling of one source about the next record of a partition."""

    origin: int
    """The source's number in the flow."""
    partition: Partition
    offset: int
    """Of the next record: the one behind the last that has been sent."""
    time: int
    """What it has at least, and with it all behind it."""
    last: int | None = None
    """Of records of the future, up to this offset, which have that very time; else None."""


class Rulings:
    """Those that have been heard and not yet been committed; of several about the same place the
    one of the latest time is enough, as no record came between them.

    >>> heard = Rulings()
    >>> one = TimestampOverride(0, Partition(1), 7, 5)
    >>> heard.add([one, one._replace(time=9)])
    >>> [ruling.time for ruling in heard.take()], bool(heard)
    ([9], False)
    """

    def __init__(self) -> None:
        self._heard: dict[tuple[int, int, int, int | None], TimestampOverride] = {}

    def add(self, rulings: Iterable[TimestampOverride]) -> None:
        """Some have been heard, of one place perhaps from several of its readers, in any order."""
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
        """All that have not been taken."""
        taken, self._heard = tuple(self._heard.values()), {}
        return taken


class PartitionOverrides:
    """What is known to have been ruled about one partition.

    >>> one = TimestampOverride(0, Partition(0), 3, 20)
    >>> track = PartitionOverrides(100, [one, one._replace(offset=5, time=50)])
    >>> track.floors(np.array([2, 3, 4, 5])).tolist(), track.floor(9)
    ([0, 20, 20, 50], 50)
    """

    def __init__(self, mark: int, rulings: Sequence[TimestampOverride] = ()) -> None:
        self.mark = mark
        """Before it nothing else is to be ruled."""
        moves = sorted((r.offset, r.time) for r in rulings if r.last is None)
        self._offsets = np.array([offset for offset, _ in moves], np.int64)
        times = [MIN_TIME, *(time for _, time in moves)]
        self._floors = np.maximum.accumulate(np.array(times, np.int64))
        runs = sorted((r.offset, r.last) for r in rulings if r.last is not None)
        self._firsts = np.array([first for first, _ in runs], np.int64)
        self._lasts = np.maximum.accumulate(np.array([-1, *(last for _, last in runs)], np.int64))
        self.end = max((1 + (r.offset if r.last is None else r.last) for r in rulings), default=0)
        """Nothing has been ruled about offsets from there on."""

    def floors(self, offsets: Int64s) -> Int64s:
        """What the records at some offsets have at least."""
        return self._floors[np.searchsorted(self._offsets, offsets, side="right")]

    def floor(self, offset: int) -> int:
        """What the record at an offset has at least, and all behind it."""
        return int(self.floors(np.array([offset]))[0])

    def future(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Which of the records at some offsets count for nothing."""
        return offsets <= self._lasts[np.searchsorted(self._firsts, offsets, side="right")]


class OverrideHistory:
    """What has been ruled before: a replay follows it, and rules nothing else before the mark.

    All that was ruled before the mark has to be known; of what is after it, whatever is known.

    >>> OverrideHistory().of(0, Partition(3)).mark == MIN_TIME
    True
    """

    def __init__(
        self, mark: int = MIN_TIME, rulings: Iterable[TimestampOverride] = (),
        marks: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        """`marks` are of single sources, where what is out of others says nothing of theirs."""
        self.mark = mark
        """What was out before it stays as it was."""
        self._marks = marks or {}
        found = defaultdict[tuple[int, Partition], list[TimestampOverride]](list)
        for ruling in rulings:
            if ruling.time == BEHIND_ALL:
                continue  # only who knows what is out can say which time that is
            found[ruling.origin, ruling.partition].append(ruling)
        self._tracks = {
            place: PartitionOverrides(self._of(place[0]), some) for place, some in found.items()
        }

    def of(self, origin: int, partition: Partition) -> PartitionOverrides:
        """What has been ruled about a partition of a source, named by its number in the flow."""
        return self._tracks.get((origin, partition)) or PartitionOverrides(self._of(origin))

    def _of(self, origin: int) -> int:
        return self._marks.get(origin, self.mark)


NO_PAST = OverrideHistory()
"""Of a flow that begins."""
