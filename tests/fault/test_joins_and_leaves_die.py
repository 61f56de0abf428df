"""A flow survives the death of each party in every state of a join and of a leave (I2, I5).

It goes on by itself, and counts every word once. The driver runs in this process, and the test
kills workers from the driver's own loop, so the state that a case names is exact.
`test_exactly_once` kills the driver in each state.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import dropwhile, product, takewhile
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from meander import Checkpointing
from meander.app.cli.follow import produce as give
from meander.app.driver import execution
from meander.app.recovery import restart
from meander.connectors.topics.internal_topics import topic_names
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.schemas import status
from meander.schemas.control import Rescale
from meander.schemas.status import (
    Aborted,
    Checkpointed,
    Event,
    Heartbeat,
    JoinFailed,
    Left,
    Recovering,
    Started,
)
from meander.state.keys.ids import WorkerId
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, produce, until
from tests.support.process.flow_process import alive, kill
from tests.support.process.rescale_states import JOIN, LEAVE, RescaleStates
from tests.support.process.rescaled_flow import RescaledFlow
from tests.support.property.budget import FIRST_SEED, RESCALING

FEW = 2
"""Workers before a join, and after a leave; two may join or leave at once."""


@dataclass(frozen=True, slots=True)
class Case:
    """A state of a join or leave, and the workers that die in it: `moving` of those that move in or
    out, and perhaps one that `stays`."""

    joins: bool
    state: str
    moving: int
    stays: bool

    @property
    def at(self) -> tuple[bool, str]:
        """The state of the join or leave."""
        return self.joins, self.state

    @property
    def parties(self) -> tuple[bool, int, bool]:
        """The workers that die."""
        return self.joins, self.moving, self.stays


PARTIES = [(0, True), (1, False), (1, True), (2, False)]
CASES = [
    Case(joins, state, *parties)
    for joins, states in ((True, JOIN), (False, LEAVE))
    for state, parties in product(states, PARTIES)
]


def chosen() -> list[Case]:
    """All cases where `make soak` has time for them; else each state once, and all parties.

    A joining worker dies alone before it registers and after it. The seed chooses the other states
    of parties, and which parties die again.
    """
    if RESCALING:
        return CASES
    drawn = random.Random(f"staff {FIRST_SEED}").sample(CASES, len(CASES))
    unregistered = Case(True, "launched", 1, False)
    found = {unregistered.at: unregistered}
    for parties in sorted({case.parties for case in CASES}):
        case = next(one for one in drawn if one.parties == parties and one.at not in found)
        found[case.at] = case
    for case in drawn:
        found.setdefault(case.at, case)
    return sorted(found.values(), key=CASES.index)


class Struck(RescaledFlow):
    """A flow whose workers die as soon as a case's state shows."""

    def __init__(self, broker: Broker, prefix: str, folder: Path) -> None:
        super().__init__(
            broker, prefix, folder, workers=FEW, delivery="exactly_once",
            checkpoints=Checkpointing(0.5),
        )  # fmt: skip
        self.states = RescaleStates(self._strike)
        self._case: Case | None = None
        self._others: set[int] = set()
        """Processes that Spark had begun before the present change."""
        self._dead: set[WorkerId] = set()
        self._left = 0

    # -- in the driver's loop

    def _strike(self, state: str, worker: WorkerId | None) -> None:
        """Kill the parties of the case if this is its state; a worker may be the one in it."""
        case, change, pool = self._case, self.states.change, self.states.pool
        if case is None or case.state != state:
            return
        assert change is not None
        assert pool is not None
        self._case = None
        # The one in this state is the first.
        moving = sorted(map(WorkerId, change.joining or change.leaving), key=lambda m: m != worker)
        staying = [one for one in sorted(pool.handles) if one not in moving]
        dying = dict[WorkerId, int]()
        for one in (*moving[: case.moving], *(staying[-1:] if case.stays else ())):
            dying[one] = self._process(one, {*dying.values()})
        for process in dying.values():
            kill(process)
        until(lambda: not any(map(alive, dying.values())), "they are dead")
        self._dead = {*dying}
        # A worker is one from the decision on.
        self._left = len({*pool.handles} | ({worker} if state == "decided" else set()))

    def _process(self, worker: WorkerId, dying: set[int]) -> int:
        """Find a worker's process; before it registers, take one that Spark has begun since."""
        known = self.states.processes
        if worker not in known:
            others = self._others | {*known.values()} | dying
            until(lambda: bool(forks() - others), "Spark has begun a process")
            return min(forks() - others)
        return known[worker]

    # -- beside the driver

    def strike(self, case: Case) -> None:
        """Bring the case about, and wait until the flow has dealt with it."""
        leaving = 0 if case.joins else max(1, case.moving)
        # A worker that was leaving as an execution ended may own no bin in the next one.
        if self._members > FEW and (case.joins or case.state == "shared"):
            self._ask(FEW, None)
        if self._members < FEW + leaving:
            self._ask(FEW + leaving, None)
        before = len(self.events)
        id = self._ask(FEW + 2 if case.joins else self._members - leaving, case)
        new = self.events[before:]
        recovers = self._recovers(case, new)
        assert recovers == any(isinstance(event, Recovering) for event in new), case
        if recovers:
            (started,) = [event for event in new if isinstance(event, Started)]
            assert started.workers == self._left, f"{case}: each that works has a successor"
        elif case.joins:
            lost = [event.id for event in new if isinstance(event, JoinFailed)]
            assert lost == [id] * case.moving, case

    def _ask(self, workers: int, case: Case | None) -> str:
        """Rescale the flow, and strike if there is a case; return at the end of that."""
        number, id = len(self.events), f"r{len(self.events)}"
        self._case, self._dead, self._others = case, set(), forks()
        settings = {"bootstrap.servers": self.bootstrap}
        command = Rescale(type="rescale", id=id, workers=workers)
        give(settings, topic_names(self.prefix, "counts"), "counts", command)
        self.until(lambda: self._ended(number, id, case), f"{id} has ended: {case}")
        return id

    def _ended(self, number: int, id: str, case: Case | None) -> bool:
        """Whether a command has ended, and the flow has a checkpoint of the execution since then.

        The next execution obeys it again where the last one had not marked it as dealt with.
        """
        new = self.events[number:]
        ended = any(
            isinstance(event, Aborted | status.Rescaled) and event.id == id for event in new
        )
        assert not ended or self._case is None, f"the state never showed: {case}"
        if case is not None and self._recovers(case, new):
            new = [*dropwhile(lambda event: not isinstance(event, Started), new)]
            return ended and any(isinstance(event, Checkpointed) for event in new)
        return ended

    def _recovers(self, case: Case, new: list[Event]) -> bool:
        """Whether the flow needs another execution: one has died that had joined and not left.

        A worker may leave with its last words, when the driver has not noticed yet that it is dead.
        """
        if case.joins and not case.stays:
            return case.state not in JOIN[: JOIN.index("decided")]
        before = takewhile(lambda event: not isinstance(event, Recovering), new)
        return not self._dead <= {event.worker for event in before if isinstance(event, Left)}

    @property
    def _members(self) -> int:
        assert self.states.pool is not None
        return len(self.states.pool.handles)

    def _feed(self) -> None:
        """Give lines all the time, and few at once, as all results are compared."""
        while not self._enough.wait(0.1):
            texts = [f"w{n * n % 50} v{n % 50}" for n in range(self.fed, self.fed + 20)]
            records = (
                Record(text.encode(), partition=n % 4, timestamp=self.begin + n)
                for n, text in enumerate(texts, self.fed)
            )
            produce(self.bootstrap, self.prefix + "lines", records)
            self.fed += len(texts)
            self.counts.update(word for text in texts for word in text.split())

    def _stop_feeding(self) -> None:
        self._enough.set()
        self._feeder.join()
        self.until(lambda: len(self._results()) >= self.counts.total(), "all is counted")


def forks() -> set[int]:
    """The processes that Spark in this process has forked for workers."""
    parents, commands = dict[int, int](), dict[int, bytes]()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                commands[int(folder.name)] = (folder / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(folder.name)] = int(fields[1]) if fields[0] != "Z" else 0
    daemons = {pid for pid, command in commands.items() if b"meander.app.worker.daemon" in command}
    mine = {pid for pid in daemons if parents.get(parents.get(pid, 0)) == os.getpid()}
    return {pid for pid in daemons if parents.get(pid) in mine}


@pytest.fixture
def struck(broker: Broker, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Struck:
    """A flow whose driver says what it does to its workers."""
    flow = Struck(broker, prefix, tmp_path / "flow")
    flow.states.observe(monkeypatch.setattr)

    def begun(*given: Any) -> RestorePlan:
        """A start that takes its time: the driver keeps its claim."""
        if not flow.of(Started):
            said = len(flow.of(Heartbeat))
            until(lambda: len(flow.of(Heartbeat)) > said, "a heartbeat goes out meanwhile")
        return restart.start_execution(*given)

    monkeypatch.setattr(execution, "start_execution", begun)
    return flow


@pytest.mark.soak
def test_a_flow_survives_each_death_while_workers_join_and_leave(
    struck: Struck, context: SparkContext, record_property: Callable[[str, object], None]
) -> None:
    cases = chosen()

    def strike() -> None:
        struck.until(lambda: bool(struck.of(Checkpointed)), "there is a checkpoint")
        for case in cases:
            print(f"MEANDER_SEED={FIRST_SEED}: {case}")  # a failing test shows its last line
            struck.strike(case)

    struck.run(context, strike)
    struck.check()
    record_property("deaths while workers joined and left", sum(c.moving + c.stays for c in cases))
