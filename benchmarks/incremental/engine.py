"""One worker of the real engine in this process, which takes changes round by round.

A round is closed: its changes arrive together, and it ends once the sink has passed the time of the
last one. The coordinator belongs to another process of a real run. So its turns between rounds, and
those in which the worker has work, do not count as time of a round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.incremental.graph import Records
from benchmarks.incremental.members import ONE, DirectLinks, Feed, Members, Results
from meander import Flow
from meander.dataflow.interfaces import SinkWriter
from meander.dataflow.runtime.worker import Worker
from meander.state.collections.columns import Int64s
from meander.state.keys.ids import COORDINATOR, WorkerId
from meander.state.times.antichain import Antichain
from meander.state.times.time import from_millis

COORDINATED = 0.005
"""Seconds from one turn of the coordinator to the next, at most."""


class Engine:
    """A worker, and its way from one round to the next."""

    workers = 1

    def __init__(self, members: Members, worker: Worker, feed: Feed, writer: SinkWriter) -> None:
        self.worker, self.writer = worker, writer
        self._members, self._feed = members, feed
        (self._sink,) = members.plan.probes.values()
        self._last = 0
        self._aside = 0.0
        """The seconds that the coordinator has taken from the worker."""

    def round(self, changes: Records, each: int = 1) -> float:
        """Take changes that arrive now, so `each` many of a time; return the seconds until the sink
        has passed them."""
        begin = self._begin()
        times = begin + np.arange(len(changes)) // each
        return self.take(self._own(times), self._share(changes).rows(), int(times[-1]))

    def load(self, changes: Records, closing: object) -> float:
        """Take changes that arrive now and have one time, and on each worker a record of the next
        time, which closes it; return the seconds until the sink has passed them."""
        begin, rows = self._begin(), [*self._share(changes).rows(), closing]
        times = np.full(len(rows), begin)
        times[-1] += 1
        return self.take(times, rows, begin)

    def take(self, times: Int64s, rows: Sequence[object], last: int) -> float:
        """Take records that arrive now; return the seconds until the sink has passed the last time
        of all workers."""
        self._last = last
        self._aside, began = 0.0, perf_counter()
        self._feed.give(times, rows)
        while self._frontier.less_equal(last):
            self.turn()
        return perf_counter() - began - self._aside

    def turn(self) -> None:
        """Take one turn."""
        raise NotImplementedError

    @property
    def _frontier(self) -> Antichain:
        return self.worker.parts.progress.frontier(self._sink)

    def _begin(self) -> int:
        """Return the first time of a round: now, as records get it that are produced now."""
        return max(self._last + 1, from_millis(self._members.clock.now_ms()))

    def _share(self, changes: Records) -> Records:
        """Return the changes that this worker reads."""
        return changes

    def _own(self, times: Int64s) -> Int64s:
        """Return the times of these changes."""
        return times


class SingleEngine(Engine):
    """One worker, with its coordinator in the same process."""

    def __init__(self, members: Members, folder: Path, writer: SinkWriter) -> None:
        links, feed = DirectLinks.between(ONE), Feed(WorkerId(0), 1)
        self._coordinator = members.coordinator(links[COORDINATOR])
        worker = members.worker(WorkerId(0), links[WorkerId(0)], feed, writer, folder)
        super().__init__(members, worker, feed, writer)
        self._coordinated = 0.0

    def turn(self) -> None:
        """Let the worker take a turn, and the coordinator where the worker waits for it."""
        worked, now = self.worker.step(), perf_counter()
        if worked and now - self._coordinated < COORDINATED:
            return
        self._coordinate()
        if worked:
            self._aside += perf_counter() - now

    def _coordinate(self) -> None:
        for report in self.worker.reports():
            self._coordinator.report(self.worker.me, report)
        self._coordinator.step()
        self._coordinator.events()
        self._coordinated = perf_counter()

    def _begin(self) -> int:
        self._coordinate()
        return super()._begin()


@contextmanager
def engine_of(flow: Flow, writer: SinkWriter | None = None) -> Iterator[SingleEngine]:
    """Yield one worker of a flow that reads `members.NOTHING`."""
    with tempfile.TemporaryDirectory(prefix="meander-bench-") as folder:
        engine = SingleEngine(Members(flow, 1), Path(folder), writer or Results())
        yield engine
        engine.worker.close()
