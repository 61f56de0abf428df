"""Load on a flow in an open loop, and its latencies from when each record was due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks import load
from meander.app.measurement.latencies import Timeline
from meander.app.measurement.open_loop import (
    Load,
    LoadRecord,
    Measured,
    OpenLoop,
    Results,
    Schedule,
    open_loop,
)
from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.client import ConsumedMessage

Made = Callable[[Iterator[float], int, int, bool], Iterator[LoadRecord]]
"""Yields records in order, as `records` does."""


class Lost(Exception):
    """Records have no result, so nothing that was measured beside them counts."""


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
        return timed(self.measured())

    def measured(self) -> Measured:
        """As `found`, with the identity of each result."""
        return self._loop.found()


@contextmanager
def loading(
    bootstrap: str, source: str, sink: str | None, wave: Schedule, keys: int = load.KEYS, *,
    skewed: bool = False, made: Made | None = None,
) -> Iterator[Loop]:  # fmt: skip
    """Load from the block's beginning to its end; where there is a sink, results are timed.
    Records are those of `records`, or as `made` makes them."""
    settings = {"bootstrap.servers": bootstrap}
    spread = topic_metadata.partitions_of(client.admin(settings), source)
    some = partial(_made, made or records, spread, keys, skewed)
    results = Results([sink] if sink else [], due_of)
    with open_loop(settings, Load(source, wave, some), results) as loop:
        yield Loop(loop.began, loop)


def _made(
    made: Made, partitions: int, keys: int, skewed: bool, dues: Iterator[float]
) -> Iterator[LoadRecord]:
    return made(dues, partitions, keys, skewed)


def records(
    dues: Iterator[float], partitions: int, keys: int, skewed: bool
) -> Iterator[LoadRecord]:
    """Keys drawn at random. A value is its key and when it was due, microseconds since 1970; what
    is due in one millisecond goes to one partition."""
    for key, due in zip(load.keys(2, keys, skewed=skewed), dues, strict=False):
        micros = int(due * 1e6)
        yield LoadRecord(key, b"%b %d" % (key, micros), micros // 1000 % partitions, [])


def timed(measured: Measured) -> Timeline:
    """Records by when they were due. Raises Lost where some have no result."""
    sent, came = len(measured.due), len(measured.identities)
    if came < sent:
        raise Lost(f"{sent - came:,} of {sent:,} records have no result")
    due = measured.identities / 1e6
    return Timeline.of(due, (measured.arrived - due) * 1000)
