"""Load on a flow in an open loop, and its latencies from when each record was due."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from benchmarks import load
from meander.app.measurement.latencies import Timeline
from meander.app.measurement.open_loop import LoadRecord, Measured, OpenLoop, Results, open_loop
from meander.connectors.kafka import client, topics
from meander.connectors.kafka.client import ConsumedMessage


class Lost(Exception):
    """Records have no result, so nothing that was measured beside them counts."""


@dataclass(frozen=True, slots=True)
class Wave:
    """Records per second: `low` for the first half of each period, `high` for the second."""

    low: float
    high: float
    period: float = 1.0
    """Seconds."""

    @classmethod
    def fixed(cls, rate: float) -> Wave:
        """The same all the time."""
        return cls(rate, rate)

    def __str__(self) -> str:
        """For people.

        >>> str(Wave.fixed(3000)), str(Wave(800, 2000, 2))
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
        early, late = self.low * min(rest, half), self.high * max(rest - half, 0.0)
        return int(periods * self.mean * self.period + early + late)

    def at(self, number: int) -> float:
        """The second at which a record is due.

        >>> Wave(10, 30, period=2).at(10), Wave(10, 30, period=2).at(25)
        (1.0, 1.5)
        """
        periods, rest = divmod(number, self.mean * self.period)
        half = self.period / 2
        early = self.low * half
        within = rest / self.low if rest < early else half + (rest - early) / self.high
        return periods * self.period + within

    @property
    def mean(self) -> float:
        """Records per second over whole periods."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class KeyedLoad:
    """A load of keys drawn at random. A value is its key and when it was due, microseconds since
    1970; what is due in one millisecond goes to one partition."""

    topic: str
    partitions: int
    wave: Wave
    keys: int = load.KEYS
    skewed: bool = False
    """Whether the n-th key comes as often as 1/n."""
    total: float = inf
    free: float = inf

    def due(self, seconds: float) -> int:
        """How many records are due within so many seconds."""
        return self.wave.due(seconds)

    def at(self, number: int) -> float:
        """The second at which a record is due."""
        return self.wave.at(number)

    def records(self, dues: Iterator[float]) -> Iterator[LoadRecord]:
        """The records in order."""
        drawn = load.keys(2, self.keys, skewed=self.skewed)
        for key, due in zip(drawn, dues, strict=False):
            micros = int(due * 1e6)
            value = b"%b %d" % (key, micros)
            yield LoadRecord(key, value, micros // 1000 % self.partitions, [])


def due_of(result: ConsumedMessage) -> int:
    """When the record of a result was due, microseconds since 1970: results repeat that."""
    return int((result.value() or b"").rpartition(b" ")[2])


@dataclass(slots=True)
class Loop:
    """Load under way, and once it has ended what came of it."""

    began: float
    """When the first record was due, seconds since 1970, within a few milliseconds."""
    _loop: OpenLoop

    def found(self) -> Timeline:
        """What came of it, once it has ended. Raises Lost where any result is missing."""
        return timed(self._loop.found())


@contextmanager
def loading(
    bootstrap: str, source: str, sink: str | None, wave: Wave, keys: int = load.KEYS, *,
    skewed: bool = False,
) -> Iterator[Loop]:  # fmt: skip
    """Load from the block's beginning to its end; where there is a sink, results are timed."""
    settings = {"bootstrap.servers": bootstrap}
    spread = topics.partitions_of(client.admin(settings), source)
    made = KeyedLoad(source, spread, wave, keys, skewed)
    with open_loop(settings, made, Results([sink] if sink else [], due_of)) as loop:
        yield Loop(loop.began, loop)


def timed(measured: Measured) -> Timeline:
    """Records by when they were due. Raises Lost where some have no result."""
    sent, came = len(measured.due), len(measured.identities)
    if came < sent:
        raise Lost(f"{sent - came:,} of {sent:,} records have no result")
    due = measured.identities / 1e6
    return Timeline.of(due, (measured.arrived - due) * 1000)
