"""How large each bin is on the state topic, and how hot, as far as workers have said."""

from __future__ import annotations

from collections import defaultdict

from meander.state.keys.ids import Bin
from meander.state.layers.manifest import Manifest


class Sizes:
    """Of all bins.

    >>> sizes = Sizes()
    >>> sizes.note("a", Bin(3), 100); sizes.note("b", Bin(3), 50); sizes.note("a", Bin(3), 120)
    >>> sizes.of(Bin(3)), sizes.of(Bin(4))
    (170, 0)
    """

    def __init__(self) -> None:
        self._bytes: dict[Bin, dict[str, int]] = defaultdict(dict)
        self._heat: dict[Bin, dict[str, int]] = defaultdict(dict)

    def note(self, operator: str, bin: Bin, bytes: int) -> None:
        """What an operator has of a bin takes so many."""
        self._bytes[bin][operator] = bytes

    def warm(self, operator: str, bin: Bin, records: int) -> None:
        """What an operator has of a bin has had so many records of late."""
        self._heat[bin][operator] = records

    def heat(self, bin: Bin) -> int:
        """How many records a bin has had of late."""
        return sum(self._heat[bin].values()) if bin in self._heat else 0

    def of(self, bin: Bin) -> int:
        """What is known of a bin."""
        return sum(self._bytes[bin].values()) if bin in self._bytes else 0


def size_of(manifest: Manifest) -> int:
    """What its layers take."""
    return sum(place.size for layer in manifest.layers for place in layer.chunks)
