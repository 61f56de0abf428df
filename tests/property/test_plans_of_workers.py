"""I2, I5 and I7: plans that add, replace and remove workers at random, among migrations, rescales
and aborts, lose and double nothing, hold as a whole or not at all, and let the flow end."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from meander.dataflow.control.decisions import LogicDecision
from meander.dataflow.control.logic_change import LogicChange
from meander.state.times.time import to_millis
from meander.testing import Pause, Slow, TestFlow
from tests.support.property import shrinking
from tests.support.property.budget import PLANS, seeds
from tests.support.sim.plans import abort, apply, joints, migrate
from tests.support.sim.tagged_flow import KEYS, tagged_flow

FLOOR = 12
BINS = 8
MAX_WORKERS = 5
ENDS = {
    "reconfigured", "plan_in_force", "rolled_back", "aborted", "rejected", "completed", "rescaled",
}  # fmt: skip
"""The last states of commands; a plan may be in force as the flow ends."""


@dataclass(frozen=True)
class Step:
    """What happens next: `kind` names a function of `Run`, and `draw` is its random choice."""

    kind: str
    draw: int

    def __str__(self) -> str:
        return f"{self.kind} {self.draw}"


@dataclass(frozen=True)
class Schedule:
    seed: int
    workers: int
    exactly_once: bool
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        delivery = "exactly once" if self.exactly_once else "at least once"
        steps = ", ".join(map(str, self.steps))
        return f"seed {self.seed}: {self.workers} workers, {delivery}: {steps}"


KINDS = ("feed", "feed", "act", "plan", "plan", "migrate", "rescale", "abort", "pause", "slow")


def schedule(seed: int) -> Schedule:
    rng = random.Random(f"plans of workers {seed}")
    steps = (Step(rng.choice(KINDS), rng.randrange(1 << 30)) for _ in range(rng.randint(8, 30)))
    return Schedule(seed, rng.randint(1, 3), rng.random() < 0.5, tuple(steps))


class Run:
    """A run of a schedule; each step is random in itself, and may find the flow in any state."""

    def __init__(self, flow: TestFlow) -> None:
        self.flow, self.second, self.fed = flow, 1, 0
        self.ids: list[str] = []
        self._aborts = 0

    def step(self, step: Step) -> None:
        getattr(self, f"_{step.kind}")(random.Random(step.draw))

    def _feed(self, rng: random.Random) -> None:
        self.second += 1
        for _ in range(rng.randint(1, 30)):
            ms = 1_000 * self.second + rng.randrange(1_000)
            self.flow.feed("in", self.fed, ms=ms, partition=rng.randrange(2))
            self.fed += 1

    def _act(self, rng: random.Random) -> None:
        for _ in range(rng.choice([3, 30, 300])):
            self.flow.act()

    def _plan(self, rng: random.Random) -> None:
        """Ask for a plan of other workers, bins, readers or logic, or of several at once."""
        members = [*map(int, self.flow.sim.coordinator.workers.active)]
        fields: dict[str, Any] = {}
        chosen = rng.sample(members, rng.randint(1, len(members)))
        known = max(members)
        chosen += [known + n for n in range(1, rng.randint(0, 2) + 1)]
        if rng.random() < 0.7:
            fields["workers"] = {str(one): {} for one in chosen[:MAX_WORKERS]}
        if "workers" not in fields or rng.random() < 0.5:
            spread = rng.choices(chosen[:MAX_WORKERS] if "workers" in fields else members, k=BINS)
            owned = defaultdict(list)
            for bin, owner in enumerate(spread):
                owned[owner].append(str(bin))
            fields["bins"] = {str(one): ", ".join(bins) for one, bins in owned.items()}
        if rng.random() < 0.4:
            fields["operators"] = {"tagged": {"parameters": {"tag": f"t{len(self.ids)}"}}}
        more = {"time": 1_000 * (self.second + 1)} if rng.random() < 0.2 else {}
        self.flow.control(apply(self._id(), **fields, **more))

    def _migrate(self, rng: random.Random) -> None:
        bins = rng.sample(range(BINS), rng.randint(1, BINS))
        worker = int(rng.choice(self.flow.sim.coordinator.workers.active))
        self.flow.control(migrate(self._id(), bins, worker))

    def _rescale(self, rng: random.Random) -> None:
        self.flow.control({"type": "rescale", "id": self._id(), "workers": rng.randint(1, 4)})

    def _abort(self, rng: random.Random) -> None:
        if self.ids:
            self._aborts += 1
            self.flow.control(abort(f"a{self._aborts}", rng.choice(self.ids)))

    def _pause(self, rng: random.Random) -> None:
        worker = int(rng.choice(self.flow.sim.coordinator.workers.active))
        self.flow.inject(Pause(worker, rng.randint(1, 200)))

    def _slow(self, rng: random.Random) -> None:
        sender, receiver = rng.choices([*map(int, self.flow.sim.coordinator.workers.active)], k=2)
        if sender != receiver:
            self.flow.inject(Slow(sender, receiver, rng.randint(1, 200)))

    def _id(self) -> str:
        self.ids.append(f"c{len(self.ids)}")
        return self.ids[-1]


def checked_run(one: Schedule) -> int:
    """Run a schedule and check it; return the number of plans that came into force with a worker
    more or less."""
    flow = tagged_flow()
    flow.delivery = "exactly_once" if one.exactly_once else "at_least_once"
    with TestFlow(flow, one.workers, one.seed) as running:
        run = Run(running)
        for step in one.steps:
            run.step(step)
        running.run()
        check_results(running, run.fed)
        check_answers(running, run.ids)
        check_members(running)
        check_tags(running)
    members = [one.plan.members for one in joints(running)]
    return sum(before != after for before, after in pairwise(members))


def check_results(running: TestFlow, fed: int) -> None:
    """Each record counts once, and the results of a key are a sequence (I3, I9)."""
    counts: dict[int, list[object]] = defaultdict(list)
    seen = set[int]()
    for value in running.values("out"):
        assert isinstance(value, list)
        seen.add(value[0])
        counts[value[0] % KEYS].append(value[2])
    assert seen == {*range(fed)}, "each record is answered"
    for key, found in counts.items():
        assert sorted(map(int, map(str, found))) == [*range(1, len(found) + 1)], f"key {key} (I3)"


def check_answers(running: TestFlow, ids: list[str]) -> None:
    for id in ids:
        answer = running.answer(id)
        assert answer is not None, f"{id} has no answer"
        assert answer.state in ENDS, f"{id} ends as {answer}"


def check_members(running: TestFlow) -> None:
    """Every bin is owned by a member, and the workers of a plan are those that run (I2)."""
    coordinator = running.sim.coordinator
    assert {*coordinator.owners()} <= {*coordinator.workers.all}


def check_tags(running: TestFlow) -> None:
    """Records meet the version of their time: each decision holds for its time, whole (I5)."""
    changes: list[tuple[int, str]] = []
    for joint in joints(running):
        for part in joint.parts:
            if isinstance(part, LogicDecision):
                assert part.time == joint.time
                changes += ((joint.time, tag_of(change)) for change in part.changes)
    for result in running.results("out"):
        value: Any = result.value
        allowed = "first"
        for time, tag in sorted(changes):
            if time <= result.time:
                allowed = tag
        assert value[1] == allowed, f"{value} at {to_millis(result.time)} ms"


def tag_of(change: LogicChange) -> str:
    return str(json.loads(change.version.parameters)["tag"])


def test_plans_of_workers_hold_as_a_whole_whatever_else_changes() -> None:
    changed = 0
    for seed in seeds(PLANS, FLOOR):
        changed += shrinking.checked(schedule(seed), checked_run, shortest)
    assert changed, "workers came and went by plans"


def shortest(one: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    steps = shrinking.fewest(one.steps, lambda some: fails(replace(one, steps=some)))
    return replace(one, steps=steps)
