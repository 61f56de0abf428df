"""Open-loop load: each record is sent when it is due, whatever became of those before it.

Guarantees that records reach the topic once, in the order of the load. One process sends, another
takes the results off their topics; neither waits for the interpreter of the flow's driver, and both
end with their parent. Cost: about a third of a core at 9,000 records/s; a result may lie on its
topic for some milliseconds before it counts as arrived.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import inf
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
from confluent_kafka import Producer, TopicPartition

from meander.app.measurement.latencies import Float64s
from meander.connectors.kafka import client
from meander.connectors.kafka.client import ConsumedMessage
from meander.connectors.kafka.topic_metadata import partitions_of
from meander.schemas.errors import MeanderError

T = TypeVar("T")
Int64s = npt.NDArray[np.int64]
Settings = Mapping[str, str]

TICK = 0.001
"""Seconds between two looks at what is due."""
SILENCE = 30.0
"""Seconds without a result, after the last record is sent, after which missing results are lost."""
MOST = 10_000
"""Results taken at once."""

# A fork would carry threads and native libraries along half-way.
_SPAWN = multiprocessing.get_context("spawn")


class LoadRecord(NamedTuple):
    """A record as it goes to the topic."""

    key: bytes
    value: bytes
    partition: int
    headers: list[tuple[str, str | bytes | None]]


class Schedule(Protocol):
    """A schedule says which record is due when. It travels to the process that sends."""

    def due(self, seconds: float) -> int:
        """Return how many records are due within `seconds` of the start."""

    def at(self, number: int) -> float:
        """Return the second at which a record is due."""


@dataclass(frozen=True, slots=True)
class Wave:
    """A wave has `low` records per second in the first half of a period, then `high`."""

    low: float
    high: float
    period: float = 1.0
    """Seconds."""

    @classmethod
    def fixed(cls, rate: float) -> Wave:
        """Return a wave that is flat."""
        return cls(rate, rate)

    def __str__(self) -> str:
        """Return the rates in words.

        >>> str(Wave.fixed(3000)), str(Wave(800, 2000, 2))
        ('3,000', '800 and 2,000 in turn (period 2 s)')
        """
        if self.low == self.high:
            return f"{self.low:,g}"
        return f"{self.low:,g} and {self.high:,g} in turn (period {self.period:g} s)"

    def due(self, seconds: float) -> int:
        """Return how many records are due within `seconds` of the start.

        >>> Wave(10, 30, period=2).due(1), Wave(10, 30, period=2).due(2.5)
        (10, 45)
        """
        periods, rest = divmod(seconds, self.period)
        half = self.period / 2
        early, late = self.low * min(rest, half), self.high * max(rest - half, 0.0)
        return int(periods * self.mean * self.period + early + late)

    def at(self, number: int) -> float:
        """Return the second at which a record is due.

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
        """The records per second over whole periods."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class Load:
    """A load says which records are due when; it travels to the process that sends."""

    topic: str
    wave: Schedule
    records: Callable[[Iterator[float]], Iterator[LoadRecord]]
    """Yields the records in order; takes when each is due, seconds since 1970."""
    total: float = inf
    """How many records there are; infinity for a load that ends with its block."""
    free: float = inf
    """How many records are due before a release."""


@dataclass(frozen=True, slots=True)
class Results:
    """The topics of the results, and what a result says about its record."""

    topics: Sequence[str]
    """Each holds one result per record."""
    identify: Callable[[ConsumedMessage], int]
    """Returns the identity of the record that caused a result."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a load."""

    due: Float64s
    """Of each record that was sent, seconds since 1970, shape (n,)."""
    identities: Int64s
    """Of each result, shape (m,)."""
    arrived: Float64s
    """When each result came, seconds since 1970, shape (m,)."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """The counters and switches that all three processes see."""

    began: Synchronized[float] = field(default_factory=lambda: _SPAWN.Value("d", 0.0))
    sent: Synchronized[int] = field(default_factory=lambda: _SPAWN.Value("q", 0))
    results: Synchronized[int] = field(default_factory=lambda: _SPAWN.Value("q", 0))
    wanted: Synchronized[int] = field(default_factory=lambda: _SPAWN.Value("q", -1))
    """How many results there are to be; -1 while records are sent."""
    listening: Event = field(default_factory=_SPAWN.Event)
    released: Event = field(default_factory=_SPAWN.Event)
    stopped: Event = field(default_factory=_SPAWN.Event)


@dataclass(slots=True)
class OpenLoop:
    """A load under way, and once its block has ended what came of it."""

    _shared: _Shared
    _results: Results
    _ended: Callable[[], bool] = bool
    measured: Measured | None = None

    @property
    def began(self) -> float:
        """When the first record was due, seconds since 1970."""
        return self._shared.began.value

    @property
    def answered(self) -> int:
        """How many records have results, as far as the topics are equally far."""
        return self._shared.results.value // max(1, len(self._results.topics))

    @property
    def sent(self) -> int:
        """How many records have been sent."""
        return self._shared.sent.value

    @property
    def ended(self) -> bool:
        """Whether each record is sent, and each result has arrived or counts as lost."""
        return self._ended()

    def release(self) -> None:
        """Let the records that are held back be due from now on."""
        self._shared.released.set()

    def found(self) -> Measured:
        """Return what came of the load, once its block has ended."""
        assert self.measured is not None, "it has not ended"
        return self.measured


@contextmanager
def open_loop(
    settings: Settings, load: Load, results: Results = Results((), hash)
) -> Iterator[OpenLoop]:
    """Send a load from the block's beginning on, to its end or to that of the load.

    Then wait for the results that are missing. Raises what ends one of the two processes.
    """
    shared = _Shared()
    loop = OpenLoop(shared, results)
    with ProcessPoolExecutor(2, _SPAWN, _enter, (shared,)) as pool:
        try:
            collected = pool.submit(_collect, settings, results)
            _await(shared.listening.is_set, collected)
            sent = pool.submit(_send, settings, load, len(results.topics))
            loop._ended = lambda: collected.done() and sent.done()
            _await(lambda: shared.began.value > 0, sent)
            yield loop
            shared.stopped.set()
            loop.measured = Measured(sent.result(), *collected.result())
        finally:
            shared.stopped.set()
            # Where something failed nothing more is waited for.
            if loop.measured is None:
                shared.wanted.value = 0


def _await(holds: Callable[[], bool], work: Future[T]) -> None:
    while not holds():
        if work.done():
            work.result()
            raise MeanderError("the load", "its process ended before its work")
        time.sleep(TICK)


_here: _Shared


def _enter(shared: _Shared) -> None:
    global _here
    _here = shared
    # A Ctrl-C is for the parent, which then ends both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _abandoned() -> bool:
    parent = multiprocessing.parent_process()
    return parent is None or not parent.is_alive()


def _send(settings: Settings, load: Load, topics: int) -> Float64s:
    """Send until all is sent or the block ends; return when each record was due."""
    partitions_of(client.admin(settings), load.topic)
    producer = client.producer(settings)
    producer.list_topics(load.topic, timeout=client.REQUEST_TIMEOUT)
    due, free, began = array("d"), load.free, time.time()

    def dues() -> Iterator[float]:
        for number in count():
            due.append(began + load.wave.at(number))
            yield due[-1]

    records = load.records(dues())
    _here.began.value = began
    while len(due) < load.total and not _here.stopped.is_set() and not _abandoned():
        if free < load.total and _here.released.is_set():
            # The first record that was held back is due now, if it has not been before.
            began += max(0.0, time.time() - began - load.wave.at(int(free)))
            free = load.total
        while len(due) < min(load.wave.due(time.time() - began), free):
            if _here.stopped.is_set():
                break
            _produce(producer, load.topic, next(records))
        _here.sent.value = len(due)
        producer.poll(0)
        client.contact(settings).check()
        time.sleep(TICK)
    if left := producer.flush(client.REQUEST_TIMEOUT):
        raise MeanderError(
            f"topic {load.topic!r}",
            f"{left} records did not arrive within {client.REQUEST_TIMEOUT:g} s",
        )
    client.contact(settings).check()
    _here.wanted.value = topics * len(due)
    return np.array(due)


def _produce(producer: Producer, topic: str, record: LoadRecord) -> None:
    """Send a record that is due, also where the block ends meanwhile: it counts as sent."""
    while True:
        try:
            producer.produce(
                topic, record.value, record.key, record.partition, headers=record.headers
            )
        except BufferError:
            # The broker is behind. The record stays due, and its latency shows that.
            producer.poll(TICK)
        else:
            return


def _collect(settings: Settings, results: Results) -> tuple[Int64s, Float64s]:
    """Take results that come from now on, until all are there; their records and times."""
    identities, arrived = array("q"), array("d")
    with closing(client.consumer(settings, "meander-measurement")) as consumer:
        consumer.assign(
            [
                TopicPartition(topic, partition, client.watermarks(consumer, topic, partition)[1])
                for topic in results.topics
                for partition in consumer.list_topics(topic, client.REQUEST_TIMEOUT)
                .topics[topic]
                .partitions
            ]
        )
        # Until the first fetch is under way.
        consumer.poll(1.0)
        _here.listening.set()
        heard = time.time()
        while len(arrived) != _here.wanted.value and not _abandoned():
            first = consumer.poll(0.1)
            messages = [] if first is None else [first, *consumer.consume(MOST, 0)]
            now = time.time()
            # All else than records are ends of partitions, or what the client waits out by itself.
            found = [
                results.identify(message)
                for message in cast(list[ConsumedMessage], messages)
                if message.error() is None
            ]
            identities.extend(found)
            arrived.extend([now] * len(found))
            _here.results.value = len(arrived)
            if found or _here.wanted.value < 0:
                heard = now
            elif now - heard > SILENCE or not _here.wanted.value:
                break
    return np.array(identities, np.int64), np.array(arrived)
