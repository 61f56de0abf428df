"""Before images: the states of keys in some bins before their first change since a moment.

Guarantees that of each key only its first state counts, and that other bins have no before images.
A sealed state never changes in place, so nothing is copied or encoded. Invariant: unsorted images
are newer than the images that are sorted by bin. Cost: native code appends a key to two lists.
Sorting takes 0.3 us per key; it starts when a caller reads a bin, or when unsorted images outnumber
sorted ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from meander.state.encoding.cells import group_by_bin, pick

ENTRY_BYTES: Final = 112
"""The bytes of an entry besides its key and its state."""
UNSORTED_KEYS: Final = 1 << 16
"""The least number of unsorted keys before a sort."""
Images = dict[bytes, object]
"""The sealed state that each key had, or `ABSENT`."""


class BeforeImages:
    """Before images that some bins have since one moment.

    >>> kept = BeforeImages([3])
    >>> kept.record([b"a", b"b"], np.array([3, 4]), [1, 1]); kept.record([b"a"], np.array([3]), [2])
    >>> kept.of(3), kept.of(4), kept.bins
    ({b'a': 1}, {}, dict_keys([3]))
    """

    def __init__(self, bins: Iterable[int]) -> None:
        self._bins: dict[int, Images] = {bin: {} for bin in bins}
        self._sizes = dict.fromkeys(self._bins, 0)
        self._unsorted: list[
            tuple[Sequence[bytes], npt.NDArray[np.int64], Sequence[object], int]
        ] = []
        self._unsorted_keys = self._unsorted_bytes = self._sorted_keys = 0
        self.size = 0
        """Bytes, estimated."""

    def __bool__(self) -> bool:
        return bool(self._bins)

    def __contains__(self, bin: int) -> bool:
        return bin in self._bins

    @property
    def bins(self) -> Collection[int]:
        """Return the bins that may have before images."""
        return self._bins.keys()

    def record(
        self,
        keys: Sequence[bytes],
        bins: npt.NDArray[np.int64],
        states: Sequence[object],
        weight: int = 0,
    ) -> None:
        """Record the before images of keys: sealed states, or `ABSENT`, of `weight` bytes each.
        `bins[i]` is the bin of `keys[i]`."""
        if not self._bins or not keys:
            return
        self._unsorted.append((keys, bins, states, weight))
        self._unsorted_keys += len(keys)
        self._unsorted_bytes += (bytes := _weigh(keys, weight))
        self.size += bytes
        if self._unsorted_keys > max(UNSORTED_KEYS, self._sorted_keys):
            self._sort()

    def of(self, bin: int) -> Mapping[bytes, object]:
        """Return the before images of a bin."""
        self._sort()
        return self._bins.get(bin, {})

    def size_of(self, bin: int) -> int:
        """Return the bytes of a bin's before images."""
        self._sort()
        return self._sizes.get(bin, 0)

    def add(self, bin: int, later: BeforeImages) -> None:
        """Add the before images of a bin from a later moment; earlier ones take precedence."""
        self._sort()
        if bin in self._bins:
            self._insert(bin, {**later.of(bin)})
            self._add_size(bin, later.size_of(bin))

    def drop(self, bin: int) -> None:
        """Drop the before images of a bin."""
        if self._bins.pop(bin, None) is None:
            return
        self.size -= self._sizes.pop(bin)
        if not self._bins:
            self._sort()

    def _sort(self) -> None:
        if not self._unsorted:
            return
        unsorted, self._unsorted = self._unsorted, []
        self.size -= self._unsorted_bytes
        self._unsorted_keys = self._unsorted_bytes = 0
        keys = [*chain.from_iterable(keys for keys, *_ in unsorted)]
        states = [*chain.from_iterable(states for _, _, states, _ in unsorted)]
        weight = max(weight for *_, weight in unsorted)
        order, by_bin = group_by_bin(np.concatenate([bins for _, bins, *_ in unsorted]))
        keys, states = pick(keys, order), pick(states, order)
        for bin, first, end in by_bin:
            if bin in self._bins:
                # The images are inserted in reverse, so the first one of each key remains.
                own = zip(keys[first:end], states[first:end], strict=True)
                new = dict(reversed(list(own)))
                self._insert(bin, new)
                self._add_size(bin, _weigh(new, weight))

    def _insert(self, bin: int, new: Images) -> None:
        """Add images of a bin, except for keys that have one; remove these keys from `new`."""
        images = self._bins[bin]
        for key in images.keys() & new.keys():
            del new[key]
        images.update(new)
        self._sorted_keys += len(new)

    def _add_size(self, bin: int, size: int) -> None:
        self._sizes[bin] += size
        self.size += size


def _weigh(keys: Collection[bytes], weight: int) -> int:
    return (ENTRY_BYTES + weight) * len(keys) + sum(map(len, keys))
