"""Several workers of the real engine in processes on the real links, with the coordinator here.

All take each round at once: the first one chooses its time, and each reads its share of the
changes.
"""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.managers import DictProxy
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

from benchmarks.incremental.engine import Engine
from benchmarks.incremental.found import Found, Tick
from benchmarks.incremental.graph import Records
from benchmarks.incremental.members import Feed, Members, Results
from meander import Flow
from meander.connectors.links.links import CurveKeys, CurveLinks, LinkBroken, Peer
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.runtime.worker import members_of
from meander.schemas.errors import MeanderError
from meander.state.collections.columns import Int64s
from meander.state.keys.ids import COORDINATOR, WorkerId

WAIT = 0.001
"""Seconds that an idle member sleeps at most."""
Series = Callable[[Engine, Tick], Found]
"""The rounds of an engine, which all its workers take."""
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the processes of all members see."""

    workers: int
    meeting: Barrier
    number: Synchronized[int] = field(default_factory=lambda: _SPAWN.Value("q", 0))
    """The number of the last round that the first worker has begun."""
    begin: Synchronized[int] = field(default_factory=lambda: _SPAWN.Value("q", 0))
    """The first time of this round."""
    ended: Synchronized[int] = field(default_factory=lambda: _SPAWN.Value("q", 0))
    """The number of workers that have taken all rounds."""
    over: Event = field(default_factory=_SPAWN.Event)
    """Set once no member needs the links any more."""
    done: Synchronized[int] = field(default_factory=lambda: _SPAWN.Value("q", 0))
    """The number of changes that the first worker has noted as done."""


class PairedEngine(Engine):
    """One of the workers."""

    def __init__(
        self,
        members: Members,
        me: WorkerId,
        links: CurveLinks,
        folder: Path,
        shared: _Shared,
        writer: Results,
    ) -> None:
        self.workers = shared.workers
        feed = Feed(me, self.workers)
        super().__init__(members, members.worker(me, links, feed, writer, folder), feed, writer)
        self._links, self._shared, self._number = links, shared, 0

    def turn(self) -> None:
        """Take a turn, or sleep until a frame comes."""
        worked = self.worker.step()
        if reports := self.worker.reports():
            self._links.send_message(COORDINATOR, pickle.dumps(reports))
        if not worked:
            self._links.wait(WAIT)

    def end(self) -> None:
        """Take turns until the others have taken all rounds as well, and let the links go."""
        with self._shared.ended.get_lock():
            self._shared.ended.value += 1
        while not self._shared.over.is_set():
            self.turn()
        self._links.detach()
        self._shared.meeting.wait()

    def _begin(self) -> int:
        self._number += 1
        if self.worker.me == 0:
            begin = super()._begin()
            self._shared.begin.value, self._shared.number.value = begin, self._number
            return begin
        while self._shared.number.value < self._number:
            self.turn()
        return self._shared.begin.value

    def _share(self, changes: Records) -> Records:
        return changes.share(self.worker.me, self.workers)

    def _own(self, times: Int64s) -> Int64s:
        return times[self.worker.me :: self.workers]


def run(
    build: Callable[[], Flow],
    series: Series,
    tick: Tick,
    workers: int = 2,
    writer: Callable[[], Results] = Results,
) -> list[Found]:
    """Return what each of several workers of a flow has found."""
    shared = _Shared(workers, _SPAWN.Barrier(workers + 1, timeout=60.0))
    with (
        _SPAWN.Manager() as manager,
        ProcessPoolExecutor(workers, _SPAWN, _enter, (shared, peers := manager.dict())) as pool,
    ):
        work = [pool.submit(_member, build, WorkerId(me), series, writer) for me in range(workers)]
        with closing(_linked(COORDINATOR, shared, peers)) as links:
            coordinator = Members(build(), workers).coordinator(links)
            ticked = 0
            while shared.ended.value < workers and not any(one.done() for one in work):
                try:
                    _coordinate(coordinator, links)
                except LinkBroken:
                    # The error of the worker that has closed it says why.
                    wait(work, return_when=FIRST_COMPLETED)
                done = shared.done.value
                tick(done - ticked)
                ticked = done
            links.detach()
            shared.over.set()
            if shared.ended.value == workers:
                shared.meeting.wait()
            found = [one.result() for one in work]
    return found


def _coordinate(coordinator: Coordinator, links: CurveLinks) -> None:
    for sender, data in links.receive_messages():
        for report in pickle.loads(data):
            coordinator.report(sender, report)
    worked = coordinator.step()
    coordinator.events()
    if not worked:
        links.wait(WAIT)


_here: _Shared
_peers: DictProxy[WorkerId, tuple[str, bytes]]


def _enter(shared: _Shared, peers: DictProxy[WorkerId, tuple[str, bytes]]) -> None:
    global _here, _peers
    _here, _peers = shared, peers


def _member(
    build: Callable[[], Flow], me: WorkerId, series: Series, writer: Callable[[], Results]
) -> Found:
    """Be one worker until the series is over."""

    def tick(changes: int) -> None:
        _here.done.value += changes if me == 0 else 0

    with (
        closing(_linked(me, _here, _peers)) as links,
        tempfile.TemporaryDirectory(prefix="meander-bench-") as folder,
    ):
        engine = PairedEngine(
            Members(build(), _here.workers), me, links, Path(folder), _here, writer()
        )
        try:
            found = series(engine, tick)
        except MeanderError as error:
            # Its text alone passes between processes.
            raise RuntimeError(str(error)) from None
        engine.end()
        engine.worker.close()
    return found


def _linked(
    me: WorkerId, shared: _Shared, peers: DictProxy[WorkerId, tuple[str, bytes]]
) -> CurveLinks:
    """Return the links of a member to all others."""
    links = CurveLinks(me, CurveKeys.generate())
    peers[me] = links.address, links.public
    shared.meeting.wait()
    others = [Peer(one, *peers[one]) for one in members_of(shared.workers) if one != me]
    links.admit(others)
    shared.meeting.wait()
    links.connect(others)
    return links
