"""Sources and sinks in memory, for flows on simulated workers: what is read is a list.

Guarantees that records become available, are handed out and are acknowledged at times that the
run's seed chooses, so that partitions are idle now and then and deliveries take their time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from meander.dataflow.exactly_once.checksum import Checksum
from meander.dataflow.interfaces import (
    Chunk,
    Partition,
    Rest,
    Rests,
    SinkWriter,
    SourceOptions,
    SourceReader,
    SourceSpec,
)
from meander.dataflow.records.batch import Batch
from meander.state.encoding import codec
from meander.state.keys.ids import WorkerId
from meander.state.times.time import from_millis

BATCHES = 8
"""Under way at one sink in memory."""


@dataclass(frozen=True, slots=True)
class Result:
    """One record that reached a sink, with its place in the total order and its worker.

    `key` is as the engine keeps it, or as it lies on the topic.
    """

    worker: WorkerId
    time: int
    origin: int
    partition: int
    offset: int
    index: int
    key: bytes | None
    value: object

    @property
    def place(self) -> tuple[int, int, int, int, int]:
        """Its place in the total order of its flow."""
        return self.time, self.origin, self.partition, self.offset, self.index


class ListSource(SourceSpec[Any]):
    """A source of records that are given: per partition, (milliseconds, value) in offset order."""

    options: SourceOptions
    __slots__ = ("options", "partitions", "record_size")

    def __init__(
        self,
        partitions: Sequence[Sequence[tuple[int, object]]],
        options: SourceOptions | None = None,
        record_size: int = 100,
    ) -> None:
        self.partitions = list(partitions)
        self.options = options or SourceOptions()
        self.record_size = record_size

    def grow(self, records: Sequence[tuple[int, object]]) -> None:
        """One more partition, while a flow may be running."""
        self.partitions.append(records)

    def open(self, *_: object) -> SourceReader:
        """A list source is opened by `TestFlow` only."""
        raise TypeError("a ListSource runs in a TestFlow only")

    def reader(self, worker: WorkerId, workers: int, rng: random.Random) -> ListReader:
        """The partitions of one worker."""
        mine = [Partition(p) for p in range(len(self.partitions)) if p % workers == worker]
        return ListReader(self, mine, rng)

    def resumed(self, rests: Rests, rng: random.Random) -> ListReader:
        """What is left of partitions."""
        reader = ListReader(self, [], rng)
        for partition, rest in rests.items():
            if rest is not None:
                reader.adopt(partition, rest)
        return reader


class InMemoryReader:
    """A reader whose partitions are lists of records, to which more may be added."""

    def __init__(
        self,
        logs: Sequence[Sequence[object]],
        partitions: Sequence[Partition],
        rng: random.Random,
    ) -> None:
        self.partitions = list(partitions)
        self.total: int | None = len(logs)
        self._logs, self._rng = logs, rng
        self._paused: set[Partition] = set()
        self._next = dict.fromkeys(partitions, 0)

    def _find_partitions(self) -> None:
        """Notice new partitions, though not always at once."""
        if self.total != len(self._logs) and self._rng.random() < 0.5:
            self.total = len(self._logs)

    def _all_read(self, partition: Partition) -> bool:
        return self._next[partition] == len(self._logs[partition])

    def watch(self) -> None:
        """Do nothing: the simulation polls again by itself."""

    def pause(self, partition: Partition) -> None:
        """Hand out no more."""
        self._paused.add(partition)

    def resume(self, partition: Partition) -> None:
        """Go on."""
        self._paused.discard(partition)

    def rest(self, partition: Partition) -> Rest:
        """What has not been handed out."""
        return Rest(self._next[partition], None)

    def release(self, partition: Partition) -> Rest:
        """Hand out no more of it for good."""
        rest = self.rest(partition)
        self.partitions.remove(partition)
        del self._next[partition]
        return rest

    def adopt(self, partition: Partition, rest: Rest) -> None:
        """Go on where another reader has stopped."""
        self.partitions.append(partition)
        self._paused.discard(partition)
        self._next[partition] = rest.offset

    def passed(self, partition: Partition, offset: int) -> None:
        """Do nothing: a list has no lag to watch."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


class ListReader(InMemoryReader):
    """Hands out the records of its partitions in chunks of random size, at random times.

    Records become available one after another, so that a partition is idle now and then.
    """

    def __init__(
        self, source: ListSource, partitions: Sequence[Partition], rng: random.Random
    ) -> None:
        super().__init__(source.partitions, partitions, rng)
        self.unreadable = 0
        self._source = source
        self._end = dict.fromkeys(partitions, 0)

    def poll(self) -> list[Chunk]:
        """A chunk of some partitions."""
        chunks = []
        self._find_partitions()
        for partition in self.partitions:
            total = len(self._source.partitions[partition])
            if self._rng.random() < 0.5:
                self._end[partition] = min(total, self._end[partition] + self._rng.randint(0, 4))
            if partition in self._paused or self._rng.random() < 0.5:
                continue
            chunk = self._chunk(partition)
            if chunk is not None:
                chunks.append(chunk)
        return chunks

    def _chunk(self, partition: Partition) -> Chunk | None:
        first, end = self._next[partition], self._end[partition]
        if first == end:
            return None
        until = min(end, first + self._rng.randint(1, 8))
        self._next[partition] = until
        records = self._source.partitions[partition][first:until]
        return Chunk(
            partition,
            np.arange(first, until),
            np.array([from_millis(ms) for ms, _ in records], np.int64),
            [value for _, value in records],
            self._source.record_size * len(records),
        )

    def idle(self, partition: Partition) -> bool:
        """Whether all that is available has been handed out."""
        return self._next[partition] == self._end[partition]

    def ended(self, partition: Partition) -> bool:
        """Whether all there is has been handed out."""
        return self._all_read(partition)

    def adopt(self, partition: Partition, rest: Rest) -> None:
        """Go on where another reader has stopped; no more is available yet."""
        super().adopt(partition, rest)
        self._end[partition] = rest.offset


FAST = 0.5
"""How likely a look finds all delivered."""


class ListSink:
    """Collects what reaches it, from all workers, in the order of arrival."""

    def __init__(self, slow: float = FAST) -> None:
        """`slow` is how likely a look finds all delivered where that takes long."""
        self.results: list[Result] = []
        self.slow = slow

    def open(self, *_: object) -> SinkWriter:
        """A list sink is opened by `TestFlow` only."""
        raise TypeError("a ListSink runs in a TestFlow only")

    @property
    def values(self) -> list[object]:
        """The values alone."""
        return [result.value for result in self.results]

    def writer(self, worker: WorkerId, rng: random.Random) -> ListWriter:
        """One worker's way in."""
        return ListWriter(self, worker, rng)


class Unhurried:
    """What writers in memory have in common: a batch is there once it is delivered, some turns
    later. So batches that two workers write at once are there in any order."""

    def __init__(self, rng: random.Random, slow: float = FAST) -> None:
        """Of three deliveries one is as slow as `slow` says, the others are fast."""
        self._rng, self._slow = rng, slow
        self._written = self._delivered = 0
        self._pace = FAST
        self._coming: list[Callable[[], None]] = []

    def made(self, batch: Batch) -> Callable[[], None]:
        """What makes a batch be there, as it is now."""
        raise NotImplementedError

    def write(self, batch: Batch) -> int:
        """Take a batch over."""
        self._coming.append(self.made(batch))
        self._written += 1
        return self._written

    @property
    def full(self) -> bool:
        """Whether as many batches are under way as it takes."""
        return self._written - self._delivered >= BATCHES

    def delivered(self) -> int:
        """Everything, but not always at once."""
        chance = self._rng.random()
        if chance < self._pace:
            self._pace = self._slow if chance < self._pace / 3 else FAST
            self.arrive()
        return self._delivered

    def arrive(self) -> None:
        """All that has been taken over is there."""
        self._delivered = self._written
        for show in self._coming:
            show()
        self._coming.clear()

    def close(self) -> None:
        """Nothing is open."""


class ListWriter(Unhurried):
    """Collects batches."""

    def __init__(self, sink: ListSink, worker: WorkerId, rng: random.Random) -> None:
        super().__init__(rng, sink.slow)
        self._sink, self._worker = sink, worker

    def made(self, batch: Batch) -> Callable[[], None]:
        """What collects it, as it is now."""
        return partial(
            self._sink.results.extend, results(self._worker, batch, batch.keys, batch.values)
        )

    def checksum(self, batch: Batch) -> Checksum:
        """Of a batch as it is collected."""
        keys = [None] * len(batch) if batch.keys is None else batch.keys
        return Checksum.of(batch.times, keys, list(map(codec.encode, batch.values)))


def results(
    worker: WorkerId,
    batch: Batch,
    keys: Sequence[bytes | None] | None,
    values: Sequence[object],
) -> list[Result]:
    """The rows of a batch with these keys and values, shapes (n,), as results of a worker."""
    columns = (batch.times, batch.origins, batch.partitions, batch.offsets, batch.indexes)
    places = zip(*(column.tolist() for column in columns), strict=True)
    owned = [None] * len(batch) if keys is None else keys
    return [
        Result(worker, time, origin, partition, offset, index, key, value)
        for (time, origin, partition, offset, index), key, value in zip(
            places, owned, values, strict=True
        )
    ]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that was set aside: by which operator and why, and where it was read."""

    operator: str
    value: object
    reason: str
    trace: str
    time: int
    partition: int
    offset: int


@dataclass(slots=True)
class ListDead:
    """Collects records that a user's function could not take, from all workers."""

    letters: list[DeadLetter] = field(default_factory=list)

    def add(self, operator: str, batch: Batch, row: int, reason: str, trace: str) -> None:
        """Keep one."""
        time, partition = int(batch.times[row]), int(batch.partitions[row])
        offset, value = int(batch.offsets[row]), batch.values[row]
        self.letters.append(DeadLetter(operator, value, reason, trace, time, partition, offset))

    def pending(self) -> int:
        """Nothing is under way."""
        return 0
