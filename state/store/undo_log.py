"""The undo log: the states of an operator's bins at the last checkpoints, where they changed since.

A survivor rolls back to the newest checkpoint from its undo log and reads none of its own states
from the state topic. Invariant: suppose a bin can roll back to a checkpoint. Then each key changed
since has a before image of that checkpoint or a later one. The first of them holds its state at
the checkpoint. An installed or dropped bin cannot roll back. Cost: that of `BeforeImages`, and
about 100 bytes for the first change of a key since the last checkpoint. Where the log exceeds its
share of the memory (I6), it forgets whole bins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from meander.state.encoding.timers import Timers
from meander.state.keys.ids import Bin, CheckpointId
from meander.state.store.before_images import BeforeImages, Images

TIMER_BYTES: Final = 72
"""The bytes of a timer."""


class _CheckpointInterval:
    """The changes between a checkpoint and the next one."""

    def __init__(self, at: CheckpointId, timers: dict[int, Timers]) -> None:
        self.at, self.timers, self.images = at, timers, BeforeImages(timers)
        self._timers_size = {bin: _weigh(some) for bin, some in timers.items()}
        self._timers_bytes = sum(self._timers_size.values())

    @property
    def size(self) -> int:
        """Return the bytes, estimated."""
        return self.images.size + self._timers_bytes

    def size_of(self, bin: int) -> int:
        """Return the bytes of a bin, estimated."""
        return self.images.size_of(bin) + self._timers_size[bin]

    def drop(self, bin: int) -> None:
        """Drop a bin, so that it cannot roll back."""
        if bin in self.images:
            self.images.drop(bin)
            self._timers_bytes -= self._timers_size.pop(bin)
            del self.timers[bin]


class UndoLog:
    """An undo log that holds the before images of one operator.

    >>> from meander.state.keys.ids import ExecutionId
    >>> one, two = (CheckpointId(ExecutionId(7), number) for number in (1, 2))
    >>> log, bins = UndoLog(), np.array([3])
    >>> log.record_checkpoint(one, {Bin(3): (), Bin(4): ()})
    >>> log.record([b"a"], bins, ["old"], 9); log.record([b"a"], bins, ["newer"], 9)
    >>> log.record_checkpoint(two, {Bin(3): ()}); log.record([b"a"], bins, ["newer"], 9)
    >>> log.rollback_bins(one), log.rollback_bins(two)
    ({3}, {3})
    >>> log.images(one, Bin(3)), log.images(two, Bin(3))
    ({b'a': 'old'}, {b'a': 'newer'})
    >>> log.complete(two); log.rollback_bins(one)
    set()
    """

    def __init__(self) -> None:
        self._intervals: list[_CheckpointInterval] = []

    def __bool__(self) -> bool:
        return bool(self._intervals)

    @property
    def size(self) -> int:
        """Return the bytes, estimated."""
        return sum(interval.size for interval in self._intervals)

    def record_checkpoint(self, at: CheckpointId, bins: Mapping[Bin, Timers]) -> None:
        """Record a checkpoint of these bins with their timers, as they are at the call."""
        self._intervals.append(
            _CheckpointInterval(at, {int(bin): some for bin, some in bins.items()})
        )

    def record(
        self,
        keys: Sequence[bytes],
        bins: npt.NDArray[np.int64],
        states: Sequence[object],
        weight: int,
    ) -> None:
        """Record sealed states, or `ABSENT`, of about `weight` bytes each ahead of a change."""
        self._intervals[-1].images.record(keys, bins, states, weight)

    def complete(self, at: CheckpointId) -> None:
        """Complete a checkpoint: no rollback goes further back."""
        self._intervals = self._since(at) or self._intervals

    def cancel(self, at: CheckpointId) -> None:
        """Cancel a checkpoint: no rollback goes to it."""
        index = next((n for n, interval in enumerate(self._intervals) if interval.at == at), None)
        if index is None:
            return
        cancelled = self._intervals.pop(index)
        if index:
            earlier = self._intervals[index - 1].images
            for bin in [bin for bin in earlier.bins if bin in cancelled.images]:
                earlier.add(bin, cancelled.images)

    def rollback_bins(self, at: CheckpointId) -> set[Bin]:
        """Return the bins that can roll back to a checkpoint."""
        intervals = self._since(at)
        if not intervals:
            return set()
        return set(map(Bin, set.intersection(*({*interval.images.bins} for interval in intervals))))

    def images(self, at: CheckpointId, bin: Bin) -> Images:
        """Return the before images of a bin since a checkpoint to which it can roll back."""
        found = Images()
        for interval in reversed(self._since(at)):
            found |= interval.images.of(bin)
        return found

    def timers(self, at: CheckpointId, bin: Bin) -> Timers:
        """Return the timers of a bin at a checkpoint."""
        return self._since(at)[0].timers[bin]

    def drop(self, bin: int) -> None:
        """Drop a bin that has left or has been replaced."""
        for interval in self._intervals:
            interval.drop(bin)

    def drop_largest(self) -> None:
        """Drop the bin with the most bytes."""
        sizes = {bin: one.size_of(bin) for one in self._intervals for bin in one.images.bins}
        self.drop(max(sizes, key=sizes.__getitem__))

    def clear(self) -> None:
        """Drop all checkpoints."""
        self._intervals.clear()

    def _since(self, at: CheckpointId) -> list[_CheckpointInterval]:
        indices = (number for number, interval in enumerate(self._intervals) if interval.at == at)
        first = next(indices, len(self._intervals))
        return self._intervals[first:]


def _weigh(timers: Timers) -> int:
    return sum(TIMER_BYTES + len(key) for _, key in timers)
