"""A trace is the list of its updates, whatever is inserted, merged, given up and read in any order.

Random schedules state: a cursor accumulates what the trace held when it was opened, at each time at
or after `since`; no chunk changes once it is shared; a merge ends before the next one needs it; the
layers are logarithmic in the rows, and the work of an insert is in proportion to its rows; once no
reader tells times apart and all is compacted, one layer is left, without rows that cancel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from meander.state.collections import trace as traces
from meander.state.collections.description import LayerDescription
from meander.state.collections.layer import Updates
from meander.state.collections.merge import layer_of
from meander.state.collections.trace import Trace
from meander.state.times.antichain import Antichain
from tests.support.collections.columns import patched
from tests.support.collections.trace_run import (
    Add,
    Insert,
    TraceSchedule,
    random_schedule,
    run,
    shortest,
)
from tests.support.property import shrinking
from tests.support.property.budget import SCHEDULES, TRACES, seeds

FLOOR = 60


@pytest.mark.soak
def test_a_trace_is_the_list_of_its_updates(
    record_property: Callable[[str, object], None],
) -> None:
    found = Counter[str]()
    for seed in seeds(TRACES, FLOOR):
        happened = shrinking.checked(random_schedule(seed), run, shortest)
        most = max(found["layers at once"], happened["layers at once"])
        found.update(happened, schedules=1)
        found["layers at once"] = most
    assert found["rows left"] < found["rows"], "some rows cancel"
    assert found["layers at once"] > 3, "some traces have merges of several levels"
    record_property(f"{SCHEDULES}traces", found["schedules"])
    record_property("rows inserted into these", found["rows"])
    record_property("rows that their merges took meanwhile", found["taken"])
    record_property("cursors read over later merges", found["reads"])


@pytest.mark.parametrize("factor", [1, 2, 4])
@pytest.mark.parametrize("sizes", [(1,), (0, 1, 7), (100, 1, 1, 1), (3, 3, 3, 30)])
def test_a_merge_ends_before_the_next_one_needs_it(factor: int, sizes: tuple[int, ...]) -> None:
    """A trace asserts that itself, so it is enough to insert layers, small and large in turn."""
    with patched([(traces, "TAIL_ROWS", 1)]):
        trace = Trace(1, factor)
        for now in range(150):
            rows = sizes[now % len(sizes)]
            some = Updates.of([(now, value, (now,), 1) for value in range(rows)])
            trace.insert(layer_of(some, _interval(now)))
        assert len(trace) == sum(sizes[now % len(sizes)] for now in range(150))


def test_a_failing_schedule_is_printed_with_its_seed_and_made_shorter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shrinking, "uncaptured", nullcontext)
    schedule = next(
        schedule
        for schedule in map(random_schedule, range(100))
        if sum(isinstance(step, Insert) for step in schedule.steps) > 5
    )

    def check(other: TraceSchedule) -> None:
        assert not any(isinstance(step, Add) and step.key == 3 for step in other.steps)

    with pytest.raises(pytest.fail.Exception) as error:
        shrinking.checked(schedule, check, shortest)
    assert f"MEANDER_SEED={schedule.seed} fails in" in capsys.readouterr().err
    steps = str(error.value).partition("The shortest schedule that fails:\n")[2].splitlines()
    assert steps[0].startswith(f"seed {schedule.seed}: depth {schedule.depth}")
    assert [step.split("(")[0].strip() for step in steps[1:]] == ["Add"]


def test_a_schedule_without_some_steps_is_a_schedule() -> None:
    schedule = next(s for s in map(random_schedule, range(100)) if len(s.steps) > 60)
    rng = np.random.default_rng(0)
    for _ in range(5):
        kept = rng.random(len(schedule.steps)) < 0.5
        steps = [step for step, keep in zip(schedule.steps, kept, strict=True) if keep]
        run(replace(schedule, steps=tuple(steps)))


def _interval(now: int) -> LayerDescription:
    return LayerDescription(Antichain.of(now), Antichain.of(now + 1), Antichain.of(0))
