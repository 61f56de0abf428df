"""A random case that commits exactly once, though it is killed some times."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from meander.dataflow.api.nodes import Guarantee
from meander.dataflow.exactly_once.commit_history import logic_changes
from meander.schemas.errors import MeanderError
from meander.schemas.status import ReplayChecked
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.keys.ids import WorkerId
from meander.state.store.store import Database
from meander.testing import Result
from tests.support.property.case_run import CrampedFlow, check_partitions
from tests.support.property.cases import KINDS, Case
from tests.support.property.faults import Kill
from tests.support.property.killed_flow import Interruption, KilledFlow
from tests.support.property.recovery_run import ExecutionResults, RecoveryRun, recovered
from tests.support.property.steps import STEPS, PlannedFault, random_occurrence

COMMITS = tuple(
    step for step in STEPS
    if step.protocol in ("transaction", "checkpoint record", "decision", "execution", "tombstone")
)  # fmt: skip
TIMED = tuple(kind for kind in KINDS if kind != "arrival")


class ExactlyOnceRun(RecoveryRun):
    """A recovery run whose superseded executions run on for a while."""

    delivery: Guarantee = "exactly_once"

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        if case.kind == "controlled":
            # Some of these flows need outboxes, from which nothing leaves without checkpoints.
            self.interval, self.timeouts = 0.03, (0.1, 600.0)
        self._superseded: KilledFlow | None = None
        self.fenced = self.suppressed = self.forgotten = self.compared = self.clock_advances = 0

    def interruption(self, number: int, rng: random.Random) -> Interruption:
        """Draw the interruption of the n-th execution, the family `double crash`.

        In two executions in a row a process is killed at a step that commits. The second execution
        often has a worker less.
        """
        other = super().interruption(number, rng)
        if number > 1 or rng.random() < 0.2:
            return other
        workers = max(1, self.case.workers - number * rng.randint(0, 2))
        return Interruption(
            workers, None, faults=[PlannedFault(Kill(), random_occurrence(rng, COMMITS))]
        )

    def recover(self) -> None:
        """Retain one checkpoint or three: with one, commit markers are deleted soon."""
        self.retained = 1 if self.case.seed % 2 else 3
        super().recover()

    def choose_survivors(self, run: KilledFlow, chance: random.Random) -> dict[WorkerId, Database]:
        """Let the workers of an execution that has ended run on, or let some survive it."""
        if chance.random() < 0.3:
            return super().choose_survivors(run, chance)
        self._superseded = run
        return {}

    def _check_aligned(self, one: Checkpoint) -> None:
        """Expect nothing in flight, unless an outbox may hold results."""
        if self.interval is None:
            super()._check_aligned(one)

    def on_start(self, run: KilledFlow) -> None:
        """Let the superseded execution run on for a while beside the new one."""
        superseded, self._superseded = self._superseded, None
        if superseded is None:
            return
        for _ in range(random.Random(f"zombie {self.case.seed}").choice([0, 100, 1000])):
            try:
                if not superseded.sim.done:
                    superseded.act()
            except MeanderError:
                self.fenced += 1
                return
            if not run.sim.done:
                run.act()

    def _run_one(self, run: KilledFlow) -> bool:
        over = super()._run_one(run)
        checked = (event for event in run.sim.events if isinstance(event, ReplayChecked))
        self.compared += sum(event.results for event in checked)
        return over

    def check_end(self, run: KilledFlow, executions: Sequence[ExecutionResults]) -> None:
        """Check that all executions together have committed the reference's results."""
        awaited = run.sim.coordinator.replays.awaited
        assert not awaited, "each replayed result is compared with the committed one"
        self.check_records()
        self.suppressed = run.counters["suppressed"]
        self.clock_advances = run.counters["clock_advances"]
        self.forgotten = run.world.ledger.forgotten
        self.check_results(run)

    def check_records(self) -> None:
        """Check what sources have read, which is committed as it is."""
        for sink in (self.raw, self.other_raw):
            self.check_partitions(sink.results)
            places = Counter((r.partition, r.offset) for r in sink.results)
            assert not places or max(places.values()) == 1, "a record is committed once (I5)"
            partitions = {partition for partition, _ in places}
            for one in partitions:
                offsets = sorted(offset for partition, offset in places if partition == one)
                assert offsets == list(range(len(offsets))), "and none is left out (I5)"

    def check_partitions(self, results: Sequence[Result]) -> None:
        """Check that the records of each partition are committed in order."""
        check_partitions(results)

    def check_results(self, run: CrampedFlow) -> None:
        """Compare results and states with the reference."""
        self.decided = [*logic_changes(run.world.decisions)]
        results, states, refused = self.expected()
        self.check_dead_letters(refused)
        self.check_states(run, states)
        wanted = sorted(repr((r.order, r.value)) for r in results)
        found = sorted(repr((r.place, r.value)) for r in self.sink.results)
        assert not Counter(found) - Counter(wanted), "nothing else is committed, and nothing twice"
        assert not Counter(wanted) - Counter(found), "all of the reference is committed (I5)"
        self.check_written(self.sink.results, recovered(results))
