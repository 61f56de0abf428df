"""Flows driven by hand: what is read, delivered and passed on happens when a test says so."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from meander.dataflow.api.flow import Flow
from meander.dataflow.control.command import MoveBins
from meander.dataflow.control.decisions import WriteDecision
from meander.dataflow.control.timestamp_overrides import NO_OVERRIDES, OverrideHistory
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.flow_control.batcher import Batcher
from meander.dataflow.interfaces import Chunk, Partition, Readers, SourceOptions
from meander.dataflow.migration.migrator import Migrator
from meander.dataflow.operators.buffer.buffer import SpillBuffer
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.exchange import Exchange
from meander.dataflow.operators.keyed.operator import KeyedOperator
from meander.dataflow.operators.loop import LoopEntry
from meander.dataflow.operators.source.operator import SourceOperator
from meander.dataflow.records.batch import Batch
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.in_memory import ListReader, ListSink, ListSource, ListWriter
from meander.state.keys.ids import COORDINATOR, WorkerId
from meander.state.store.store import Databases
from meander.state.times.time import from_millis
from meander.testing import TestFlow

QUIET, PATIENCE = 2, 12
"""Turns without work after which nothing more is taken to happen; the second while the simulated
state topic, decision log or sink owe an answer, which they give to every second question."""


class ManualSource(ListSource):
    """A source whose partitions hold what `give` has put there."""

    def __init__(
        self, partitions: int = 1, options: SourceOptions | None = None, record_size: int = 100
    ) -> None:
        super().__init__([[] for _ in range(partitions)], options, record_size)
        self.feeds = [Feed(record_size) for _ in range(partitions)]

    def give(self, partition: int, *records: tuple[int, object]) -> None:
        """Put (milliseconds, value) records into the log, one chunk for all of them."""
        self.feeds[partition].give(records)

    def end(self) -> None:
        """Nothing more will come, on any partition."""
        for feed in self.feeds:
            feed.ended = True

    def reader(
        self, worker: WorkerId, workers: int, rng: random.Random, readers: Readers
    ) -> ManualReader:
        share = [Partition(p) for p in self._of(worker, workers)]
        assert not readers, "no plan names the readers of these partitions"
        return ManualReader(self, share, rng)

    def _of(self, worker: WorkerId, workers: int) -> Sequence[int]:
        return range(worker, len(self.feeds), workers)


class Feed:
    """One partition's log."""

    def __init__(self, record_size: int) -> None:
        self.chunks: deque[Chunk] = deque()
        self.busy = False
        """Whether more is under way that has not come yet: then the partition is not idle."""
        self.ended = False
        self.paused = False
        self.passed = 0
        self._record_size, self._next = record_size, 0

    def give(self, records: Sequence[tuple[int, object]]) -> None:
        first, self._next = self._next, self._next + len(records)
        self.chunks.append(
            Chunk(
                Partition(0),
                np.arange(first, self._next),
                np.array([from_millis(ms) for ms, _ in records], np.int64),
                [value for _, value in records],
                self._record_size * len(records),
            )
        )


class ManualReader(ListReader):
    """Hands out a chunk per partition and poll."""

    def __init__(
        self, source: ManualSource, partitions: Sequence[Partition], rng: random.Random
    ) -> None:
        super().__init__(source, partitions, rng)
        self._feeds = {p: source.feeds[p] for p in partitions}

    def poll(self) -> list[Chunk]:
        ready = [(p, f) for p, f in self._feeds.items() if f.chunks and not f.paused]
        return [_of(p, feed.chunks.popleft()) for p, feed in ready]

    def pause(self, partition: Partition) -> None:
        self._feeds[partition].paused = True

    def resume(self, partition: Partition) -> None:
        self._feeds[partition].paused = False

    def idle(self, partition: Partition) -> bool:
        feed = self._feeds[partition]
        return not feed.chunks and not feed.busy

    def ended(self, partition: Partition) -> bool:
        feed = self._feeds[partition]
        return feed.ended and not feed.chunks

    def passed(self, partition: Partition, offset: int) -> None:
        self._feeds[partition].passed = offset


def _of(partition: Partition, chunk: Chunk) -> Chunk:
    return Chunk(partition, chunk.offsets, chunk.times, chunk.values, chunk.size)


class ManualSink(ListSink):
    """A sink that takes and delivers only while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.delivers = self.takes = True

    def writer(self, worker: WorkerId, rng: random.Random) -> ManualWriter:
        return ManualWriter(self, worker, rng)


class ManualWriter(ListWriter):
    """One worker's way into a `ManualSink`."""

    def __init__(self, sink: ManualSink, worker: WorkerId, rng: random.Random) -> None:
        super().__init__(sink, worker, rng)
        self._hand = sink
        self._tickets = self._done = 0

    def write(self, batch: Batch) -> int:
        self.prepared(batch)()
        self._tickets += 1
        return self._tickets

    @property
    def full(self) -> bool:
        return not self._hand.takes

    def delivered(self) -> int:
        if self._hand.delivers:
            self._done = self._tickets
        return self._done


class ManualFlow(TestFlow):
    """A flow on simulated workers, each of whose steps a test decides on."""

    def __init__(
        self,
        flow: Flow,
        databases: Databases,
        namespace: int,
        workers: int = 2,
        commands: Sequence[MoveBins] = (),
        past: OverrideHistory = NO_OVERRIDES,
    ) -> None:
        super().__init__(
            flow, workers, 0, commands=commands, databases=databases, namespace=namespace, past=past
        )

    def run_until_idle(self, coordinator: bool = True) -> None:
        """Let happen what can happen while the clock stands still, without the controller if it is
        to be held back: then T, the least time not forsworn, stays."""
        quiet = 0
        for _ in range(10_000):
            quiet = 0 if self.turn(coordinator) else quiet + 1
            if quiet >= QUIET and (quiet >= PATIENCE or not self._answers_are_due()):
                return
        raise AssertionError("it does not come to rest")

    def turn(self, coordinator: bool = True) -> bool:
        """Deliver what is under way and let everyone take one turn; whether anything was done."""
        worked = self._deliver(coordinator)
        for worker in self.workers:
            worked |= self._step(worker)
        if coordinator:
            worked |= self.sim.coordinator.step()
            self.sim.collect()
        return worked

    def wait(self, seconds: float, coordinator: bool = True) -> None:
        """Let time pass in steps of a millisecond, and whatever it brings about happen."""
        for _ in range(round(seconds * 1000)):
            self.sim.clock.advance(0.001)
            self.run_until_idle(coordinator)

    def finish(self, source: ManualSource) -> None:
        """End the source and let the flow come to its end."""
        source.end()
        for _ in range(1000):
            self.wait(0.003)
            if self.sim.done:
                return
        raise AssertionError("the flow does not come to its end (I7)")

    @property
    def forsworn(self) -> int | None:
        return self.sim.coordinator.closed_before

    def said(self, command: str) -> list[object]:
        """What has become of a command, in order."""
        return [event["type"] for event in self.events if event["id"] == command]

    def _answers_are_due(self) -> bool:
        operators = [o for worker in self.workers for o in worker.parts.operators.operators]
        return (
            any(
                o.wait_seconds() is not None if isinstance(o, Migrator) else not o.finished()
                for o in operators
                if not isinstance(o, SourceOperator)
            )
            or self.sim.coordinator.decisions.least is not None
        )

    def _deliver(self, coordinator: bool) -> bool:
        lanes = self.sim.network.busy()
        chosen = [lane for lane in lanes if coordinator or COORDINATOR not in lane[:2]]
        for lane in chosen:
            self.sim.network.deliver(lane, 1 << 30)
        return bool(chosen)

    def _step(self, worker: Worker) -> bool:
        worked = worker.step()
        for report in worker.reports():
            self.sim.coordinator.report(worker.me, report)
        return worked


def keyed(worker: Worker, name: str) -> KeyedOperator:
    """One stateful operator of a worker."""
    found = next(o.keyed for o in worker.parts.operators.outgoing if o.keyed.name == name)
    assert isinstance(found, KeyedOperator)
    return found


def batchers(worker: Worker) -> list[Batcher]:
    """The batchers of a worker's flow control."""
    return [one for one in worker.parts.operators.operators if isinstance(one, Batcher)]


def loops(worker: Worker) -> list[LoopEntry]:
    """The beginnings of a worker's loops."""
    return [o for o in worker.parts.operators.operators if isinstance(o, LoopEntry)]


def migrator(worker: Worker) -> Migrator:
    """The side of F that moves state."""
    return next(o for o in worker.parts.operators.operators if isinstance(o, Migrator))


def source_operator(worker: Worker) -> SourceOperator:
    """The first source of a worker."""
    return next(o for o in worker.parts.operators.operators if isinstance(o, SourceOperator))


def lane_times(run: TestFlow) -> dict[int, int]:
    """Each partition's frontier."""
    return {
        partition: lane.time
        for worker in run.workers
        for partition, lane in source_operator(worker)._partitions.items()
    }


def until(holds: Callable[[], bool], act: Callable[[], object], most: int = 1000) -> None:
    """Act until something holds."""
    for _ in range(most):
        if holds():
            return
        act()
    raise AssertionError("it does not come to hold")


def buffered_bytes(operator: Exchange | KeyedOperator) -> int:
    """Return the bytes of all records that an operator keeps back."""
    if isinstance(operator, Exchange):
        return operator.stash.size + operator._unsent_bytes
    return operator._waiting.size + operator._queued_bytes + operator.incoming.size


def buffered_batches(buffer: SpillBuffer) -> list[Rows]:
    """Return the batches that a buffer keeps in memory."""
    return [rows for _, rows in buffer._memory._batches]


def replace_decision_writer(coordinator: Coordinator, write: WriteDecision) -> None:
    """Give the decisions of a flow to a test, which decides when they are durable."""
    coordinator.decisions._write = write


def turn_without(run: ManualFlow, stuck: WorkerId) -> None:
    """Step each member but one worker, which takes nothing off its links."""
    for lane in run.sim.network.busy():
        if lane[1] != stuck:
            run.sim.network.deliver(lane, 1 << 30)
    for worker in run.workers:
        if worker.me != stuck:
            worker.step()
    run.sim.coordinator.step()
