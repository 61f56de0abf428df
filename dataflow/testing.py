"""Run a flow on simulated workers, in one process and without Kafka or Spark.

>>> from dataflow import Flow
>>> flow = Flow("words")
>>> words = flow.source(ListSource([[(1, "dog"), (2, "cat")], [(3, "dog")]]))
>>> sink = ListSink()
>>> words.key_by(lambda w: w).fold("n", lambda: 0, lambda n, w: (n + 1, (w, n + 1))).sink(sink)
>>> with TestFlow(flow, workers=2, seed=7) as run:
...     run.run()
>>> sorted(result.value for result in sink.results)
[('cat', 1), ('dog', 1), ('dog', 2)]
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np

from dataflow.assembly import Site
from dataflow.batch import Batch
from dataflow.flow import Flow
from dataflow.nodes import SinkNode, SourceNode
from dataflow.plan import Plan
from dataflow.protocols import Chunk, Partition, Rest, SinkWriter, SourceOptions, SourceReader
from dataflow.sim import Command, SimClock, SimLinks, SimTopic, Simulation, simulate
from dataflow.worker import Worker
from state.ids import WorkerId
from state.store import Database
from state.time import from_millis

BATCHES = 8
"""Under way at one list sink."""


@dataclass(frozen=True, slots=True)
class Result:
    """One record that reached a sink, with its place in the total order and its worker."""

    worker: WorkerId
    time: int
    origin: int
    partition: int
    offset: int
    index: int
    key: bytes | None
    value: object


class ListSource:
    """A source of records that are given: per partition, (milliseconds, value) in offset order."""

    def __init__(
        self,
        partitions: Sequence[Sequence[tuple[int, object]]],
        options: SourceOptions | None = None,
        record_size: int = 100,
    ) -> None:
        self.partitions = partitions
        self.options = options or SourceOptions()
        self.record_size = record_size

    def open(self, *_: object) -> SourceReader:
        """A list source is opened by `TestFlow` only."""
        raise TypeError("a ListSource runs in a TestFlow only")

    def reader(self, worker: WorkerId, workers: int, rng: random.Random) -> ListReader:
        """The partitions of one worker."""
        mine = [Partition(p) for p in range(len(self.partitions)) if p % workers == worker]
        return ListReader(self, mine, rng)


class ListReader:
    """Hands out the records of its partitions in chunks of random size, at random times.

    Records become available one after another, so that a partition is idle now and then.
    """

    def __init__(
        self, source: ListSource, partitions: Sequence[Partition], rng: random.Random
    ) -> None:
        self.partitions = list(partitions)
        self.unreadable = 0
        self._source, self._rng = source, rng
        self._paused: set[Partition] = set()
        self._next = dict.fromkeys(partitions, 0)
        self._end = dict.fromkeys(partitions, 0)

    def poll(self) -> list[Chunk]:
        """A chunk of some partitions."""
        chunks = []
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

    def pause(self, partition: Partition) -> None:
        """Hand out no more."""
        self._paused.add(partition)

    def resume(self, partition: Partition) -> None:
        """Go on."""
        self._paused.discard(partition)

    def idle(self, partition: Partition) -> bool:
        """Whether all that is available has been handed out."""
        return self._next[partition] == self._end[partition]

    def ended(self, partition: Partition) -> bool:
        """Whether all there is has been handed out."""
        return self._next[partition] == len(self._source.partitions[partition])

    def release(self, partition: Partition) -> Rest:
        """Hand out no more of it for good."""
        self.partitions.remove(partition)
        del self._end[partition]
        return Rest(self._next.pop(partition), None)

    def adopt(self, partition: Partition, rest: Rest) -> None:
        """Go on where another reader has stopped."""
        self.partitions.append(partition)
        self._paused.discard(partition)
        self._next[partition] = self._end[partition] = rest.offset

    def passed(self, partition: Partition, offset: int) -> None:
        """Nobody watches the lag of a list."""

    def close(self) -> None:
        """Nothing is open."""


class ListSink:
    """Collects what reaches it, from all workers, in the order of arrival."""

    def __init__(self) -> None:
        self.results: list[Result] = []

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


class ListWriter:
    """Delivers at once, and says so some turns later."""

    def __init__(self, sink: ListSink, worker: WorkerId, rng: random.Random) -> None:
        self._sink, self._worker, self._rng = sink, worker, rng
        self._written = self._delivered = 0

    def write(self, batch: Batch) -> int:
        """Collect a batch."""
        for row in range(len(batch)):
            self._sink.results.append(
                Result(
                    self._worker,
                    int(batch.times[row]),
                    int(batch.origins[row]),
                    int(batch.partitions[row]),
                    int(batch.offsets[row]),
                    int(batch.indexes[row]),
                    None if batch.keys is None else batch.keys[row],
                    batch.values[row],
                )
            )
        self._written += 1
        return self._written

    @property
    def full(self) -> bool:
        """Whether as many batches are under way as it takes."""
        return self._written - self._delivered >= BATCHES

    def delivered(self) -> int:
        """Everything, but not always at once."""
        if self._rng.random() < 0.5:
            self._delivered = self._written
        return self._delivered

    def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class ListDead:
    """Collects records that a user's function could not take."""

    letters: list[tuple[str, object, str]] = field(default_factory=list)

    def add(self, operator: str, batch: Batch, row: int, reason: str, trace: str) -> None:
        """Keep operator, value and reason."""
        self.letters.append((operator, batch.values[row], reason))

    def pending(self) -> int:
        """Nothing is under way."""
        return 0


class TestFlow:
    """A flow of list sources and sinks on simulated workers; one seed is one run."""

    __test__ = False

    def __init__(
        self,
        flow: Flow,
        workers: int = 2,
        seed: int = 0,
        commands: Sequence[Command] = (),
        database: Database | None = None,
        namespace: int = 0,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="meander-test-")
        self._own = Database(self._folder.name, 8 << 20) if database is None else None
        self._database = self._own or database
        self._namespace, self._count = namespace, workers
        self._rng = random.Random(seed)
        self.dead = ListDead()
        self._plan = Plan(flow)
        self.sim: Simulation = simulate(self._plan, workers, self._rng, self._build, commands)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.workers:
            worker.close()
        if self._own is not None:
            self._own.close()
        self._folder.cleanup()

    def run(self) -> None:
        """To the end. Raises AssertionError when there is none."""
        self.sim.run()

    @property
    def events(self) -> list[dict[str, object]]:
        """What became of the commands."""
        return self.sim.events

    @property
    def workers(self) -> list[Worker]:
        """The workers."""
        return self.sim.workers

    def state(self) -> dict[str, dict[bytes, bytes]]:
        """All keyed state. Raises AssertionError when a key is on two workers (I2)."""
        whole: dict[str, dict[bytes, bytes]] = {}
        for worker in self.workers:
            for operator, states in worker.state().items():
                known = whole.setdefault(operator, {})
                assert not known.keys() & states.keys(), "one key's state is on two workers (I2)"
                known.update(states)
        return whole

    def _build(
        self, me: WorkerId, links: SimLinks, clock: SimClock, topic: SimTopic, joins: bool
    ) -> Worker:
        assert self._database is not None
        database = self._database

        def reader(node: SourceNode) -> SourceReader:
            assert isinstance(node.spec, ListSource)
            return node.spec.reader(me, self._count, self._rng)

        def writer(node: SinkNode) -> SinkWriter:
            assert isinstance(node.spec, ListSink)
            return node.spec.writer(me, self._rng)

        site = Site(
            me,
            self._count,
            clock,
            topic,
            self.dead,
            lambda name, codec: database.store(f"{self._namespace}/{me}/{name}", codec),
            reader,
            writer,
            joins=joins,
        )
        return Worker(self._plan, site, links)
