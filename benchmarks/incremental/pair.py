"""Two workers of the real engine in two processes on the real links, with the coordinator here.

Both workers take each round at once: the first one chooses its time, and each reads every other
change.
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
from benchmarks.incremental.flows import fed
from benchmarks.incremental.found import Found, Tick
from benchmarks.incremental.graph import Records
from benchmarks.incremental.members import Feed, Members, Results
from meander.connectors.links.links import CurveKeys, CurveLinks, LinkBroken, Peer
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.runtime.worker import members_of
from meander.schemas.errors import MeanderError
from meander.state.collections.columns import Int64s
from meander.state.keys.ids import COORDINATOR, WorkerId

WORKERS = 2
WAIT = 0.001
"""Seconds that an idle member sleeps at most."""
Series = Callable[[Engine, Tick], Found]
"""The rounds of an engine, which all its workers take."""
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the processes of all members see."""

    meeting: Barrier = field(default_factory=lambda: _SPAWN.Barrier(WORKERS + 1, timeout=60.0))
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

    workers = WORKERS

    def __init__(
        self, members: Members, me: WorkerId, links: CurveLinks, folder: Path, shared: _Shared
    ) -> None:
        feed, writer = Feed(me, WORKERS), Results()
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
        """Take turns until the other worker has taken all rounds as well, and let the links go."""
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
        return changes.share(self.worker.me, WORKERS)

    def _own(self, times: Int64s) -> Int64s:
        return times[self.worker.me :: WORKERS]


def run(name: str, series: Series, tick: Tick) -> Found:
    """Return what the first of two workers of a flow of `flows.BUILDS` has found."""
    shared = _Shared()
    with (
        _SPAWN.Manager() as manager,
        ProcessPoolExecutor(WORKERS, _SPAWN, _enter, (shared, peers := manager.dict())) as pool,
    ):
        work = [pool.submit(_member, name, WorkerId(me), series) for me in range(WORKERS)]
        with closing(_linked(COORDINATOR, shared, peers)) as links:
            coordinator = Members(fed(name), WORKERS).coordinator(links)
            ticked = 0
            while shared.ended.value < WORKERS and not any(one.done() for one in work):
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
            if shared.ended.value == WORKERS:
                shared.meeting.wait()
            found = [one.result() for one in work]
    return found[0]


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


def _member(name: str, me: WorkerId, series: Series) -> Found:
    """Be one worker until the series is over."""

    def tick(changes: int) -> None:
        _here.done.value += changes if me == 0 else 0

    with (
        closing(_linked(me, _here, _peers)) as links,
        tempfile.TemporaryDirectory(prefix="meander-bench-") as folder,
    ):
        engine = PairedEngine(Members(fed(name), WORKERS), me, links, Path(folder), _here)
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
    others = [Peer(one, *peers[one]) for one in members_of(WORKERS) if one != me]
    links.admit(others)
    shared.meeting.wait()
    links.connect(others)
    return links
