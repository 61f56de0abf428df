"""Frozen states: the states of some bins at a moment, while the bins change further.

A worker takes a cut between two turns and writes it in slices while it applies records. Therefore
the store saves a before image ahead of the first change of each state since the cut. Invariant: a
key of a frozen bin without a before image still has the state of that moment. A key with a before
image had that state then, or none (`ABSENT`). Cost: one before image for each key opened for the
first time since the cut; nothing while no bin is frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from meander.state.store.before_images import BeforeImages


class FrozenStates:
    """Frozen states that the bins of one operator have at a moment.

    >>> frozen, bins = FrozenStates(), np.array([3, 4])
    >>> frozen.freeze([3]); frozen.record([b"a", b"b"], bins, [1, 1])
    >>> frozen.record([b"a"], bins[:1], [2])
    >>> frozen.of(3), frozen.of(4), 3 in frozen
    ({b'a': 1}, {}, True)
    >>> frozen.thaw(3); bool(frozen)
    False
    """

    def __init__(self) -> None:
        self._images = BeforeImages(())

    def __bool__(self) -> bool:
        return bool(self._images)

    def __contains__(self, bin: int) -> bool:
        return bin in self._images

    def freeze(self, bins: Iterable[int]) -> None:
        """Freeze bins as they are at the call."""
        self._images = BeforeImages(bins)

    def record(
        self, keys: Sequence[bytes], bins: npt.NDArray[np.int64], states: Sequence[object]
    ) -> None:
        """Keep sealed states, or `ABSENT`, ahead of their first change; ignore later changes."""
        self._images.record(keys, bins, states)

    def of(self, bin: int) -> Mapping[bytes, object]:
        """Return the before images of a bin."""
        return self._images.of(bin)

    def thaw(self, bin: int) -> None:
        """Release a frozen bin."""
        self._images.drop(bin)
