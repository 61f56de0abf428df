"""Sources and sinks in memory for simulated workers.

Guarantees that the seed of a run chooses when records arrive, when readers hand them out, and when
results become durable. So partitions are sometimes idle, and deliveries take time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np

from meander.dataflow.exactly_once.checksum import Checksum
from meander.dataflow.interfaces import (
    Chunk,
    Partition,
    Readers,
    Rest,
    Rests,
    SinkWriter,
    SourceOptions,
    SourceReader,
    SourceSpec,
)
from meander.dataflow.records.batch import Batch
from meander.schemas.dead_letter import OriginalRecord
from meander.schemas.row_error import RowError
from meander.state.encoding import codec
from meander.state.keys.ids import WorkerId
from meander.state.times.time import from_millis, to_millis

BATCHES = 8
"""The most undelivered batches of one sink in memory."""


@dataclass(frozen=True, slots=True)
class Result:
    """A result that has reached a sink, with its place in the total order and its worker.

    `key` is in the form of the engine, or in that of the topic.
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
        """Return its place in the total order."""
        return self.time, self.origin, self.partition, self.offset, self.index


class ListSource(SourceSpec[Any]):
    """A source that reads given records: per partition, (milliseconds, value) in offset order."""

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

    def add_partition(self, records: Sequence[tuple[int, object]]) -> None:
        """Add a partition, before a run or during it."""
        self.partitions.append(records)

    def open(self, *_: object) -> SourceReader:
        """Raise TypeError, as only `TestFlow` opens a list source."""
        raise TypeError("a ListSource runs in a TestFlow only")

    def reader(
        self, worker: WorkerId, workers: int, rng: random.Random, readers: Readers
    ) -> ListReader:
        """Return a reader of the partitions of one worker: those that it reads by `readers`, and
        its share of the others."""
        numbers = map(Partition, range(len(self.partitions)))
        mine = [p for p in numbers if readers.get(p, p % workers) == worker]
        return ListReader(self, mine, rng)

    def resumed(self, rests: Rests, rng: random.Random) -> ListReader:
        """Return a reader of the rests of partitions."""
        reader = ListReader(self, [], rng)
        for partition, rest in rests.items():
            if rest is not None:
                reader.adopt(partition, rest)
        return reader


class InMemoryReader:
    """A reader that hands out partitions from lists of records. The lists may grow."""

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
        """Discover new partitions, after a random delay."""
        if self.total != len(self._logs) and self._rng.random() < 0.5:
            self.total = len(self._logs)

    def _all_read(self, partition: Partition) -> bool:
        return self._next[partition] == len(self._logs[partition])

    def watch(self) -> None:
        """Do nothing, as the simulation polls again by itself."""

    def pause(self, partition: Partition) -> None:
        """Hand out no records of a partition until `resume`."""
        self._paused.add(partition)

    def resume(self, partition: Partition) -> None:
        """Undo `pause`."""
        self._paused.discard(partition)

    def rest(self, partition: Partition) -> Rest:
        """Return the rest of a partition."""
        return Rest(self._next[partition], None)

    def release(self, partition: Partition) -> Rest:
        """Stop reading a partition, and return its rest."""
        rest = self.rest(partition)
        self.partitions.remove(partition)
        del self._next[partition]
        return rest

    def adopt(self, partition: Partition, rest: Rest) -> None:
        """Read the rest of a partition that another reader has released."""
        self.partitions.append(partition)
        self._paused.discard(partition)
        self._next[partition] = rest.offset

    def passed(self, partition: Partition, offset: int) -> None:
        """Do nothing, as a list has no lag."""

    def close(self) -> None:
        """Do nothing, as no resource is open."""


class ListReader(InMemoryReader):
    """A reader that hands out records of a list source in chunks of random size, at random times.

    Records arrive one after another, so a partition is sometimes idle.
    """

    def __init__(
        self, source: ListSource, partitions: Sequence[Partition], rng: random.Random
    ) -> None:
        super().__init__(source.partitions, partitions, rng)
        self.unreadable = 0
        self._source = source
        self._end = dict.fromkeys(partitions, 0)

    def poll(self) -> list[Chunk]:
        """Return a chunk of each of some partitions."""
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
        """Return whether the reader has handed out all arrived records."""
        return self._next[partition] == self._end[partition]

    def ended(self, partition: Partition) -> bool:
        """Return whether the reader has handed out all records."""
        return self._all_read(partition)

    def adopt(self, partition: Partition, rest: Rest) -> None:
        """Read the rest of a partition that another reader has released. None of its records has
        arrived yet."""
        super().adopt(partition, rest)
        self._end[partition] = rest.offset


Refuses = Callable[[object], bool]
FAST = 0.5
"""The probability that a check finds all batches delivered."""


class ListSink:
    """A sink that collects the results of all workers in the order of arrival."""

    def __init__(self, slow: float = FAST, refuses: Refuses | None = None) -> None:
        """`slow` is the probability that a check finds the batches of a slow delivery
        delivered. `refuses` tells which values cannot be written."""
        self.results: list[Result] = []
        self.slow, self._refuses = slow, refuses

    def open(self, *_: object) -> SinkWriter:
        """Raise TypeError, as only `TestFlow` opens a list sink."""
        raise TypeError("a ListSink runs in a TestFlow only")

    @property
    def values(self) -> list[object]:
        """Return the values of all results."""
        return [result.value for result in self.results]

    def check(self, batch: Batch) -> None:
        """Raise RowError for the values that cannot be written."""
        if self._refuses is None:
            return
        cause, refuses = "its value cannot be written", self._refuses
        rows = (row for row, value in enumerate(batch.values) if refuses(value))
        if errors := {row: RowError(row, "a ListSink", cause) for row in rows}:
            raise RowError.first(errors)

    def writer(self, worker: WorkerId, rng: random.Random) -> ListWriter:
        """Return the writer of one worker."""
        return ListWriter(self, worker, rng)


class DelayedWriter:
    """A writer in memory that makes a batch visible some turns later. So batches of two workers
    become visible in any order."""

    def __init__(self, rng: random.Random, slow: float = FAST) -> None:
        """One of three deliveries has the probability `slow`, the others are fast."""
        self._rng, self._slow = rng, slow
        self._written = self._delivered = 0
        self._chance = FAST
        self._hidden: list[Callable[[], None]] = []

    def prepared(self, batch: Batch) -> Callable[[], None]:
        """Return a function that makes the current contents of a batch visible."""
        raise NotImplementedError

    def write(self, batch: Batch) -> int:
        """Accept a batch, and return its ticket."""
        self._hidden.append(self.prepared(batch))
        self._written += 1
        return self._written

    @property
    def full(self) -> bool:
        """Return whether the writer accepts no further batch now."""
        return self._written - self._delivered >= BATCHES

    def delivered(self) -> int:
        """Return the ticket of the last visible batch, after a random check has made all of them
        visible or none."""
        chance = self._rng.random()
        if chance < self._chance:
            self._chance = self._slow if chance < self._chance / 3 else FAST
            self.show_all()
        return self._delivered

    def show_all(self) -> None:
        """Make all batches visible."""
        self._delivered = self._written
        for show in self._hidden:
            show()
        self._hidden.clear()

    def close(self) -> None:
        """Do nothing, as no resource is open."""


class ListWriter(DelayedWriter):
    """A writer that collects batches in a list sink."""

    def __init__(self, sink: ListSink, worker: WorkerId, rng: random.Random) -> None:
        super().__init__(rng, sink.slow)
        self._sink, self._worker = sink, worker

    def prepared(self, batch: Batch) -> Callable[[], None]:
        """Return a function that collects the current contents of a batch. Raise RowError."""
        self._sink.check(batch)
        return partial(
            self._sink.results.extend, results(self._worker, batch, batch.keys, batch.values)
        )

    def checksum(self, batch: Batch) -> Checksum:
        """Return the checksum of a batch. Raise RowError."""
        self._sink.check(batch)
        keys = [None] * len(batch) if batch.keys is None else batch.keys
        return Checksum.of(batch.times, keys, list(map(codec.encode, batch.values)))


def results(
    worker: WorkerId,
    batch: Batch,
    keys: Sequence[bytes | None] | None,
    values: Sequence[object],
) -> list[Result]:
    """Return the results of a worker: the rows of a batch with keys and values, shapes (n,)."""
    columns = (batch.times, batch.origins, batch.partitions, batch.offsets, batch.indexes)
    places = zip(*(column.tolist() for column in columns), strict=True)
    owned = [None] * len(batch) if keys is None else keys
    return [
        Result(worker, time, origin, partition, offset, index, key, value)
        for (time, origin, partition, offset, index), key, value in zip(
            places, owned, values, strict=True
        )
    ]


SLOW_DEAD_LETTERS = 0.05
"""The probability that a check finds a worker's dead letters durable."""
MAX_WAITING_DEAD_LETTERS = 8
"""The dead letters that are not durable with which a worker takes no more records."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter that keeps a record with its operator, reason and position.

    `time` is a packed logical time, which sorts and compares; `time_ms` has its milliseconds.

    >>> letter = DeadLetter("map", 7, "KeyError", "", from_millis(1_000), partition=0, offset=3)
    >>> letter.time_ms, letter
    (1000, DeadLetter(operator='map', value=7, ..., time_ms=1000))
    """

    operator: str
    value: object
    reason: str
    trace: str
    time: int
    """The packed logical time."""
    partition: int
    """The partition of the record; a timer or a notification has a number of its key instead."""
    offset: int
    key: object = None
    """The key, where the record or the timer has one."""
    topic: str = ""
    """The topic of the record; '' for a timer, and for a source beside Kafka."""
    partition_name: str = ""
    """The name of the partition of a source beside Kafka, such as the path of a file."""
    original: OriginalRecord | None = None
    """The record on its topic: key, bytes, headers and timestamp. None for a timer, for a source
    beside Kafka, and where the topic no longer holds it as a `flow.run` ends."""

    def __repr__(self) -> str:
        names = [one.name for one in fields(self) if one.name != "time"]
        shown = (f"{name}={getattr(self, name)!r}" for name in [*names, "time_ms"])
        return f"DeadLetter({', '.join(shown)})"

    @property
    def time_ms(self) -> int:
        """Return the logical time in milliseconds since 1970."""
        return to_millis(self.time)


def _as_it_is(letter: DeadLetter, _: int) -> DeadLetter:
    return letter


@dataclass(slots=True)
class ListDeadLetters:
    """A list that collects one worker's dead letters; implements `DeadLetterTopic`. With `rng` a
    dead letter is durable some checks later, and a crash before loses it. `placed` adds the place
    of its record to a dead letter, given the number of the record's origin."""

    letters: list[DeadLetter] = field(default_factory=list)
    """The dead letters in order; workers may share the list."""
    rng: random.Random | None = None
    placed: Callable[[DeadLetter, int], DeadLetter] = _as_it_is
    waiting: list[DeadLetter] = field(default_factory=list)
    """The dead letters that are not durable."""
    added: int = 0

    def add(self, operator: str, batch: Batch, row: int, reason: str, trace: str) -> None:
        """Keep one record with its reason."""
        time, partition = int(batch.times[row]), int(batch.partitions[row])
        offset, value = int(batch.offsets[row]), batch.values[row]
        key = None if batch.keys is None else codec.decode(batch.keys[row])
        letter = DeadLetter(operator, value, reason, trace, time, partition, offset, key)
        letter = self.placed(letter, int(batch.origins[row]))
        self.letters.append(letter)
        self.waiting.append(letter)
        self.added += 1

    def delivered(self) -> int:
        """Return the last ticket up to which all are durable, after a random check."""
        if self.waiting and (self.rng is None or self.rng.random() < SLOW_DEAD_LETTERS):
            self.waiting.clear()
        return self.added - len(self.waiting)

    def has_room(self) -> bool:
        """Return whether few dead letters are not durable, after a random check."""
        self.delivered()
        return len(self.waiting) < MAX_WAITING_DEAD_LETTERS
