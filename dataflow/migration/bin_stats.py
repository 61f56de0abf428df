"""Sizes and heat of bins, as reported by workers."""

from __future__ import annotations

from collections import defaultdict

from meander.state.keys.ids import Bin
from meander.state.layers.manifest import Manifest


class Sizes:
    """A table of the bytes and the recent records of each bin.

    >>> sizes = Sizes()
    >>> sizes.note("a", Bin(3), 100); sizes.note("b", Bin(3), 50); sizes.note("a", Bin(3), 120)
    >>> sizes.of(Bin(3)), sizes.of(Bin(4))
    (170, 0)
    """

    def __init__(self) -> None:
        self._bytes: dict[Bin, dict[str, int]] = defaultdict(dict)
        self._heat: dict[Bin, dict[str, int]] = defaultdict(dict)

    def note(self, operator: str, bin: Bin, bytes: int) -> None:
        """Note the bytes of an operator's part of a bin."""
        self._bytes[bin][operator] = bytes

    def note_heat(self, operator: str, bin: Bin, records: int) -> None:
        """Note the recent records of an operator's part of a bin."""
        self._heat[bin][operator] = records

    def heat(self, bin: Bin) -> int:
        """Return the number of recent records of a bin."""
        return sum(self._heat[bin].values()) if bin in self._heat else 0

    def of(self, bin: Bin) -> int:
        """Return the known bytes of a bin."""
        return sum(self._bytes[bin].values()) if bin in self._bytes else 0


def size_of(manifest: Manifest) -> int:
    """Return the bytes of the layers of a manifest."""
    return sum(place.size for layer in manifest.layers for place in layer.chunks)
