"""Random execution plans, and pairs of plans of one flow."""

from __future__ import annotations

import random

from meander.dataflow.control.logic_change import LogicVersion
from meander.dataflow.control.resources import MIN_MEMORY, Resources
from meander.dataflow.execution_plan.plan import ExecutionPlan, Place
from meander.state.keys.ids import WorkerId

PLACES = (
    Resources(), Resources("a"), Resources("b", "3"), Resources(executor="4"),
    Resources(cores=2), Resources(memory=MIN_MEMORY), Resources("a", memory=(1 << 30) + 1),
    Resources("b", "3", cores=16, memory=3 << 40),
)  # fmt: skip
LOGICS = (
    LogicVersion("Above"),
    LogicVersion.of("Above", {"limit": 3}),
    LogicVersion.of("rules:Rich", {"words": ["caf\u00e9", None], "deep": {"a": -1.5}}),
)


def random_plan(rng: random.Random) -> ExecutionPlan:
    """A plan of any flow: also of one without bins, partitions or logic that can change."""
    workers = _workers(rng)
    groups = rng.sample(["", "alone", "a b"], rng.randint(0, 3))
    places = [(source, n) for source in rng.sample(["in", "other"], rng.randint(0, 2))
              for n in rng.sample(range(6), rng.randint(1, 5))]  # fmt: skip
    return ExecutionPlan(
        {one: rng.choice(PLACES) for one in workers},
        {one: rng.choice(LOGICS) for one in rng.sample(["alert", "x.y"], rng.randint(0, 2))},
        _owners(rng, {group: 1 << rng.randint(0, 5) for group in groups}, workers),
        _readers(rng, places, workers),
    )


def another(rng: random.Random, plan: ExecutionPlan) -> ExecutionPlan:
    """Another plan of the same flow. Its workers stay where they are, or are others."""
    workers = _workers(rng)
    counts = {group: len(owners) for group, owners in plan.bins.items()}
    return ExecutionPlan(
        {one: plan.workers.get(one, rng.choice(PLACES)) for one in workers},
        {operator: rng.choice(LOGICS) for operator in plan.logic},
        _owners(rng, counts, workers),
        _readers(rng, [*plan.partitions], workers),
    )


def _workers(rng: random.Random) -> list[WorkerId]:
    return [WorkerId(n) for n in rng.sample(range(12), rng.randint(1, 6))]


def _owners(
    rng: random.Random, counts: dict[str, int], workers: list[WorkerId]
) -> dict[str, tuple[WorkerId, ...]]:
    return {group: tuple(rng.choices(workers, k=count)) for group, count in counts.items()}


def _readers(
    rng: random.Random, places: list[Place], workers: list[WorkerId]
) -> dict[Place, WorkerId]:
    return {place: rng.choice(workers) for place in places}
