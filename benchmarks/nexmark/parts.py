"""The parts of the benchmark, and the runs of each case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.nexmark import drains, flink, latencies, oracle, topics, tumbling
from benchmarks.nexmark.drains import Check
from benchmarks.nexmark.events import Generator
from benchmarks.nexmark.flink import Flink
from benchmarks.nexmark.flink_queries import KEYS, SQL
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.topics import Filled
from benchmarks.outcome import Found

DRAINS, LATENCIES, PYTHON = "nexmark drains", "nexmark latencies", "nexmark python"
TITLES = {
    DRAINS: "Nexmark: records per second", LATENCIES: "Nexmark: latency",
    PYTHON: "A tumbling count in Python",
}  # fmt: skip
WARM = 10
"""The events over those that Flink drains first, as its JVM compiles code that runs often."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    events: int
    quiet: int
    """The events of a house whose bids are left out, for queries that read none."""
    counted: int
    """The events that engines of Python count."""
    rate: int
    """Events per second where latency counts."""
    seconds: float


FULL = Scale(2_000_000, 8_000_000, 500_000, 5_000, 10.0)
SMALL = Scale(100_000, 200_000, 300_000, 1_000, 4.0)


@dataclass(frozen=True, slots=True)
class Houses:
    """The topics, the engines and the oracle of a sitting."""

    bootstrap: str
    scale: Scale
    flink: Flink
    full: tuple[Filled, Filled]
    """All events, and few of them."""
    quiet: tuple[Filled, Filled]
    """The same without bids."""
    counted: Filled
    """What engines of Python count."""
    checks: dict[str, Check]
    """By the prefix of topics."""

    def of(self, query: str) -> tuple[Filled, Filled]:
        """Return the topics that a query drains."""
        return self.full if "bids" in QUERIES[query].reads else self.quiet


@contextmanager
def houses(bootstrap: str, scale: Scale) -> Iterator[Houses]:
    """Fill the topics, and start Flink and Spark for the block."""
    generator = Generator()

    def filled(prefix: str, events: int, bids: bool) -> tuple[Filled, Filled]:
        few = topics.fill(bootstrap, f"{prefix}-few-", generator, events // WARM, bids=bids)
        return topics.fill(bootstrap, f"{prefix}-", generator, events, bids=bids), few

    full, quiet = filled("full", scale.events, True), filled("quiet", scale.quiet, False)
    counted = topics.fill(bootstrap, "counted-", generator, scale.counted)
    with ExitStack() as opened:
        jvm = opened.enter_context(flink.running())
        spark = opened.enter_context(oracle.session())
        checks: dict[str, Check] = {
            one.prefix: partial(oracle.faults, spark, bootstrap, one.prefix, drains.WINDOWS)
            for one in (full[0], quiet[0])
        }
        yield Houses(bootstrap, scale, jvm, full, quiet, counted, checks)


Run = Callable[[Houses, int], Found]
"""Measures a case once; the first run is checked. Raises Lost, WrongResultsError."""


def drained(houses: Houses, run: int, query: str) -> Found:
    """Drain the topics of a query by both engines."""
    filled, few = houses.of(query)
    check = drains.unchecked if run else houses.checks[filled.prefix]
    found = {"meander_per_s": drains.meander(houses.bootstrap, filled, query, check)}
    if query in SQL:
        drains.warm(houses.flink, houses.bootstrap, few, query)
        found["flink_per_s"] = drains.flink(houses.flink, houses.bootstrap, filled, query, check)
    return Found(figures=found)


def delayed(houses: Houses, run: int, query: str) -> Found:
    """Measure latencies of a query by both engines."""
    words = houses.bootstrap, query, houses.scale.rate, houses.scale.seconds
    found = latencies.meander(*words)
    if query in SQL and query not in KEYS:
        found |= latencies.flink(houses.flink, *words)
    return Found(figures=found)


def counted(houses: Houses, run: int, engine: str) -> Found:
    """Count bids in windows by an engine of Python."""
    filled = houses.counted
    return Found(
        figures={"per_s": tumbling.measure(houses.bootstrap, filled, Generator().rate, engine)}
    )


@dataclass(frozen=True, slots=True)
class Planned:
    """A part that is to be measured."""

    what: str
    runs: dict[str, Run]


def plan(scale: Scale) -> dict[str, Planned]:
    """All parts by name.

    >>> plan(FULL)["nexmark drains"].what
    '2,000,000 events, or the persons and auctions of 8,000,000, 2 partitions, 2 workers or slots'
    """
    found = {
        DRAINS: Planned(
            f"{scale.events:,} events, or the persons and auctions of {scale.quiet:,},"
            " 2 partitions, 2 workers or slots",
            {query: partial(drained, query=query) for query in QUERIES},
        ),
        LATENCIES: Planned(
            f"{scale.rate:,} events/s, windows of {latencies.WINDOWS[0]:g} s each"
            f" {latencies.WINDOWS[1]:g} s",
            {query: partial(delayed, query=query) for query in QUERIES},
        ),
        PYTHON: Planned(
            f"the bids of {scale.counted:,} events, windows of {tumbling.SIZE:g} s, 2 processes",
            {engine: partial(counted, engine=engine) for engine in tumbling.ENGINES},
        ),
    }
    assert found.keys() == TITLES.keys()
    return found
