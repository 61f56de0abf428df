"""Faults strike when they are due, also while a flow makes room for a newcomer."""

from __future__ import annotations

from typing import Any, cast

import pytest

from meander.schemas.errors import MeanderError
from meander.testing import At, Control, Crash, Join, Pause, TestFlow
from tests.support.sim.counting_test_flow import counting, expect_counts, fed

BEGUN, HELD = 50, 2000
PAUSE = At(Pause(-1, HELD), step=BEGUN)
JOINS = {
    "by itself": [PAUSE, At(Join(), step=BEGUN)],
    "by a command": [
        PAUSE,
        At(Control({"type": "rescale", "id": "up", "workers": 3}), step=BEGUN),
    ],
}
"""A worker joins; the coordinator does not admit it before it has paused."""


@pytest.mark.parametrize("how", JOINS)
@pytest.mark.parametrize("step", [BEGUN + 1, BEGUN + 1000, BEGUN + HELD])
def test_a_crash_strikes_at_its_step_though_a_worker_is_joining(how: str, step: int) -> None:
    with fed(TestFlow(counting(), faults=[*JOINS[how], At(Crash(1), step=step)])) as run:
        with pytest.raises(MeanderError, match="worker 1: its process was killed"):
            run.run()
        assert run.sim.actions == step
        assert (run.sim.next_worker, run.sim.coordinator.workers.active) == (3, [0, 1])


@pytest.mark.parametrize("how", JOINS)
def test_a_crash_strikes_at_its_second_though_a_worker_is_joining(how: str) -> None:
    with fed(TestFlow(counting(), faults=[*JOINS[how], At(Crash(1), seconds=0.1)])) as run:
        with pytest.raises(MeanderError, match="worker 1: its process was killed"):
            run.run()
        assert BEGUN < run.sim.actions < BEGUN + HELD
        assert (run.sim.next_worker, run.sim.coordinator.workers.active) == (3, [0, 1])


@pytest.mark.parametrize("how", JOINS)
def test_a_command_waits_until_a_worker_has_joined(how: str) -> None:
    move = Control({"type": "migrate", "id": "m", "bins": "all", "worker": 2})
    with fed(TestFlow(counting(), faults=[*JOINS[how], At(move, step=BEGUN + 1)])) as run:
        run.run()
        assert cast(Any, run.answer("m")).state == "completed"
        expect_counts(run)
