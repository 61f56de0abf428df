"""How much load comes when: a fixed rate, or a square wave.

>>> str(Wave.fixed(3000)), str(Wave.parse("800:2000:2"))
('3000', '800:2000:2')
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Wave:
    """Records per second: `low` for the first half of each period, `high` for the second."""

    low: float
    high: float
    period: float = 1.0
    """Seconds."""

    @classmethod
    def fixed(cls, rate: float) -> Self:
        """The same all the time."""
        return cls(rate, rate)

    @classmethod
    def parse(cls, text: str) -> Self:
        """What `str` has written: a rate, or LOW:HIGH:PERIOD."""
        first, *others = map(float, text.split(":"))
        return cls(first, *others) if others else cls.fixed(first)

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.low:g}"
        return f"{self.low:g}:{self.high:g}:{self.period:g}"

    @property
    def told(self) -> str:
        """For people.

        >>> Wave.fixed(3000).told, Wave(800, 2000, 2).told
        ('3,000', '800 and 2,000 in turn (period 2 s)')
        """
        if self.low == self.high:
            return f"{self.low:,g}"
        return f"{self.low:,g} and {self.high:,g} in turn (period {self.period:g} s)"

    def due(self, seconds: float) -> int:
        """How many records are due within so many seconds.

        >>> Wave(10, 30, period=2).due(1), Wave(10, 30, period=2).due(2.5)
        (10, 45)
        """
        periods, rest = divmod(seconds, self.period)
        half = self.period / 2
        return int(
            periods * self._per_period
            + self.low * min(rest, half)
            + self.high * max(rest - half, 0.0)
        )

    def at(self, number: int) -> float:
        """The second at which a record is due.

        >>> Wave(10, 30, period=2).at(10), Wave(10, 30, period=2).at(25)
        (1.0, 1.5)
        """
        periods, rest = divmod(number, self._per_period)
        half = self.period / 2
        early = self.low * half
        within = rest / self.low if rest < early else half + (rest - early) / self.high
        return periods * self.period + within

    @property
    def mean(self) -> float:
        """Records per second over whole periods."""
        return (self.low + self.high) / 2

    @property
    def _per_period(self) -> float:
        return self.mean * self.period
