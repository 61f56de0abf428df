"""The undo log: the states of an operator's bins at the last checkpoints, where they changed since.

A survivor rolls back to the newest checkpoint from its undo log and reads none of its own states
from the state topic. Invariant: a bin may be known at a checkpoint. Each changed key of such a bin
has a before image at that checkpoint or a later one. The first of them holds its state at the
checkpoint. An installed or dropped bin is not known any more. Cost: that of `BeforeImages`, and
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
from meander.state.store.before_images import Before, BeforeImages

TIMER_BYTES: Final = 72
"""The bytes of a timer."""


class _Since:
    """The changes between a checkpoint and the next one."""

    def __init__(self, at: CheckpointId, timers: dict[int, Timers]) -> None:
        self.at, self.timers, self.before = at, timers, BeforeImages(timers)
        self._timers_size = {bin: _weigh(some) for bin, some in timers.items()}
        self._timers_bytes = sum(self._timers_size.values())

    @property
    def size(self) -> int:
        """Return the bytes, estimated."""
        return self.before.size + self._timers_bytes

    def size_of(self, bin: int) -> int:
        """Return the bytes of a bin, estimated."""
        return self.before.size_of(bin) + self._timers_size[bin]

    def forget(self, bin: int) -> None:
        """Forget a bin, so it is not known any more."""
        if bin in self.before:
            self.before.drop(bin)
            self._timers_bytes -= self._timers_size.pop(bin)
            del self.timers[bin]


class Undo:
    """An undo log that holds the before images of one operator.

    >>> from meander.state.keys.ids import ExecutionId
    >>> one, two = (CheckpointId(ExecutionId(7), number) for number in (1, 2))
    >>> undo = Undo(); undo.begin(one, {Bin(3): (), Bin(4): ()})
    >>> undo.keep([b"a"], np.array([3]), ["old"], 9); undo.keep([b"a"], np.array([3]), ["newer"], 9)
    >>> undo.begin(two, {Bin(3): ()}); undo.keep([b"a", b"b"], np.array([3, 3]), ["newer", "b"], 9)
    >>> undo.known(one), undo.known(two)
    ({3}, {3})
    >>> undo.before(one, Bin(3))[b"a"], undo.before(two, Bin(3))[b"a"]
    ('old', 'newer')
    >>> undo.settle(two); undo.known(one)
    set()
    """

    def __init__(self) -> None:
        self._line: list[_Since] = []

    def __bool__(self) -> bool:
        return bool(self._line)

    @property
    def size(self) -> int:
        """Return the bytes, estimated."""
        return sum(since.size for since in self._line)

    def begin(self, at: CheckpointId, bins: Mapping[Bin, Timers]) -> None:
        """Record a checkpoint of these bins with their timers, as they are at the call."""
        self._line.append(_Since(at, {int(bin): some for bin, some in bins.items()}))

    def keep(
        self,
        keys: Sequence[bytes],
        bins: npt.NDArray[np.int64],
        states: Sequence[object],
        weight: int,
    ) -> None:
        """Keep sealed states, or `ABSENT`, of about `weight` bytes each ahead of a change."""
        self._line[-1].before.keep(keys, bins, states, weight)

    def settle(self, at: CheckpointId) -> None:
        """Complete a checkpoint: no rollback goes further back."""
        self._line = self._from(at) or self._line

    def cancel(self, at: CheckpointId) -> None:
        """Cancel a checkpoint: no rollback goes to it."""
        place = next((n for n, since in enumerate(self._line) if since.at == at), None)
        if place is None:
            return
        gone = self._line.pop(place)
        if place:
            earlier = self._line[place - 1].before
            for bin in [bin for bin in earlier.bins if bin in gone.before]:
                earlier.add(bin, gone.before)

    def known(self, at: CheckpointId) -> set[Bin]:
        """Return the bins that can roll back to a checkpoint."""
        line = self._from(at)
        if not line:
            return set()
        return set(map(Bin, set.intersection(*({*since.before.bins} for since in line))))

    def before(self, at: CheckpointId, bin: Bin) -> Before:
        """Return the before images of a known bin since a checkpoint."""
        found = Before()
        for since in reversed(self._from(at)):
            found |= since.before.of(bin)
        return found

    def timers(self, at: CheckpointId, bin: Bin) -> Timers:
        """Return the timers of a bin at a checkpoint."""
        return self._from(at)[0].timers[bin]

    def forget(self, bin: int) -> None:
        """Forget a bin that has left or has been replaced."""
        for since in self._line:
            since.forget(bin)

    def shed(self) -> None:
        """Forget the bin with the most bytes."""
        sizes = {bin: s.size_of(bin) for s in self._line for bin in s.before.bins}
        self.forget(max(sizes, key=sizes.__getitem__))

    def clear(self) -> None:
        """Forget all checkpoints."""
        self._line.clear()

    def _from(self, at: CheckpointId) -> list[_Since]:
        places = (n for n, since in enumerate(self._line) if since.at == at)
        first = next(places, len(self._line))
        return self._line[first:]


def _weigh(timers: Timers) -> int:
    return sum(TIMER_BYTES + len(key) for _, key in timers)
