"""The members of a flow with sources and sinks in memory: no Kafka, no Spark.

Workers and coordinator are those of a real run, with real stores, frames and clocks. A state topic
in memory takes the incremental snapshots. Nothing is simulated but the topics.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np

from meander import Flow
from meander.app.common.clock import SystemClock
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.decisions import Decision
from meander.dataflow.control.timestamp_overrides import NO_OVERRIDES
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.interfaces import Chunk, Links, Partition, SinkWriter, SourceOptions
from meander.dataflow.records.batch import Batch
from meander.dataflow.runtime.operator_factory import WorkerEnvironment
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.event_loop import SimulatedEventLoop
from meander.dataflow.simulation.in_memory import (
    InMemoryReader,
    ListDeadLetters,
    ListSource,
)
from meander.dataflow.simulation.simulator import DurableWorld
from meander.state.collections.columns import Int64s
from meander.state.keys.ids import COORDINATOR, WorkerId
from meander.state.store.spill import SpillStore
from meander.state.store.store import Database

ROW_BYTES = 20
"""The bytes of a change on a topic."""
PATIENCE = SourceOptions(idle_after=0.0)
"""A partition without a record lets time pass at once, as nothing more of its time will come."""


NOTHING = ListSource([], PATIENCE)
"""The source of a flow whose records a `Feed` gives."""


class Feed(InMemoryReader):
    """A reader of one partition that hands out what it is given."""

    unreadable = 0

    def __init__(self, me: WorkerId, workers: int) -> None:
        super().__init__([()] * workers, [Partition(me)], random.Random(0))
        self._chunks, self._offset = deque[Chunk](), 0

    def give(self, times: Int64s, rows: Sequence[object]) -> None:
        """Let records arrive; `times` are logical, ascending, shape (n,)."""
        (partition,) = self.partitions
        offsets = np.arange(self._offset, self._offset + len(rows))
        self._offset += len(rows)
        if rows:
            self._chunks.append(Chunk(partition, offsets, times, [*rows], ROW_BYTES * len(rows)))

    def poll(self) -> list[Chunk]:
        """Return the next chunk."""
        return [self._chunks.popleft()] if self._chunks and not self._paused else []

    def idle(self, _: Partition) -> bool:
        """Return whether all records have been handed out."""
        return not self._chunks

    def ended(self, _: Partition) -> bool:
        """Return False, as the run does not end."""
        return False


@dataclass(slots=True)
class Results:
    """A writer that counts results, and keeps none."""

    rows: int = 0
    full: bool = False
    _written: int = 0

    def write(self, batch: Batch) -> int:
        """Count the results of a batch."""
        self.rows += len(batch)
        self._written += 1
        return self._written

    def delivered(self) -> int:
        """Return the last ticket, as nothing is under way."""
        return self._written

    def close(self) -> None:
        """Do nothing, as no resource is open."""


class Answer(Results):
    """A writer that sums up the changes of an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.rows_by_key = Counter[tuple[object, object]]()

    def write(self, batch: Batch) -> int:
        """Add the changes of a batch."""
        for row in cast(list[dict[str, int]], batch.values):
            self.rows_by_key[row["key"], row["value"]] += row["diff"]
        return super().write(batch)

    @property
    def rows_there(self) -> set[tuple[object, object]]:
        """Return the rows of the answer."""
        return {row for row, count in self.rows_by_key.items() if count}


class Members:
    """The parts of one process from which its members are made: the plan, and the topics."""

    def __init__(self, flow: Flow, workers: int) -> None:
        """`flow` reads `NOTHING` in place of its topic."""
        self.plan = Plan(flow)
        self.workers, self.clock = workers, SystemClock()
        self.world = DurableWorld.empty(random.Random(0))
        self.world.start_execution(self.plan, workers, NO_OVERRIDES)

    def worker(
        self, me: WorkerId, links: Links, feed: Feed, writer: SinkWriter, folder: Path
    ) -> Worker:
        """Return a worker that reads a feed and keeps its state in a folder."""
        database = Database(folder / "state", self.plan.flow.state_memory)
        environment = WorkerEnvironment(
            me=me, workers=self.workers, clock=self.clock, topic=self.world.state,
            dead=ListDeadLetters(),
            open_store=database.store,
            open_spill_store=lambda name: SpillStore(database, name),
            open_reader=lambda *_: feed,
            open_writer=lambda _: writer,
            execution=self.world.execution, start=self.world.start,
            in_flight=self.world.in_flight,
            open_event_loop=lambda: SimulatedEventLoop(self.clock),
        )  # fmt: skip
        return Worker(self.plan, environment, links)

    def coordinator(self, links: Links) -> Coordinator:
        """Return the coordinator, whose decisions are durable at once."""
        checkpoints = self.world.checkpoint_coordinator(
            self.plan, links, self.clock, durable=lambda: True
        )
        return Coordinator(self.plan, self.world.start, links, self.clock, _journalled, checkpoints)


def _journalled(_: Decision) -> Callable[[], bool]:
    return lambda: True


@dataclass(slots=True)
class DirectLinks:
    """Links between members of one process: a frame arrives as it is sent."""

    me: WorkerId
    inboxes: dict[WorkerId, list[tuple[WorkerId, list[bytes]]]] = field(default_factory=dict)

    @staticmethod
    def between(members: Sequence[WorkerId]) -> dict[WorkerId, DirectLinks]:
        """Return the links of each member."""
        inboxes: dict[WorkerId, list[tuple[WorkerId, list[bytes]]]] = {me: [] for me in members}
        return {me: DirectLinks(me, inboxes) for me in members}

    def send(self, peer: WorkerId, frame: list[bytes]) -> None:
        """Put a frame into the inbox of a peer."""
        self.inboxes[peer].append((self.me, frame))

    def flush(self) -> None:
        """Do nothing, as frames arrive at once."""

    def receive(self) -> Iterable[tuple[WorkerId, list[bytes]]]:
        """Return the frames that have arrived."""
        arrived, self.inboxes[self.me] = self.inboxes[self.me], []
        return arrived


ONE = [WorkerId(0), COORDINATOR]
"""The members of a flow on one worker."""
