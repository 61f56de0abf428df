"""The topics of an auction house: events go in, and results are read off again.

The records of a topic take turns on its partitions, so each partition is in the order of time. The
timestamp of a record is its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import load
from benchmarks.nexmark.events import TOPICS, Block, Generator
from benchmarks.running import PARTITIONS


@dataclass(frozen=True, slots=True)
class Filled:
    """Topics with a prefix that hold events."""

    prefix: str
    records: Counter[str]
    """How many each topic holds."""

    def read_by(self, topics: tuple[str, ...]) -> int:
        """Return how many records some topics hold.

        >>> Filled("small-", Counter(persons=1, auctions=3)).read_by(("persons", "auctions"))
        4
        """
        return sum(self.records[topic] for topic in topics)


def create(bootstrap: str, prefix: str) -> None:
    """Make the topics."""
    load.create(bootstrap, *(prefix + topic for topic in TOPICS), partitions=PARTITIONS)


def fill(
    bootstrap: str, prefix: str, generator: Generator, events: int, *, bids: bool = True
) -> Filled:
    """Make the topics, and put events on them; without `bids` their topic stays empty."""
    create(bootstrap, prefix)
    written = TOPICS if bids else TOPICS[:-1]
    blocks, records = [*generator.blocks(events, written)], Counter[str]()
    for topic in written:
        load.write(bootstrap, prefix + topic, _records(topic, blocks))
        records[topic] = sum(len(block.values[topic]) for block in blocks)
    return Filled(prefix, records)


def _records(topic: str, blocks: list[Block]) -> Iterator[tuple[bytes, int]]:
    for block in blocks:
        yield from zip(block.values[topic], block.times[topic].tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class Results:
    """What lies on a topic of results."""

    values: list[bytes]
    """In the order of their partitions."""
    times: list[int]
    """When each came, by the broker's clock, in milliseconds."""

    @property
    def last(self) -> int:
        """Return when the last one came."""
        return max(self.times)


def results(bootstrap: str, topic: str) -> Results:
    """Return the results on a topic; a null is none."""
    found = Results([], [])
    with load.reading(bootstrap, topic) as messages:
        for message in messages:
            found.values.append(message.value() or b"null")
            found.times.append(message.timestamp()[1])
    return found
