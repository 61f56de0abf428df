"""I5: a flow that is killed and goes on from its newest checkpoint, on more or fewer workers, again
and again, has the states and the results of one that was not, whatever was under way at the cut."""

from __future__ import annotations

import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from dataflow.migrate.migrator import Outlet
from dataflow.sim import Command, Freeze, Join, World
from dataflow.testing import ListSink, Result
from state import codec
from state.checkpoint import Checkpoint
from tests.hand import assembly
from tests.property.budget import CHECKPOINTS, SCHEDULES, seeds
from tests.property.cases import (
    Case,
    checked,
    random_case,
    with_aborts,
    with_some_comings_and_goings,
    with_some_full_bins,
)
from tests.property.test_migration_oracle import DIFFERS, Cramped, Run, encoded

FLOOR = 100
LIVES = 4
Place = tuple[int, int, int]
"""A source's number, a partition and an offset."""


class Mortal(Cramped):
    """A flow that is killed; what is left are its topics."""

    def __init__(
        self, case: Case, run: Run, script: Sequence[Command], world: World | None
    ) -> None:
        self._room, self.disks = case.room, []
        self._changes_staff = False
        # With databases of its own, as each life has: tables name their operator.
        super(Cramped, self).__init__(run.flow, case.workers, case.seed, script, world=world)

    def live(self, steps: int | None, *, moving: bool) -> bool:
        """So many steps, or to the end; whether it has come to that. With `moving` it is killed
        soon after a checkpoint that is taken as bins are on their way, if any are."""
        while not self.sim.done and steps != 0:
            self.act()
            steps = None if steps is None else steps - 1
            if moving and any(outlet.copies for outlet in self._outlets):
                self._checkpoint_at_once()
                return self.live(20, moving=False)
        return self.sim.done

    def _checkpoint_at_once(self) -> None:
        before = len(self.world.checkpoints)
        self.sim.submit(Freeze())
        self._slow_down()
        while not self.sim.done and len(self.world.checkpoints) == before:
            self.act()

    def _slow_down(self) -> None:
        """What workers have sent each other arrives later."""
        for one in self.workers:
            for other in self.workers:
                self.sim.slowed[one.me, other.me] = self.sim.actions + 200

    @property
    def _outlets(self) -> Iterator[Outlet]:
        return (outlet for worker in self.workers for outlet in assembly(worker).outlets)


@dataclass(frozen=True)
class Life:
    """What one life has read and answered, and what it began with."""

    before: Checkpoint | None
    incarnation: int
    raw: Sequence[Result]
    other: Sequence[Result]
    results: Sequence[Result]


class Lives(Run):
    """One case that is killed some times."""

    def survive(self) -> None:
        """Live again and again, and compare in the end."""
        with contextlib.ExitStack() as lives:
            self._live(lives)

    def _live(self, opened: contextlib.ExitStack) -> None:
        self.build()
        rng = random.Random(f"lives {self.case.seed}")
        script: list[Command] = [*self.case.script]
        # Often behind a command, as bins are on their way then.
        for _ in range(rng.randint(1, 2 + len(script))):
            script.insert(rng.randint(min(1, len(script)), len(script)), Freeze())
        lives: list[Life] = []
        world: World | None = None
        self.checkpoints = self.in_flight = self.unread = self.moving = 0
        for number in range(LIVES):
            workers = self.case.workers if not number else rng.randint(1, 4)
            case = replace(self.case, workers=workers, seed=LIVES * self.case.seed + number)
            marks = [len(sink.results) for sink in (self.raw, self.other_raw, self.sink)]
            run = opened.enter_context(Mortal(case, self, script, world))
            self.haunt(run)
            last = number == LIVES - 1 or rng.random() < 0.2
            steps = None if last else rng.randrange(20, 3000)
            over = run.live(steps, moving=not last and rng.random() < 0.5)
            world, script = run.world, [*run.sim.commands]
            raw, other, results = (
                sink.results[mark:]
                for sink, mark in zip((self.raw, self.other_raw, self.sink), marks, strict=True)
            )
            lives.append(Life(world.before, world.incarnation, raw, other, results))
            self._count(world)
            if over:
                self.check_end(run, lives)
                return
            self.outlive(run)
            script.insert(0, Freeze())
            if rng.random() < 0.3:
                script.append(Join())

    def haunt(self, run: Mortal) -> None:
        """A new life begins."""

    def outlive(self, run: Mortal) -> None:
        """A life is over."""

    def _count(self, world: World) -> None:
        self.checkpoints = len(world.checkpoints)
        pieces = [piece for one in world.checkpoints for piece in one.cut.pieces]
        self.in_flight = sum(piece.records for piece in pieces)
        number = Counter(piece.place for piece in pieces)
        self.unread = sum(times > 1 for times in number.values())
        self.moving = sum(len(one.cut.lacking) for one in world.checkpoints)

    def check_end(self, run: Mortal, lives: Sequence[Life]) -> None:
        """What was kept of each life adds up to an undisturbed one."""
        line = lineage(lives)
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
        assert not wanted - sum(found, Counter()), "all of the reference is answered (I5)"

    def check_counts(self, run: Mortal, line: Sequence[Life]) -> None:
        """Each record is counted once, and each partition's own order kept per key."""
        counts = Counter(codec.encode(r.value["k"]) for r in self.raw.results)  # type: ignore[index]
        assert run.state() == {"a": {key: codec.encode(n) for key, n in counts.items()}}, DIFFERS
        for life in line:
            newest: dict[tuple[bytes | None, int], int] = {}
            for result in sorted(life.results, key=lambda r: (r.key or b"", r.value)):
                place = result.key, result.partition
                assert newest.get(place, -1) < result.offset, "a partition's own order (I3)"
                newest[place] = result.offset


def answer(result: Result) -> str:
    return repr((result.place, result.value))


def lineage(lives: Sequence[Life]) -> list[Life]:
    """The lives from which the last one stems, the first first."""
    line = [lives[-1]]
    while (before := line[0].before) is not None:
        line.insert(0, next(one for one in lives if one.incarnation == before.incarnation
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


@pytest.mark.soak
def test_what_goes_on_from_a_checkpoint_equals_the_reference(
    record_property: Callable[[str, object], None],
) -> None:
    found: Counter[str] = Counter()

    def lived(case: Case) -> Lives:
        run = Lives(case)
        run.survive()
        return run

    for seed in seeds(CHECKPOINTS, FLOOR):
        case = with_some_full_bins(random_case(seed))
        case = with_some_comings_and_goings(with_aborts(case))
        run = checked(case, lived)
        found.update(
            flows=1, checkpoints=run.checkpoints, records=run.in_flight, unread=run.unread,
            moving=run.moving,
        )  # fmt: skip
    record_property(f"{SCHEDULES}flows that were killed", found["flows"])
    record_property("their checkpoints", found["checkpoints"])
    record_property("records in flight in these", found["records"])
    record_property("bins on their way in these", found["moving"])
    record_property("pieces that a later checkpoint referred to", found["unread"])
