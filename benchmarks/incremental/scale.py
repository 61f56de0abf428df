"""How large all that is measured is; smaller scales try the benchmark itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of a run, as a share of the full ones."""

    share: float
    singles: int
    """The changes that are measured one by one at each point."""
    seconds: float
    """The most seconds of a series that may become slower and slower."""

    def __call__(self, count: int) -> int:
        """Return a count of the full size at this scale.

        >>> SCALES["small"](10_000_000)
        100000
        """
        return max(1, round(count * self.share))


SCALES = {
    "small": Scale(0.01, 100, 20.0),
    "middle": Scale(0.1, 1_000, 120.0),
    "full": Scale(1.0, 1_000, 600.0),
}
