"""A random case that commits exactly once, though it is killed some times."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from meander.dataflow.api.nodes import Guarantee
from meander.dataflow.simulation.simulated_flow import Result, SimulatedFlow
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId
from meander.state.store.store import Database
from tests.support.property.case_run import check_partitions, encoded
from tests.support.property.cases import KINDS, Case
from tests.support.property.faults import Kill
from tests.support.property.killed_flow import Mortal, Ordeal
from tests.support.property.recovery_run import Life, Lives
from tests.support.property.steps import STEPS, There, somewhere

COMMITS = tuple(
    step for step in STEPS
    if step.protocol in ("transaction", "checkpoint record", "decision", "life", "tombstone")
)  # fmt: skip
TIMED = tuple(kind for kind in KINDS if kind != "arrival")


class OnceLives(Lives):
    """One case that is killed some times; whom a new life has replaced goes on for a while."""

    delivery: Guarantee = "exactly_once"

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._zombie: Mortal | None = None
        self.fenced = self.suppressed = self.forgotten = self.compared = 0

    def ordeal(self, number: int, rng: random.Random) -> Ordeal:
        """The family `double crash`: in two lives, one behind the other, whoever comes by a step of
        what commits is killed there; the second often has a worker less."""
        other = super().ordeal(number, rng)
        if number > 1 or rng.random() < 0.2:
            return other
        workers = max(1, self.case.workers - number * rng.randint(0, 2))
        return Ordeal(workers, None, faults=[There(Kill(), somewhere(rng, COMMITS))])

    def survive(self) -> None:
        """Where one checkpoint is kept, marks are forgotten soon; three are seldom taken."""
        self.retained = 1 if self.case.seed % 2 else 3
        super().survive()

    def outlive(self, run: Mortal, fate: random.Random) -> dict[WorkerId, Database]:
        """A life is over, but its workers may not know."""
        if fate.random() < 0.3:
            return super().outlive(run, fate)
        self._zombie = run
        return {}

    def haunt(self, run: Mortal) -> None:
        """A new life begins, and the last one goes on for a while."""
        zombie, self._zombie = self._zombie, None
        if zombie is None:
            return
        for _ in range(random.Random(f"zombie {self.case.seed}").choice([0, 100, 1000])):
            try:
                if not zombie.sim.done:
                    zombie.act()
            except MeanderError:
                self.fenced += 1
                return
            if not run.sim.done:
                run.act()

    def _lived(self, run: Mortal) -> bool:
        over = super()._lived(run)
        said = [event for event in run.sim.events if event["type"] == "replay_checked"]
        self.compared += sum(int(str(event["results"])) for event in said)
        return over

    def check_end(self, run: Mortal, lives: Sequence[Life]) -> None:
        """All that was committed, of all lives, is what one undisturbed life gives."""
        awaited = run.sim.controller.replays.awaited
        assert not awaited, "all that was out and comes again is compared with what it was"
        self.check_records()
        self.suppressed = run.counters["suppressed"]
        self.forgotten = run.world.ledger.forgotten
        self.check_results(run)

    def check_records(self) -> None:
        """What sources have read is committed as it is, without anything that was computed."""
        for sink in (self.raw, self.other_raw):
            self.check_partitions(sink.results)
            places = Counter((r.partition, r.offset) for r in sink.results)
            assert not places or max(places.values()) == 1, "a record is committed once (I5)"
            partitions = {partition for partition, _ in places}
            for one in partitions:
                offsets = sorted(offset for partition, offset in places if partition == one)
                assert offsets == list(range(len(offsets))), "and none is left out (I5)"

    def check_partitions(self, results: Sequence[Result]) -> None:
        """Each partition's records are committed in order."""
        check_partitions(results)

    def check_results(self, run: SimulatedFlow) -> None:
        """What was computed is the reference's."""
        results, states, _ = self.expected()
        assert run.state() == encoded(states), "states are the reference's (I5)"
        wanted = sorted(repr((r.order, r.value)) for r in results)
        found = sorted(repr((r.place, r.value)) for r in self.sink.results)
        assert not Counter(found) - Counter(wanted), "nothing else is committed, and nothing twice"
        assert not Counter(wanted) - Counter(found), "all of the reference is committed (I5)"
        self.check_written(self.sink.results, results)
