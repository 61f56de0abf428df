"""A random case that is killed some times and restored, and the reference that it has to equal."""

from __future__ import annotations

import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from meander.dataflow.api.checkpointing import POLICIES, Checkpointing
from meander.dataflow.control.command import Reconfigure
from meander.dataflow.control.decisions import Decision, JointDecision, LogicDecision
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.exactly_once.commit_history import Written, logic_changes
from meander.dataflow.records.loop_times import outer_time
from meander.dataflow.simulation.in_memory import ListSink
from meander.dataflow.simulation.simulator import Command, DurableWorld, Join, TakeCheckpoint
from meander.schemas.errors import MeanderError
from meander.schemas.status import Checkpointed, CheckpointFailed
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.encoding import codec
from meander.state.keys.ids import WorkerId
from meander.state.store.store import Database
from meander.testing import Result
from tests.support.property.case_run import DIFFERS, CaseRun, check_partitions
from tests.support.property.faults import BrokerDown, Cut, DiskFull, Kill, Killed, Stop
from tests.support.property.flows import Lane
from tests.support.property.killed_flow import Interruption, KilledFlow, Refusal
from tests.support.property.reference import Record, Refusals
from tests.support.property.silences import silences_between_reads
from tests.support.property.steps import (
    PLAN_STEPS,
    Occurrence,
    PlannedFault,
    Step,
    StepFaults,
    random_occurrence,
)
from tests.support.property.watched import WatchedWorld
from tests.support.sim.survivors import draw_survivors

EXECUTIONS = 4
Place = tuple[int, int, int]
"""A source's number, a partition and an offset."""


@dataclass(frozen=True)
class ExecutionResults:
    """What one execution has read and written, and the checkpoint it started from."""

    before: Checkpoint | None
    execution: int
    raw: Sequence[Result]
    other: Sequence[Result]
    results: Sequence[Result]
    ended: dict[tuple[str, int], int] | None
    """The end of each partition, if the execution has read all to their ends."""


def recovered(wanted: Sequence[Record]) -> list[Record]:
    """Return what is wanted without the lanes whose order a recovery may lose."""
    return [
        replace(one, lane=None) if isinstance(one.lane, Lane) and not one.lane.recovers else one
        for one in wanted
    ]


class RecoveryRun(CaseRun):
    """A random case that is killed and restored some times."""

    interval: float | None = None
    """Seconds between checkpoints that the flow takes by itself."""
    timeouts: tuple[float, ...] = (0.04, 0.1, 600.0)
    """Seconds that a checkpoint may take; the first are too short for many."""
    retained = 3

    def recover(self) -> None:
        """Run one execution after another, and compare the results with the reference."""
        with silences_between_reads(), contextlib.ExitStack() as executions:
            self._run_all(executions)

    def _run_all(self, opened: contextlib.ExitStack) -> None:
        self.build()
        rng = random.Random(f"lives {self.case.seed}")
        policies = random.Random(f"policies {self.case.seed}")
        # Some checkpoints time out, on the simulated clock.
        timeout, room = policies.choice(self.timeouts), policies.choice([1, 100, 1000])
        self.flow.checkpoints = Checkpointing(
            self.interval, timeout=timeout, max_inflight=room, retained=self.retained
        )
        world = WatchedWorld.empty(random.Random(f"world {self.case.seed}"))
        script: list[Command] = [*self.case.script]
        # Often after a command, while bins move.
        for _ in range(rng.randint(1, 2 + len(script))):
            freeze = TakeCheckpoint(policies.choice(POLICIES))
            script.insert(rng.randint(min(1, len(script)), len(script)), freeze)
        executions: list[ExecutionResults] = []
        self.checkpoints = self.in_flight = self.unread = self.moving = self.bundled = 0
        self.policies = Counter[str]()
        self.struck = Counter[Step]()
        self.dead_letters = Counter[Refusal]()
        """The durable dead letters of all executions."""
        self.local_bins = 0
        chance, survivors = random.Random(f"heirs {self.case.seed}"), dict[WorkerId, Database]()
        for number in range(EXECUTIONS):
            interruption = self.at_a_plan(self.interruption(number, rng), number)
            case = replace(self.case, seed=EXECUTIONS * self.case.seed + number)
            marks = [len(sink.results) for sink in (self.raw, self.other_raw, self.sink)]
            try:
                run = opened.enter_context(
                    KilledFlow(case, self, script, world, interruption, survivors)
                )
            except Killed:
                # The kill came before the first worker was built.
                self._note(world.turn.step_faults)
                continue
            self.local_bins += run.local_bins
            check_plan(world, interruption.workers)
            over = self._run_one(run)
            self._note(run.step_faults)
            self.dead_letters |= run.durable_dead_letters
            script = [*run.sim.commands]
            raw, other, results = (
                sink.results[mark:]
                for sink, mark in zip((self.raw, self.other_raw, self.sink), marks, strict=True)
            )
            executions.append(
                ExecutionResults(world.restored, world.execution, raw, other, results, run.ended)
            )
            self._count(world)
            self._check_policies(run)
            if over:
                self.check_end(run, executions)
                return
            run.disarm()
            survivors = self.choose_survivors(run, chance)
            script.insert(0, TakeCheckpoint(policies.choice(POLICIES)))
            if rng.random() < 0.3:
                script.append(Join())

    def _note(self, step_faults: StepFaults) -> None:
        self.passed = step_faults.passed
        self.struck.update(one.where.step for one in step_faults.struck)

    def _run_one(self, run: KilledFlow) -> bool:
        try:
            self.on_start(run)
            return run.run_until_killed()
        except Killed:
            return False
        except MeanderError as error:
            if run.disk_full and "No space left on device" in error.cause:
                return False
            raise
        finally:
            self.swept = max(self.swept, run.swept)

    def interruption(self, number: int, rng: random.Random) -> Interruption:
        """Draw the interruption of the n-th execution, the family `cut`.

        A checkpoint is taken at a step, or while bins move, and the next execution restores it. The
        last execution has no interruption.
        """
        workers = self.case.workers if not number else rng.randint(1, 4)
        if number == EXECUTIONS - 1 or rng.random() < 0.2:
            return Interruption(workers, None)
        steps, moving, faults = rng.randrange(20, 3000), rng.random() < 0.5, list[PlannedFault]()
        if not moving and rng.random() < 0.8:
            faults.append(PlannedFault(Cut(), random_occurrence(rng)))
        if rng.random() < 0.3:
            much = rng.randrange(10, 500)
            faults.append(
                PlannedFault(
                    rng.choice([Stop(much), BrokerDown(much), DiskFull()]), random_occurrence(rng)
                )
            )
        return Interruption(workers, steps, moving, faults)

    def at_a_plan(self, usual: Interruption, number: int) -> Interruption:
        """Of a case with reconfigurations, interrupt most executions at a step of one; then the
        next one often has as many workers."""
        reconfigures = any(isinstance(one, Reconfigure) for one in self.case.script)
        if not reconfigures or number == EXECUTIONS - 1:
            return usual
        rng = random.Random(f"plans {self.case.seed} {number}")
        workers = rng.choice([usual.workers, self.case.workers])
        if rng.random() < 0.3:
            return replace(usual, workers=workers)
        where = Occurrence(rng.choice(PLAN_STEPS), None, rng.choice([1, 1, 2]))
        return Interruption(
            workers, None, faults=[PlannedFault(rng.choice([Cut(), Kill()]), where)]
        )

    def on_start(self, run: KilledFlow) -> None:
        """Act as a new execution starts."""

    def choose_survivors(self, run: KilledFlow, chance: random.Random) -> dict[WorkerId, Database]:
        """Return the databases that survive an execution, some under another worker's number."""
        return draw_survivors(run.surviving_databases(), chance)

    def _count(self, world: DurableWorld) -> None:
        self.checkpoints = len(world.checkpoints)
        pieces = [piece for one in world.checkpoints for piece in one.cut.pieces]
        self.in_flight = sum(piece.records for piece in pieces)
        number = Counter(piece.locations for piece in pieces)
        self.unread = sum(times > 1 for times in number.values())
        self.bundled = sum(len(b.bins) for one in world.checkpoints for b in one.cut.bundles)
        self.moving = sum(len(one.cut.deltas) for one in world.checkpoints)

    def _check_policies(self, run: KilledFlow) -> None:
        self.policies["failed"] += sum(isinstance(e, CheckpointFailed) for e in run.sim.events)
        self.policies.update(e.policy for e in run.sim.events if isinstance(e, Checkpointed))
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
        late = all(outer_time(piece.time) > sent for piece in one.cut.pieces)
        assert late, "in flight in an aligned one is at most what timers have answered"

    def check_end(self, run: KilledFlow, executions: Sequence[ExecutionResults]) -> None:
        """Compare what all executions have read and written with the reference."""
        for execution in executions:
            for read in (execution.raw, execution.other):
                check_partitions(read)
        chain = chain_of(executions)
        if comes_late(chain):
            return
        self.raw = read_once(
            [execution.raw for execution in chain],
            [positions(execution, "source") for execution in chain],
        )
        self.other_raw = read_once(
            [execution.other for execution in chain],
            [positions(execution, "other") for execution in chain],
        )
        if self.case.kind == "arrival":
            self.check_counts(run, chain)
            return
        self.decided = [*logic_changes(run.world.decisions)]
        results, states, refused = self.expected()
        self.check_dead_letters(refused)
        self.check_states(run, states)
        wanted = Counter(repr((r.order, r.value)) for r in results)
        found = [Counter(map(answer, execution.results)) for execution in chain]
        assert not found[-1] - wanted, "what is answered is the reference's (I5)"
        for execution in chain:
            self.check_repeats(execution.results, results)
        assert not wanted - sum(found, Counter()), "all of the reference is answered (I5)"

    def check_dead_letters(self, refused: Refusals) -> None:
        """Check that no dead letter is lost, whatever execution ended before it was durable."""
        found = Counter[tuple[str, str]]()
        for (operator, value, *_), number in self.dead_letters.items():
            found[operator, value] += number
        wanted = Counter((operator, repr(value)) for operator, value in refused)
        assert not wanted - found, "each refused record is a dead letter (I5)"

    def check_repeats(self, results: Sequence[Result], wanted: Sequence[Record]) -> None:
        """Check that the results of one execution stand in the reference's order per key.

        An execution may repeat what earlier executions have written, and no more.
        """
        there = Counter(repr((one.order, one.value)) for one in wanted)
        there &= Counter(map(answer, results))
        self.check_written([one for one in results if there[answer(one)]], recovered(wanted))

    def check_counts(self, run: KilledFlow, chain: Sequence[ExecutionResults]) -> None:
        """Check that each record is counted once, in the order of its partition per key."""
        counts = Counter(codec.encode(r.value["k"]) for r in self.raw.results)  # type: ignore[index]
        assert run.state() == {"a": {key: codec.encode(n) for key, n in counts.items()}}, DIFFERS
        for execution in chain:
            check_partitions(execution.results)
            numbers: dict[bytes | None, list[Any]] = defaultdict(list)
            for result in execution.results:
                numbers[result.key].append(result.value)
            ordered = all(list(range(some[0], some[-1] + 1)) == some for some in numbers.values())
            assert ordered, (
                "an execution gives each key's results in order, and may repeat some (I9)"
            )


def check_plan(world: DurableWorld, workers: int) -> None:
    """Check that an execution starts with all of the last reconfiguration, or with nothing of it
    (Trisk, 3.2)."""
    decided = [one for one in valid(world.decisions[:-1]) if isinstance(one, JointDecision)]
    if not decided:
        return
    last, start = decided[-1], world.start
    check_cut(world, last)
    parts = [part for part in last.parts if isinstance(part, LogicDecision)]
    changes = {change for part in parts for change in part.changes}
    assert changes <= {*start.logic_changes}, "its logic holds"
    author = next(execution for execution, one in world.decisions if one is last)
    restored = world.restored
    is_behind = restored is None or (author, last.time) >= (restored.execution, restored.cut.time)
    if is_behind and len(last.plan.members) == workers:
        ranks = {old: new for new, old in enumerate(last.plan.members)}
        owners = tuple(ranks[owner] for owner in last.plan.owners)
        assert start.owners == owners, "its owners hold"
        for place, reader in last.plan.readers.items():
            assert start.readers.get(place, ranks[reader]) == ranks[reader], "its readers hold"


def valid(decisions: Iterable[Written]) -> list[Decision]:
    """Leave out what an execution decides after the start of a later one (I8)."""
    newest, found = 0, list[Decision]()
    for execution, decision in decisions:
        newest = max(newest, execution)
        if execution == newest:
            found.append(decision)
    return found


def check_cut(world: DurableWorld, last: JointDecision) -> None:
    """Check that a checkpoint behind the time of a reconfiguration has the owners that it made."""
    restored = world.restored
    author = next(execution for execution, one in world.decisions if one is last)
    if restored is None or author != restored.execution or last.time >= restored.cut.time:
        return
    others = [one for one in valid(world.decisions) if isinstance(one, Moves)]
    moved_otherwise = {bin for one in others for bin in one.bins}
    for part in last.parts:
        if isinstance(part, Moves):
            for bin in {*part.bins} - moved_otherwise:
                assert restored.cut.owners[bin] == part.target, "a cut has all of it, or nothing"


def answer(result: Result) -> str:
    return repr((result.place, result.value))


def comes_late(chain: Sequence[ExecutionResults]) -> bool:
    """Return whether an execution reads records that an earlier one ended without.

    By then keys have been called for later times.
    """
    return any(
        before.ended
        == {(one.source, one.partition): one.offset for one in execution.before.cut.positions}
        and any(one.raw or one.other for one in chain[n:])
        for n, (before, execution) in enumerate(pairwise(chain), 1)
        if execution.before is not None
    )


def chain_of(executions: Sequence[ExecutionResults]) -> list[ExecutionResults]:
    """Return the executions that the last one was restored from, the first one first."""
    chain = [executions[-1]]
    while (before := chain[0].before) is not None:
        chain.insert(0, next(one for one in executions if one.execution == before.execution
                            and one is not chain[0]))  # fmt: skip
    return chain


def positions(execution: ExecutionResults, source: str) -> dict[int, int]:
    """Return the offset at which an execution started to read each partition of a source."""
    found: dict[int, int] = defaultdict(int)
    if execution.before is not None:
        for one in execution.before.cut.positions:
            if one.source == source:
                found[one.partition] = one.offset
    return found


def read_once(executions: Sequence[Sequence[Result]], begun: Sequence[dict[int, int]]) -> ListSink:
    """Return the records with their times: the next execution reads again what is behind a cut."""
    found: dict[Place, Result] = {}
    for results, first in zip(executions, begun, strict=True):
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
