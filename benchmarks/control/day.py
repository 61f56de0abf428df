"""The load of a day, sped up: a curve with a morning, an evening and two spikes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

CURVE = (
    (0.00, 0.3), (0.12, 0.3), (0.25, 1.2), (0.35, 1.3), (0.36, 2.4), (0.42, 2.4), (0.43, 1.2),
    (0.55, 0.9), (0.65, 1.5), (0.70, 1.6), (0.71, 2.5), (0.77, 2.5), (0.78, 1.4), (0.88, 0.6),
    (1.00, 0.3),
)  # fmt: skip
"""The part of the day, and the load as a number of fully active workers; straight lines between."""
CELLS = 4_000
"""Of the table from which times follow."""


@dataclass(frozen=True, eq=False)
class Day:
    """The schedule of a day.

    >>> day = Day(100.0, 400)
    >>> day.due(100.0) == day.due(1000.0) == round(100 * 400 * day.mean)
    True
    >>> day.rate(0.0), day.rate(40.0)
    (120.0, 960.0)
    """

    seconds: float
    service: float
    """Records per second of a fully active worker."""
    _edges: npt.NDArray[np.float64] = field(init=False, repr=False)
    _sent: npt.NDArray[np.float64] = field(init=False, repr=False)
    """The records that are due until each edge."""

    def __post_init__(self) -> None:
        edges = np.linspace(0, self.seconds, CELLS + 1)
        rates = np.array([self.rate(at) for at in edges])
        steps = (rates[1:] + rates[:-1]) / 2 * (edges[1] - edges[0])
        object.__setattr__(self, "_edges", edges)
        object.__setattr__(self, "_sent", np.concatenate([[0.0], np.cumsum(steps)]))

    def rate(self, seconds: float) -> float:
        """Return the records per second at a time of the day."""
        parts, loads = zip(*CURVE, strict=True)
        return float(self.service * np.interp(seconds / self.seconds, parts, loads))

    def due(self, seconds: float) -> int:
        """Return how many records are due within `seconds` of the start; none after the day."""
        return int(np.interp(seconds, self._edges, self._sent) + 1e-6)

    def at(self, number: int) -> float:
        """Return the second at which a record is due."""
        return float(np.interp(number, self._sent, self._edges))

    @property
    def mean(self) -> float:
        """The mean load, as a number of fully active workers."""
        return float(self._sent[-1] / self.seconds / self.service)
