"""I5 and I8 at every step: a process is killed before or after any step that it makes.

Committed results and final states are those of an undisturbed flow.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count

import pytest

from meander.dataflow.control.command import MoveBins, Reconfigure
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.simulation.faults import Fault
from meander.dataflow.simulation.simulator import Join, Leave, MovePartition
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import Bin, WorkerId
from tests.support.property.budget import (
    FIRST_SEED,
    LONG,
    OUTAGE,
    PART,
    PARTS,
    SCHEDULES,
    SPOIL,
    STEP,
    seeds,
)
from tests.support.property.cases import Case, random_case, random_partition
from tests.support.property.exactly_once_run import ExactlyOnceRun
from tests.support.property.faults import (
    BrokerDown,
    CorruptLayer,
    DiskFull,
    Kill,
    Stop,
    TruncatedPiece,
    UnknownVersion,
)
from tests.support.property.flows import LOOPS, Reference, stages_of, stateful
from tests.support.property.killed_flow import Interruption, KilledFlow
from tests.support.property.recovery_run import ExecutionResults
from tests.support.property.reference import Record
from tests.support.property.steps import STEPS, Occurrence, PlannedFault, Step

FLOOR = len(STEPS)
KINDS = ("rekey", "alone", "timers", "connect", "loops")
"""Of flows in which bins and partitions change hands, and workers come and go."""
RECONFIGURE = Reconfigure(
    "r0", bins={"": {Bin(2): WorkerId(1)}}, partitions={("source", 0): WorkerId(1)}
)
RECONFIGURED = ("rekey", "alone")
"""The kinds of those in which bins and a partition also change hands at one time."""
Faults = tuple[Fault, ...]
"""What strikes together."""
SOON = 700
"""Steps after which a first execution is killed."""


def rich(kind: str, variant: int) -> Case:
    """A flow whose records have the times that they ask for, whatever strikes it."""
    seed = len(KINDS) * variant + KINDS.index(kind)
    rng = random.Random(f"rich {seed}")
    partitions = tuple(random_partition(rng, 10, 500, 6) for _ in range(3))
    values = [value for one in partitions for _, value in one]
    if kind == "loops":
        seed = next(other for other in count(seed, 100) if goes_round(other, values))
    return replace(
        random_case(seed, (kind,)),
        workers=2,
        bits=2,
        partitions=tuple(tuple(sorted(one, key=lambda r: r[0])) for one in partitions),
        commands=(
            MoveBins("m0", (Bin(0), Bin(1)), WorkerId(1), None, "batched", precopy=True),
            MoveBins("m1", tuple(map(Bin, range(4))), WorkerId(2), None, "all-at-once"),
            MoveBins("m2", (Bin(1), Bin(3)), WorkerId(1), None, "fluid", precopy=True),
        ),
        staff=(
            (1, Join()),
            (3, MovePartition("h0", "source", 0, WorkerId(2))),
            (5, Leave("l0", WorkerId(0))),
            *([(0, RECONFIGURE)] if kind in RECONFIGURED else []),
        ),
        options=SourceOptions(idle_after=1e9, max_skew=0.01),
        max_inflight=None, link_credit=500, snapshot_interval=0.001, move_memory=1, room=300,
    )  # fmt: skip


def goes_round(seed: int, values: Sequence[dict[str, int]]) -> bool:
    """Whether records without keys enter a loop in which they get some, and a state; and some leave
    it in the end."""
    stages = stages_of(seed)
    entered = [one for one in stages if one.keyless and one.kind in LOOPS]
    mixed = any(any(stateful(one.first)) for one in entered)
    records = [Record((n, 0, 0, n, 0), value) for n, value in enumerate(values)]
    return mixed and 10 <= len(Reference(stages).run(records)) <= 100


class Struck(ExactlyOnceRun):
    """A run whose faults all strike in one execution, the first or the second.

    For a second execution, the first one is killed after the same number of steps in each run.
    """

    def __init__(self, case: Case, number: int, faults: Sequence[PlannedFault] = ()) -> None:
        super().__init__(case)
        self._number, self._faults = number, faults

    def interruption(self, number: int, rng: random.Random) -> Interruption:
        """Return the faults of one execution; later ones have fewer or more workers."""
        workers = rng.randint(1, 3) if number > self._number else self.case.workers
        steps = SOON if number < self._number else None
        return Interruption(workers, steps, faults=self._faults if number == self._number else ())

    def at_a_plan(self, usual: Interruption, number: int) -> Interruption:
        """Return the same faults, which are those of the run."""
        return usual

    def check_end(self, run: KilledFlow, executions: Sequence[ExecutionResults]) -> None:
        super().check_end(run, executions)
        self.executions = len(executions)
        self.outcome = sorted(repr((r.place, r.value)) for r in self.sink.results), run.state()


@cache
def undisturbed(kind: str, variant: int, number: int) -> Struck:
    run = Struck(rich(kind, variant), number)
    run.recover()
    return run


@dataclass(frozen=True)
class Spot:
    """An occurrence of a step in an execution of a flow."""

    kind: str
    variant: int
    number: int
    where: Occurrence

    def struck(self, *faults: Fault) -> Struck:
        """Run the flow with faults at this occurrence."""
        run = Struck(
            rich(self.kind, self.variant),
            self.number,
            [PlannedFault(f, self.where) for f in faults],
        )
        try:
            run.recover()
        except Exception as error:
            error.add_note(f"{faults} at {self}")
            raise
        assert set(run.struck) == {self.where.step}, "each run takes the undisturbed one's course"
        return run

    @property
    def undisturbed(self) -> Struck:
        return undisturbed(self.kind, self.variant, self.number)


def spots(kind: str, variant: int) -> list[Spot]:
    """Return the first, a middle and the last occurrence of each step by each process."""
    return [
        Spot(kind, variant, number, Occurrence(step, process, nth))
        for number in range(undisturbed(kind, variant, 1).executions)
        for (step, process), times in sorted(
            undisturbed(kind, variant, number).passed.items(), key=repr
        )
        if process is not None
        for nth in sorted({1, (1 + times) // 2, times})
    ]


def each_step_soon(found: Sequence[Spot], rng: random.Random) -> list[Spot]:
    """Shuffle the spots, with one of each step before the second of any."""
    known, ranked = Counter[Step](), list[tuple[int, Spot]]()
    for spot in rng.sample(found, len(found)):
        known[spot.where.step] += 1
        ranked.append((known[spot.where.step], spot))
    return [spot for _, spot in sorted(ranked, key=lambda one: one[0])]


def everywhere() -> Iterator[Spot]:
    """Yield spots without an end."""
    for variant in count(FIRST_SEED):
        yield from each_step_soon(_all(variant), random.Random(variant))[PART::PARTS]


def everywhere_by(faults: Sequence[Faults], share: float) -> Iterator[tuple[Spot, Faults]]:
    """Yield spots, each with the next of some faults; with time, each fault at each step."""
    _all(FIRST_SEED)
    floor = len(faults) * (len(STEPS) if LONG else 1)
    turns = Counter[Step]({step: n for n, step in enumerate(STEPS)})
    for _, spot in zip(seeds(share, floor), everywhere(), strict=False):
        turns[spot.where.step] += 1
        yield spot, faults[turns[spot.where.step] % len(faults)]


def _all(variant: int) -> list[Spot]:
    """Return all spots of a variant; the first call runs the undisturbed flows."""
    return [spot for kind in KINDS for spot in spots(kind, variant)]


def test_every_step_is_passed() -> None:
    assert {spot.where.step for kind in KINDS for spot in spots(kind, 0)} == set(STEPS)


@pytest.mark.soak
def test_a_process_may_be_killed_at_any_step(
    record_property: Callable[[str, object], None],
) -> None:
    steps = Counter[Step]()
    for _, spot in zip(seeds(STEP, FLOOR), everywhere(), strict=False):
        run = spot.struck(Kill())
        assert run.outcome == spot.undisturbed.outcome, f"I5, record for record: {spot}"
        steps += run.struck
    record_property(f"{SCHEDULES}flows of which a process was killed at a step", steps.total())
    record_property("steps at which that was", len(steps))


PASSING: tuple[Faults, ...] = (
    (Stop(300),), (BrokerDown(300),), (BrokerDown(100), Kill()), (Stop(100), BrokerDown(50)),
    (DiskFull(),),
)  # fmt: skip
CORRUPTING: tuple[Faults, ...] = (
    (CorruptLayer(), Kill()), (TruncatedPiece(), Kill()), (UnknownVersion(record=True), Kill()),
    (UnknownVersion(record=False), Kill()),
)  # fmt: skip


@pytest.mark.soak
def test_a_process_may_be_stopped_and_the_broker_be_down_at_any_step(
    record_property: Callable[[str, object], None],
) -> None:
    found = Counter[tuple[Faults, Step]]()
    for spot, faults in everywhere_by(PASSING, OUTAGE):
        run = spot.struck(*faults)
        assert run.outcome == spot.undisturbed.outcome, f"I5, record for record: {spot}"
        found[faults, spot.where.step] += 1
    what = "flows that were stopped, full or without a broker at a step"
    record_property(SCHEDULES + what, found.total())
    record_property("pairs of such a fault and a step", len(found))


@pytest.mark.soak
def test_a_corrupted_checkpoint_is_reported_or_does_no_harm(
    record_property: Callable[[str, object], None],
) -> None:
    """Results are never wrong, and the flow never starts from nothing."""
    found, pairs = Counter[str](), set[tuple[Faults, Step]]()
    for spot, faults in everywhere_by(CORRUPTING, SPOIL):
        pairs.add((faults, spot.where.step))
        try:
            run = spot.struck(*faults)
        except MeanderError as error:
            found["told" if error.subject and error.cause and error.remedy else "odd"] += 1
        else:
            assert run.outcome == spot.undisturbed.outcome, f"I5, record for record: {spot}"
            found["did no harm"] += 1
    assert not found["odd"], "object, cause and remedy"
    record_property(f"{SCHEDULES}flows of which a checkpoint was corrupted", found.total())
    record_property("pairs of a corrupting fault and a step", len(pairs))
    for what, times in found.items():
        record_property(f"those of which that {what}", times)
