"""I5: a flow that is killed and goes on from its newest checkpoint, on more or fewer workers, again
and again, has the states and the results of one that was not, whatever was under way at the cut."""

from __future__ import annotations

import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

from meander.dataflow.api.checkpointing import POLICIES, Checkpointing
from meander.dataflow.migration.migrator import OutgoingState
from meander.dataflow.records.loop_times import outer
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.faults import Fault
from meander.dataflow.simulation.simulated_flow import ListSink, Result
from meander.dataflow.simulation.simulator import Command, DurableWorld, Join, TakeCheckpoint
from meander.schemas.errors import MeanderError
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.encoding import codec
from meander.state.keys.ids import COORDINATOR, WorkerId
from meander.state.store.store import Database
from tests.property.test_migration_oracle import (
    DIFFERS,
    Cramped,
    Run,
    check_partitions,
    encoded,
)
from tests.support.property.budget import CHECKPOINTS, LIMIT, SCHEDULES, seeds
from tests.support.property.cases import (
    Case,
    checked,
    random_case,
    with_aborts,
    with_some_comings_and_goings,
    with_some_full_bins,
    with_some_loops,
)
from tests.support.property.faults import (
    BrokerDown,
    Cut,
    DiskFull,
    FullDisk,
    Kill,
    Killed,
    Stop,
    befall,
)
from tests.support.property.flows import Lane
from tests.support.property.reference import Record
from tests.support.property.steps import Course, Step, There, somewhere
from tests.support.property.watched import Watched, watch_links, watch_worker
from tests.support.sim.manual_flow import assembly

FLOOR = 40
"""All but one of the bugs of `test_planted_cuts` show within 35 runs; `make soak` makes more."""
LIVES = 4
FOREVER = 1 << 60
"""In steps."""
Place = tuple[int, int, int]
"""A source's number, a partition and an offset."""


@dataclass(frozen=True)
class Ordeal:
    """What is to happen to one life, on so many workers: it is killed after so many steps, or lives
    to its end. With `moving` it is killed soon after a checkpoint that is taken as bins are on
    their way, if any are."""

    workers: int
    steps: int | None
    moving: bool = False
    faults: Sequence[There] = ()


class Mortal(Cramped):
    """A flow that is killed; what is left are its topics."""

    def __init__(
        self, case: Case, run: Run, script: Sequence[Command], world: Watched, ordeal: Ordeal,
        heirlooms: Mapping[WorkerId, Database],
    ) -> None:  # fmt: skip
        self._room, self.disks = case.room, []
        self._ordeal, self._until, self._cut = ordeal, FOREVER, False
        self._killed: WorkerId | None = None
        self.disk_full, self._heirlooms = False, heirlooms
        self.here = 0
        """Bins that were here."""
        self._stopped = dict[WorkerId, int]()
        """For how long; it begins as their turn is over."""
        self.course = Course(ordeal.faults, self.befalls)
        self.watched, self._chance = world, random.Random(f"faults {case.seed}")
        world.turn.course = self.course
        # With databases of its own, but for those of workers that have outlived the last life:
        # tables name their operator.
        super(Cramped, self).__init__(run.flow, ordeal.workers, case.seed, script, world=world)

    def act(self) -> None:
        """One step of this life."""
        self.watched.tick()
        self.watched.turn.course = self.course
        for process, steps in self._stopped.items():
            self.sim.pauses[process] = self.sim.actions + steps
            self._live_for(self._chance.randrange(2 * steps))
        self._stopped.clear()
        super().act()

    def live(self) -> bool:
        """As is ordained; whether it has come to its end."""
        if self._ordeal.steps is not None:
            self._live_for(self._ordeal.steps)
        moving = self._ordeal.moving
        while not self.sim.done and self.sim.actions < self._until:
            self.act()
            if self._cut or (moving and any(outlet.copies for outlet in self._outlets)):
                self._cut = moving = False
                self._checkpoint_at_once()
                self._live_for(20)
        return self.sim.done

    def _live_for(self, steps: int) -> None:
        self._until = self.sim.actions + steps

    @property
    def ended(self) -> dict[tuple[str, int], int] | None:
        """Up to where each partition was read, once all have come to their ends."""
        sources = [one for worker in self.workers for one in assembly(worker).sources.items()]
        if any(source.standing() for _, source in sources):
            return None
        return {
            (name, parcel.partition): parcel.rest.offset
            for name, source in sources
            for parcel in source.parcels()
        }

    def end(self) -> None:
        """Nobody kills this life any more; who has been killed does nothing."""
        self.course.end()
        if self._killed is not None:
            self.sim.pauses[self._killed] = FOREVER
        if self._killed == COORDINATOR:
            self.sim.commands.clear()

    def bequeath(self) -> dict[WorkerId, Database]:
        """The databases of those who were not killed, which are this life's no longer."""
        assert self._databases is not None
        if self.disk_full:
            return {}
        found = {WorkerId(worker): one for worker, one in self._databases._opened.items()}
        if self._killed is not None:
            found.pop(self._killed, None)
        for worker in found:
            del self._databases._opened[worker]
        return found

    def befalls(self, fault: Fault, process: WorkerId) -> None:
        """A fault strikes a process where it is."""
        match fault:
            case Kill():
                self._killed = process
                raise Killed
            case Stop(steps):
                self._stopped[process] = steps
            case Cut():
                self._cut = True
            case DiskFull() if process != COORDINATOR:
                assert self._databases is not None
                full = self._databases.of(process).rocks
                full._rocks = FullDisk(full._rocks)  # type: ignore[assignment]
                self.disk_full = True
            case DiskFull():
                """The coordinator has none."""
            case _:
                befall(self.watched, fault, self._chance)

    def _build(self, *surroundings: Any) -> Worker:
        me, links, *_ = surroundings
        watch_links(links, self.watched.turn)
        if (heirloom := self._heirlooms.get(me)) is not None:
            assert self._databases is not None
            self._databases._opened[me] = heirloom
            heirloom.outlive()
        worker = super()._build(*surroundings)
        self.here += len(worker._loading._here)
        watch_worker(worker, self.watched.turn)
        return worker

    def _checkpoint_at_once(self) -> None:
        before = len(self.world.checkpoints)
        self.sim.submit(TakeCheckpoint())
        self._slow_down()
        while not self.sim.done and len(self.world.checkpoints) == before:
            self.act()

    def _slow_down(self) -> None:
        """What workers have sent each other arrives later."""
        for one in self.workers:
            for other in self.workers:
                self.sim.slowed[one.me, other.me] = self.sim.actions + 200

    @property
    def _outlets(self) -> Iterator[OutgoingState]:
        return (outlet for worker in self.workers for outlet in assembly(worker).outlets)


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


@pytest.mark.timeout(LIMIT)
@pytest.mark.soak
def test_cut_what_goes_on_from_any_checkpoint_equals_the_reference(
    record_property: Callable[[str, object], None],
) -> None:
    found, steps = Counter[str](), Counter[Step]()

    def lived(case: Case) -> Lives:
        run = Lives(case)
        run.survive()
        return run

    for seed in seeds(CHECKPOINTS, FLOOR):
        case = with_some_loops(with_some_full_bins(random_case(seed)))
        case = with_some_comings_and_goings(with_aborts(case))
        run = checked(case, lived)
        found.update(
            flows=1, checkpoints=run.checkpoints, records=run.in_flight, unread=run.unread,
            moving=run.moving, bundled=run.bundled, here=run.here,
        )  # fmt: skip
        steps += run.struck
    record_property(f"{SCHEDULES}flows that were killed", found["flows"])
    record_property("cuts and faults at named steps of these", steps.total())
    record_property("their checkpoints", found["checkpoints"])
    record_property("records in flight in these", found["records"])
    record_property("bins on their way in these", found["moving"])
    record_property("bins of which these hold what their layers lack", found["bundled"])
    record_property("bins with which a worker went on that outlived another", found["here"])
    record_property("pieces that a later checkpoint referred to", found["unread"])
