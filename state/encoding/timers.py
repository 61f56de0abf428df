"""The timers of a bin, as layers and stores hold them."""

from __future__ import annotations

from collections.abc import Sequence

Timers = Sequence[tuple[int, bytes]]
"""The logical time and the encoded key of each timer, in this order."""
