"""Members join and leave a running computation, and every frontier stays safe (I1); in the end all
are empty (I7), and nobody keeps a trace of what is over.

A script, found by hypothesis, says who does what, who comes and goes, and what is delivered next:
updates, news of members and data in any order that the links allow.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from meander.dataflow.progress import broadcast
from meander.dataflow.progress.progress import Progress
from tests.support.progress.changing_world import ChangingWorld
from tests.support.progress.graphs import chain, some_graph
from tests.support.progress.planted_bugs import (
    LeavesAtOnce,
    OpensTwice,
    OpensWithNothing,
    WaitsForNobody,
)
from tests.support.progress.schedules import Schedule, random_script, shortest
from tests.support.progress.world import SOUND, Member, Planted, Step
from tests.support.property.budget import MEMBERS, SCHEDULES, seeds
from tests.support.property.shrinking import shrunk

FLOOR = 50
SHORT, LONG = 60, 160
"""How many steps a script has."""
SCRIPTS = st.lists(
    st.tuples(
        st.integers(0, len(ChangingWorld.ACTIONS) - 1),
        st.integers(0, 9),
        st.integers(0, 11),
        st.integers(0, 3),
    ),
    min_size=SHORT,
    max_size=LONG,
)


# One leaves, and only an older base, which follows from its updates, is known when the next joins.
AFTER_A_LEAVER = [
    (15, 0, 0, 0), *[(0, 2, 0, 0)] * 3, (4, 1, 0, 0), (8, 1, 0, 0), (10, 0, 0, 0), (16, 0, 0, 0),
    *[(0, 0, 0, 1)] * 6, (3, 0, 0, 1), *[(0, 0, 0, 0)] * 30, (10, 1, 0, 1), (17, 0, 0, 0),
    (10, 1, 0, 1), (10, 0, 0, 0), (15, 0, 0, 0),
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@example(seed=0, workers=1, script=AFTER_A_LEAVER)
@given(seed=st.integers(0, 1 << 32), workers=st.integers(1, 3), script=SCRIPTS)
def test_frontiers_stay_safe_while_members_come_and_go(
    seed: int, workers: int, script: list[Step]
) -> None:
    play(seed, workers, script)


def play(seed: int, workers: int, script: Sequence[Step], planted: Planted = SOUND) -> None:
    world = ChangingWorld(some_graph(random.Random(seed)), workers, planted)
    world.open_all()
    world.play(script)
    world.come_to_an_end()


@pytest.mark.soak
def test_frontiers_stay_safe_in_random_scripts(
    record_property: Callable[[str, object], None],
) -> None:
    """More of them than hypothesis has time for."""
    runs = steps = 0
    for seed in seeds(MEMBERS, FLOOR):
        rng = random.Random(f"members {seed}")
        script = random_script(rng, rng.randint(SHORT, LONG))
        schedule = Schedule(seed, 0, rng.randint(1, 3), True, broadcast.WINDOW, script)
        try:
            played(schedule)
        except Exception:
            found = traceback.format_exc()
            least = shrunk(schedule, shortest, fails)
            pytest.fail(f"{found}\nThe shortest schedule that fails:\n{least}")
        runs += 1
        steps += len(script)
    record_property(f"{SCHEDULES}members that come and go", runs)
    record_property("their steps", steps)


def played(schedule: Schedule) -> None:
    play(schedule.seed, schedule.workers, schedule.script)


def fails(schedule: Schedule) -> bool:
    try:
        played(schedule)
    except Exception:
        return True
    return False


def test_a_member_that_left_unheard_holds_no_frontier_back() -> None:
    """I7: a leaver's words may come to a newcomer after the news that it is gone."""
    world = ChangingWorld(chain(), 1)
    world.open_all()
    coordinator, leaver = world.members
    world.send(leaver, 0, 0)
    world.drop(leaver, 0, 0)
    world.flush(leaver, 0, 0)
    world.join(coordinator, 0, 0)
    newcomer = world.members[-1]

    def bring_all(sender: Member, to: Member) -> None:
        lane = world.updates[sender.me, to.me]
        while lane:
            world.hear(to, sender.me, lane.popleft())

    bring_all(coordinator, leaver)
    bring_all(leaver, coordinator)
    for _ in range(2):
        world.bring_data(coordinator, 0, 0)
        world.take(coordinator, 0, 0)
    world.advance(coordinator, 0, 2)
    world.part(coordinator, 0, 0)
    world.announce(coordinator, 0, 0)
    bring_all(coordinator, leaver)
    # The leaver leaves at the end of a turn.
    world.flush(leaver, 0, 0)
    bring_all(leaver, coordinator)
    bring_all(coordinator, leaver)
    assert world.members == [coordinator, newcomer]
    bring_all(coordinator, newcomer)
    bring_all(leaver, newcomer)
    world.all_is_told()
    world.come_to_an_end()


# -- planted bugs


@pytest.mark.parametrize("progress", [OpensWithNothing, WaitsForNobody, LeavesAtOnce, OpensTwice])
def test_a_planted_bug_is_noticed(progress: type[Progress]) -> None:
    @settings(max_examples=2_000, deadline=None, phases=[Phase.generate], database=None)
    @given(seed=st.integers(0, 1 << 32), workers=st.integers(1, 3), script=SCRIPTS)
    def run(seed: int, workers: int, script: list[Step]) -> None:
        play(seed, workers, script, Planted(progress))

    with pytest.raises((AssertionError, KeyError, IndexError)):
        run()
