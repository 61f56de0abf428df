"""Compaction: the choice of layers to merge, so that a bin has few layers of small total size.

Invariant: where no layer is `worn` or `similar`, each layer is at least `RATIO` times as large as
all later ones together. A base counts keys, a delta counts bytes. So a bin has log n layers at
most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from meander.state.layers.manifest import LayerPointer

RATIO: Final = 2
"""How many times as much as all later layers one has at least."""


def worn(layers: Sequence[LayerPointer]) -> bool:
    """Whether a base is to be written anew, as its deltas have not so many fewer keys."""
    base, *deltas = layers
    return base.count < RATIO * sum(delta.count for delta in deltas)


def similar(layers: tuple[LayerPointer, ...]) -> tuple[LayerPointer, ...]:
    """The newest of some layers that are to be one, as the first of them is not so much larger than
    all those after it together."""
    later = sum(layer.bytes for layer in layers)
    for first, layer in enumerate(layers[:-1]):
        later -= layer.bytes
        if layer.bytes < RATIO * later:
            return layers[first:]
    return ()
