"""A random case that is killed some times and restored, and the reference that it has to equal."""

from __future__ import annotations

import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from meander.dataflow.api.checkpointing import POLICIES, Checkpointing
from meander.dataflow.records.loop_times import outer
from meander.dataflow.simulation.simulated_flow import ListSink, Result
from meander.dataflow.simulation.simulator import Command, DurableWorld, Join, TakeCheckpoint
from meander.schemas.errors import MeanderError
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.encoding import codec
from meander.state.keys.ids import WorkerId
from meander.state.store.store import Database
from tests.support.property.case_run import DIFFERS, Run, check_partitions, encoded
from tests.support.property.faults import BrokerDown, Cut, DiskFull, Killed, Stop
from tests.support.property.flows import Lane
from tests.support.property.killed_flow import Mortal, Ordeal
from tests.support.property.reference import Record
from tests.support.property.steps import Course, Step, There, somewhere
from tests.support.property.watched import Watched

LIVES = 4
Place = tuple[int, int, int]
"""A source's number, a partition and an offset."""


@dataclass(frozen=True)
class Life:
    """What one life has read and answered, and what it began with."""

    before: Checkpoint | None
    execution: int
    raw: Sequence[Result]
    other: Sequence[Result]
    results: Sequence[Result]
    ended: dict[tuple[str, int], int] | None
    """Up to where it has read each partition, where all have come to their ends."""


class Lives(Run):
    """One case that is killed some times."""

    interval: float | None = None
    """Seconds between checkpoints that the flow takes by itself."""
    timeouts: tuple[float, ...] = (0.04, 0.1, 600.0)
    """Seconds that one may take, some of these: the first are too short for many."""
    retained = 3

    def survive(self) -> None:
        """Live again and again, and compare in the end."""
        with contextlib.ExitStack() as lives:
            self._live(lives)

    def _live(self, opened: contextlib.ExitStack) -> None:
        self.build()
        rng = random.Random(f"lives {self.case.seed}")
        policies = random.Random(f"policies {self.case.seed}")
        # Some are given up, on the simulated clock.
        timeout, room = policies.choice(self.timeouts), policies.choice([1, 100, 1000])
        self.flow.checkpoints = Checkpointing(
            self.interval, timeout=timeout, max_inflight=room, retained=self.retained
        )
        world = Watched.empty(random.Random(f"world {self.case.seed}"))
        script: list[Command] = [*self.case.script]
        # Often behind a command, as bins are on their way then.
        for _ in range(rng.randint(1, 2 + len(script))):
            freeze = TakeCheckpoint(policies.choice(POLICIES))
            script.insert(rng.randint(min(1, len(script)), len(script)), freeze)
        lives: list[Life] = []
        self.checkpoints = self.in_flight = self.unread = self.moving = self.bundled = 0
        self.policies = Counter[str]()
        self.struck = Counter[Step]()
        self.here = 0
        fate, heirlooms = random.Random(f"heirs {self.case.seed}"), dict[WorkerId, Database]()
        for number in range(LIVES):
            ordeal = self.ordeal(number, rng)
            case = replace(self.case, seed=LIVES * self.case.seed + number)
            marks = [len(sink.results) for sink in (self.raw, self.other_raw, self.sink)]
            try:
                run = opened.enter_context(Mortal(case, self, script, world, ordeal, heirlooms))
            except Killed:
                # Before anything was there that could live.
                self._note(world.turn.course)
                continue
            self.here += run.here
            over = self._lived(run)
            self._note(run.course)
            script = [*run.sim.commands]
            raw, other, results = (
                sink.results[mark:]
                for sink, mark in zip((self.raw, self.other_raw, self.sink), marks, strict=True)
            )
            lives.append(Life(world.before, world.execution, raw, other, results, run.ended))
            self._count(world)
            self._check_policies(run)
            if over:
                self.check_end(run, lives)
                return
            run.end()
            heirlooms = self.outlive(run, fate)
            script.insert(0, TakeCheckpoint(policies.choice(POLICIES)))
            if rng.random() < 0.3:
                script.append(Join())

    def _note(self, course: Course) -> None:
        self.passed = course.passed
        self.struck.update(one.where.step for one in course.struck)

    def _lived(self, run: Mortal) -> bool:
        try:
            self.haunt(run)
            return run.live()
        except Killed:
            return False
        except MeanderError as error:
            if run.disk_full and "No space left on device" in error.cause:
                return False
            raise

    def ordeal(self, number: int, rng: random.Random) -> Ordeal:
        """What the n-th life has to go through, the family `cut`: a checkpoint is taken as one
        comes by any step, or as bins are on their way, and is gone on from. The last life has
        nothing to go through."""
        workers = self.case.workers if not number else rng.randint(1, 4)
        if number == LIVES - 1 or rng.random() < 0.2:
            return Ordeal(workers, None)
        steps, moving, faults = rng.randrange(20, 3000), rng.random() < 0.5, list[There]()
        if not moving and rng.random() < 0.8:
            faults.append(There(Cut(), somewhere(rng)))
        if rng.random() < 0.3:
            much = rng.randrange(10, 500)
            faults.append(
                There(rng.choice([Stop(much), BrokerDown(much), DiskFull()]), somewhere(rng))
            )
        return Ordeal(workers, steps, moving, faults)

    def haunt(self, run: Mortal) -> None:
        """A new life begins."""

    def outlive(self, run: Mortal, fate: random.Random) -> dict[WorkerId, Database]:
        """A life is over; who outlives it, with its states, perhaps under another number."""
        found = run.bequeath()
        names = [*found]
        if fate.random() < 0.3:
            fate.shuffle(names)
        heirs = zip(names, found.values(), strict=True)
        return {name: database for name, database in heirs if fate.random() < 0.8}

    def _count(self, world: DurableWorld) -> None:
        self.checkpoints = len(world.checkpoints)
        pieces = [piece for one in world.checkpoints for piece in one.cut.pieces]
        self.in_flight = sum(piece.records for piece in pieces)
        number = Counter(piece.places for piece in pieces)
        self.unread = sum(times > 1 for times in number.values())
        self.bundled = sum(len(b.bins) for one in world.checkpoints for b in one.cut.bundles)
        self.moving = sum(len(one.cut.lacking) for one in world.checkpoints)

    def _check_policies(self, run: Mortal) -> None:
        self.policies["failed"] += sum(e["type"] == "checkpoint_failed" for e in run.sim.events)
        taken = [event for event in run.sim.events if event["type"] == "checkpointed"]
        self.policies.update(str(event["policy"]) for event in taken)
        for earlier, later in pairwise(run.world.checkpoints):
            if earlier.execution == later.execution:
                known = {(one.source, one.partition) for one in later.cut.positions}
                before = {(one.source, one.partition) for one in earlier.cut.positions}
                assert before <= known, "each partition has its place, also at its end"
        for one in run.world.checkpoints:
            if one.policy == "aligned":
                self._check_aligned(one)

    def _check_aligned(self, one: Checkpoint) -> None:
        sent = max(position.newest for position in one.cut.positions)
        late = all(outer(piece.time) > sent for piece in one.cut.pieces)
        assert late, "in flight in an aligned one is at most what timers have answered"

    def check_end(self, run: Mortal, lives: Sequence[Life]) -> None:
        """What was kept of each life adds up to an undisturbed one."""
        for life in lives:
            for read in (life.raw, life.other):
                check_partitions(read)
        line = lineage(lives)
        if comes_late(line):
            return
        self.raw = kept([life.raw for life in line], [positions(life, "source") for life in line])
        self.other_raw = kept(
            [life.other for life in line], [positions(life, "other") for life in line]
        )
        if self.case.kind == "arrival":
            self.check_counts(run, line)
            return
        results, states, _ = self.expected()
        assert run.state() == encoded(states), "states are the reference's (I5)"
        wanted = Counter(repr((r.order, r.value)) for r in results)
        found = [Counter(map(answer, life.results)) for life in line]
        assert not found[-1] - wanted, "what is answered is the reference's (I5)"
        for life in line:
            self.check_repeats(life.results, results)
        assert not wanted - sum(found, Counter()), "all of the reference is answered (I5)"

    def check_repeats(self, results: Sequence[Result], wanted: Sequence[Record]) -> None:
        """As one life has written them, the results of each key that are the reference's stand in
        its order: it may repeat what lives before it have written, and no more."""
        there = Counter(repr((one.order, one.value)) for one in wanted)
        there &= Counter(map(answer, results))
        lost = (isinstance(one.lane, Lane) and not one.lane.recovers for one in wanted)
        kept = [
            replace(one, lane=None) if no else one for one, no in zip(wanted, lost, strict=True)
        ]
        self.check_written([one for one in results if there[answer(one)]], kept)

    def check_counts(self, run: Mortal, line: Sequence[Life]) -> None:
        """Each record is counted once, and each partition's own order kept per key."""
        counts = Counter(codec.encode(r.value["k"]) for r in self.raw.results)  # type: ignore[index]
        assert run.state() == {"a": {key: codec.encode(n) for key, n in counts.items()}}, DIFFERS
        for life in line:
            check_partitions(life.results)
            numbers: dict[bytes | None, list[Any]] = defaultdict(list)
            for result in life.results:
                numbers[result.key].append(result.value)
            ordered = all(list(range(some[0], some[-1] + 1)) == some for some in numbers.values())
            assert ordered, "a life gives each key's results in order, of which it may repeat (I9)"


def recovers(one: Record) -> bool:
    """Whether a recovery keeps its order among those of its lane."""
    return not isinstance(one.lane, Lane) or one.lane.recovers


def answer(result: Result) -> str:
    return repr((result.place, result.value))


def comes_late(line: Sequence[Life]) -> bool:
    """Whether a life reads what an earlier one took no notice of before it had come to its end: by
    then keys have been called for times that are later."""
    return any(
        before.ended
        == {(one.source, one.partition): one.offset for one in life.before.cut.positions}
        and any(one.raw or one.other for one in line[n:])
        for n, (before, life) in enumerate(pairwise(line), 1)
        if life.before is not None
    )


def lineage(lives: Sequence[Life]) -> list[Life]:
    """The lives from which the last one stems, the first first."""
    line = [lives[-1]]
    while (before := line[0].before) is not None:
        line.insert(0, next(one for one in lives if one.execution == before.execution
                            and one is not line[0]))  # fmt: skip
    return line


def positions(life: Life, source: str) -> dict[int, int]:
    """Where a life began to read each partition of a source."""
    found: dict[int, int] = defaultdict(int)
    if life.before is not None:
        for one in life.before.cut.positions:
            if one.source == source:
                found[one.partition] = one.offset
    return found


def kept(lives: Sequence[Sequence[Result]], begun: Sequence[dict[int, int]]) -> ListSink:
    """The records as they were timed: what a life read beyond the cut that the next began with is
    read anew."""
    found: dict[Place, Result] = {}
    for results, first in zip(lives, begun, strict=True):
        found = {place: one for place, one in found.items() if place[2] < first[place[1]]}
        for one in results:
            place = one.origin, one.partition, one.offset
            known = found.setdefault(place, one)
            assert known.time == one.time, "a record in flight keeps its time"
    offsets: dict[int, list[int]] = defaultdict(list)
    for _, partition, offset in sorted(found):
        offsets[partition].append(offset)
    for read in offsets.values():
        assert read == list(range(len(read))), "no record is left out (I5)"
    sink = ListSink()
    sink.results = [*found.values()]
    return sink
