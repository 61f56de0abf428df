"""How many bytes each bin takes on the state topic, as far as workers have said."""

from __future__ import annotations

from collections import defaultdict

from state.ids import Bin
from state.manifest import Manifest


class Sizes:
    """Of all bins.

    >>> sizes = Sizes()
    >>> sizes.note("a", Bin(3), 100); sizes.note("b", Bin(3), 50); sizes.note("a", Bin(3), 120)
    >>> sizes.of(Bin(3)), sizes.of(Bin(4))
    (170, 0)
    """

    def __init__(self) -> None:
        self._bytes: dict[Bin, dict[str, int]] = defaultdict(dict)

    def note(self, operator: str, bin: Bin, bytes: int) -> None:
        """What an operator has of a bin takes so many."""
        self._bytes[bin][operator] = bytes

    def of(self, bin: Bin) -> int:
        """What is known of a bin."""
        return sum(self._bytes[bin].values()) if bin in self._bytes else 0


def size_of(manifest: Manifest) -> int:
    """What its layers take."""
    return sum(place.size for layer in manifest.layers for place in layer.chunks)
