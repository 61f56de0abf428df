"""Random schedules of members on random graphs: who does what, who comes and goes, what changes
hands, and in which order all of it is heard of, from the opening until nothing is left.

A seed is a graph, on which many schedules are run: what can result on it is found out only once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from unittest.mock import patch

from meander.dataflow.progress import broadcast
from tests.support.progress.changing_world import MOST, ChangingWorld
from tests.support.progress.graphs import Walks, handed_graph
from tests.support.progress.world import SOUND, Planted, Step
from tests.support.property.shrinking import fewest

PER_GRAPH = 25
WORKERS = (1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8)
SHORT, LONG, LONG_ONES = (12, 60), (100, 400), 0.05
"""How many steps, and how many schedules are long ones."""
WINDOWS = (1, 2, 5, 1024)
TEMPERS = (0.0, 1.0, 1.0, 1.0, 4.0)
"""How likely an action is in one schedule: in each some never happen and some often."""
LIKELY = {"join": 0.3, "part": 0.5, "order": 2.0, "hand_over": 2.0}


@dataclass(frozen=True)
class Schedule:
    """One run on the graph of a seed."""

    seed: int
    number: int
    workers: int
    opened: bool
    """Whether all have opened before anything else happens."""
    window: int
    """How many updates may be on their way to a member: what is made beyond adds up."""
    script: tuple[Step, ...]

    def __str__(self) -> str:
        steps = [
            f"  {ChangingWorld.ACTIONS[kind].__name__} {who} {which} {how}"
            for kind, who, which, how in self.script
        ]
        first = f"seed {self.seed}, schedule {self.number}: {self.workers} workers"
        first += f", a window of {self.window}"
        return "\n".join([f"{first}, {'all' if self.opened else 'nobody'} opened", *steps])


def graph_of(seed: int) -> Walks:
    return Walks(handed_graph(random.Random(f"graph {seed}")))


def random_schedule(seed: int, number: int) -> Schedule:
    rng = random.Random(f"schedule {seed}/{number}")
    steps = rng.randint(*LONG if rng.random() < LONG_ONES else SHORT)
    opened, window = rng.random() < 0.7, rng.choice(WINDOWS)
    return Schedule(seed, number, rng.choice(WORKERS), opened, window, random_script(rng, steps))


def random_script(rng: random.Random, steps: int) -> tuple[Step, ...]:
    tempers = [rng.choice(TEMPERS) * LIKELY.get(a.__name__, 1.0) for a in ChangingWorld.ACTIONS]
    kinds = rng.choices(range(len(tempers)), tempers, k=steps)
    return tuple(
        (kind, rng.randrange(MOST + 1), rng.randrange(12), rng.randrange(4)) for kind in kinds
    )


def run(schedule: Schedule, walks: Walks, planted: Planted = SOUND) -> Counter[str]:
    """From the opening to the end, all frontiers held against the truth at every step; what
    happened."""
    with patch.object(broadcast, "WINDOW", schedule.window):
        return _run(schedule, walks, planted)


def _run(schedule: Schedule, walks: Walks, planted: Planted) -> Counter[str]:
    world = ChangingWorld(walks.graph, schedule.workers, planted, walks)
    if schedule.opened:
        world.open_all()
    world.play(schedule.script)
    # In some all is told before the end: then frontiers are not only safe but exact.
    if schedule.number % 4 == 0:
        world.all_is_told()
    world.come_to_an_end(random.Random(f"end {schedule.seed}/{schedule.number}"))
    return Counter(
        joined=world.joined, left=world.left, handed=world.handed, frontiers=world.reports
    )


def shortest(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Leave out steps as long as the schedule still fails."""

    def fail(script: tuple[Step, ...]) -> bool:
        return fails(replace(schedule, script=script))

    return replace(schedule, script=fewest(schedule.script, fail))
