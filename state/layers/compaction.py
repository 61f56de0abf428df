"""Compaction: the choice of layers to merge, so that a bin has few layers of small total size.

Invariant: where no layer is due, each layer is at least `RATIO` times as large as all later layers
together. The sizes are keys for a base, bytes for a delta. So a bin has log n layers at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from meander.state.layers.manifest import LayerPointer

RATIO: Final = 2
"""A layer is at least this many times as large as all later layers together."""


def needs_base(layers: Sequence[LayerPointer]) -> bool:
    """Return whether a new base should replace all layers, as the deltas hold too many keys."""
    base, *deltas = layers
    return base.count < RATIO * sum(delta.count for delta in deltas)


def layers_to_merge(layers: tuple[LayerPointer, ...]) -> tuple[LayerPointer, ...]:
    """Return the newest layers that should become one. The first of them is too small, compared
    with all later layers."""
    later = sum(layer.bytes for layer in layers)
    for first, layer in enumerate(layers[:-1]):
        later -= layer.bytes
        if layer.bytes < RATIO * later:
            return layers[first:]
    return ()
