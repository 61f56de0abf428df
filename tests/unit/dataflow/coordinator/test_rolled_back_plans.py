"""A failure before the decision leaves the old plan in force; a decided plan goes forward only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.simulation.faults import Pause
from meander.schemas.control import CommandError
from meander.state.keys.ids import WorkerId
from meander.testing import TestFlow
from tests.support.sim.plans import abort, apply, joints, migrate, state, the_plan
from tests.support.sim.tagged_flow import KEYS, read, reason, tagged_flow, tags

SECOND = {"tagged": {"parameters": {"tag": "second"}}}
SWAPPED = {"0": "4-7", "1": "0-3"}
WHOLE: Any = {"operators": SECOND, "bins": SWAPPED, "partitions": {"source": {"0": "0-1"}}}


def held_up(run: TestFlow) -> dict[str, Any]:
    """Let a worker pause, so that it prepares nothing. Return the plan in force."""
    read(run, 1)
    plan = the_plan(run)
    run.inject(Pause(1, 4_000))
    return plan


def until(run: TestFlow, reached: Callable[[], bool]) -> None:
    """Run until a state is reached, while the worker still pauses."""
    while not reached():
        run.act()


def expect_nothing_changed(run: TestFlow, before: dict[str, Any], read_before: int = 0) -> None:
    assert the_plan(run) == before
    assert joints(run) == []
    read(run, 20, range(read_before, KEYS))
    run.run()
    assert tags(run) == [["first"], ["first"]]


def rolled_back(run: TestFlow, id: str = "p") -> str:
    name, why = state(run, id)
    assert name == "rolled_back"
    return why


def test_logic_that_a_worker_refuses_leaves_the_old_plan_in_force() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        before = the_plan(run)
        run.control(apply(
            workers={"0": {}, "1": {}, "2": {}}, bins={"0": "4-7", "1": "0-2", "2": "3"},
            operators={"tagged": {"logic": "Missing"}, "above": {"parameters": {"limit": 3}}},
        ))  # fmt: skip
        run.run_until_idle()
        assert "Missing" in rolled_back(run)
        assert [int(worker.me) for worker in run.workers] == [0, 1], "the joined worker has left"
        expect_nothing_changed(run, before)


@pytest.mark.parametrize("update", [{"limit": "three"}, {"unknown": 3}])
def test_parameters_that_no_class_takes_leave_the_old_plan_in_force(
    update: dict[str, object],
) -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        before = the_plan(run)
        run.control(apply(operators={**SECOND, "above": {"parameters": update}}, bins=SWAPPED))
        run.run_until_idle()
        assert min(update) in rolled_back(run)
        expect_nothing_changed(run, before)


def test_a_worker_that_fails_to_join_lets_the_joined_ones_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    join = Coordinator.join

    def join_or_fail(coordinator: Coordinator, worker: WorkerId, id: str = "") -> None:
        if worker == 3:
            raise CommandError("its executor has no room")
        join(coordinator, worker, id)

    monkeypatch.setattr(Coordinator, "join", join_or_fail)
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        before = the_plan(run)
        run.control(apply(workers={str(n): {} for n in range(5)}, operators=SECOND))
        run.run_until_idle()
        assert rolled_back(run) == "worker 3: its executor has no room"
        kinds = [one["type"] for one in run.events if one.get("id") == "p"]
        assert kinds[0] == "reconfiguring"
        assert sorted(map(str, kinds[1:-1])) == ["join_failed", "joined", "joined"]
        assert [int(worker.me) for worker in run.workers] == [0, 1]
        expect_nothing_changed(run, before)


def test_a_time_that_comes_before_all_is_prepared_leaves_the_old_plan_in_force() -> None:
    with TestFlow(tagged_flow()) as run:
        before = held_up(run)
        run.control(apply(time=5_000, **WHOLE))
        until(run, lambda: run.sim.coordinator.logics.waiting)
        run.feed("in", 0, ms=6_000)
        until(run, lambda: state(run)[0] != "reconfiguring")
        assert rolled_back(run) == (
            "time 5000 ms came before all was prepared: name a later time, or leave it out for as"
            " soon as possible"
        )
        expect_nothing_changed(run, before, read_before=1)


def test_a_plan_that_is_not_prepared_in_time_leaves_the_old_one_in_force() -> None:
    with TestFlow(tagged_flow()) as run:
        before = held_up(run)
        run.control(apply(seconds=30, **WHOLE))
        until(run, lambda: run.sim.coordinator.logics.waiting)
        run.sim.clock.advance(29)
        for _ in range(200):
            run.act()
        assert state(run)[0] == "reconfiguring"
        run.sim.clock.advance(2)
        until(run, lambda: state(run)[0] != "reconfiguring")
        assert rolled_back(run).startswith("it was not prepared within 31 seconds")
        expect_nothing_changed(run, before)


def test_a_prepared_plan_may_wait_for_its_time_as_long_as_that_takes() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(apply(time=9_000, seconds=30, operators=SECOND, bins=SWAPPED))
        run.advance(100)
        run.advance(100)
        read(run, 10)
        run.run()
    assert state(run) == ("reconfigured", "")
    assert tags(run) == [["first"], ["second"]]


@pytest.mark.parametrize("sections", [{"operators": SECOND}, {"bins": SWAPPED}, WHOLE])
def test_sources_that_end_before_a_named_time_leave_the_old_plan_in_force(
    sections: dict[str, Any],
) -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(apply(time=9_000, **sections))
        began = run.sim.clock.monotonic()
        run.run()
        assert run.sim.clock.monotonic() - began < 60, "it does not wait for a time limit"
    assert rolled_back(run) == "the flow's sources have ended before time 9000 ms"
    assert joints(run) == []


def test_a_plan_is_aborted_before_it_is_decided() -> None:
    with TestFlow(tagged_flow()) as run:
        before = held_up(run)
        run.control(apply(**WHOLE))
        for _ in range(200):
            run.act()
        run.control(abort("a", "p"))
        run.run_until_idle()
        assert state(run) == ("aborted", "command 'a' has aborted it")
        expect_nothing_changed(run, before)


def test_a_plan_is_aborted_while_its_workers_join() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        before = the_plan(run)
        run.inject(Pause(0, 400))
        # The command returns only once its worker has joined, so others must not wait for that.
        run._giving = True
        run.control(apply(workers={"0": {}, "1": {}, "2": {}}, operators=SECOND))
        run._giving = False
        run.act()
        run.control(abort("a", "p"))
        run.run_until_idle()
        assert state(run) == ("aborted", "command 'a' has aborted it")
        assert [int(worker.me) for worker in run.workers] == [0, 1]
        expect_nothing_changed(run, before)


def test_a_queued_plan_is_aborted() -> None:
    with TestFlow(tagged_flow()) as run:
        before = held_up(run)
        run.control(apply("p1", **WHOLE))
        run.control(apply("p2", operators=SECOND))
        run.control(abort("a2", "p2"))
        run.control(abort("a1", "p1"))
        run.run_until_idle()
        assert state(run, "p2")[0] == "aborted"
        assert state(run, "p1")[0] == "aborted"
        expect_nothing_changed(run, before)


def test_a_decided_plan_goes_forward_only() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(apply(operators=SECOND, bins=SWAPPED))
        until(run, lambda: bool(joints(run)))
        run.control(abort("a", "p"))
        assert reason(run, "a") == (
            "plan 'p' is decided or has been rolled back, so it has to complete: wait for its end,"
            " then apply the plan that you want"
        )
        run.run_until_idle()
        assert state(run) == ("reconfigured", "")
        run.control(abort("b", "p"))
        assert "'p'" in reason(run, "b")
        read(run, 2)
        assert the_plan(run)["bins"] == SWAPPED
        run.run()
    assert tags(run) == [["first"], ["second"]]


@pytest.mark.parametrize("overlap", ["queue", "reject"])
def test_a_migration_of_the_same_bins_waits_for_the_plan_or_is_rejected(overlap: str) -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(apply(time=9_000, bins=SWAPPED))
        run.run_until_idle()
        run.control({**migrate("m1", [0, 1], 0), "overlap": overlap})
        run.control(migrate("m2", [2], 0))
        read(run, 10)
        run.run_until_idle()
        bins = the_plan(run)["bins"]
        run.run()
    assert state(run) == ("reconfigured", "")
    if overlap == "queue":
        assert state(run, "m1") == ("completed", "")
        assert bins == {"0": "0-2, 4-7", "1": "3"}
    else:
        assert state(run, "m1")[0] == "rejected"
        assert bins == {"0": "2, 4-7", "1": "0-1, 3"}


def test_a_migration_behind_a_plan_may_name_its_new_worker() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run._giving = True
        run.control(apply(workers={"0": {}, "1": {}, "2": {}}, bins={"2": "0-7"}))
        run.control(migrate("m", [0], 2))
        run.control(migrate("n", [1], 1))
        run._giving = False
        run.run_until_idle()
        assert the_plan(run)["bins"] == {"1": "1", "2": "0, 2-7"}
        run.run()
    assert state(run) == ("reconfigured", "")
    assert [state(run, id) for id in "mn"] == [("completed", "")] * 2


def test_no_bin_moves_to_a_worker_that_has_joined_for_an_undecided_plan() -> None:
    """It would stay behind with the bin where the plan is rolled back."""
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(apply(workers={"0": {}, "1": {}, "2": {}}, time=600_000))
        read(run, 2)
        run.control(migrate("m", [0], 2))
        assert reason(run, "m") == (
            "worker 2 has joined for plan 'p', which is not decided: wait until the plan is in"
            " force, or name another worker"
        )
        run.control(migrate("n", [1], 1))
        run.control(abort("a", "p"))
        run.run_until_idle()
        assert sorted(worker.me for worker in run.workers) == [0, 1]
        assert state(run, "n") == ("completed", "")
        run.run()


def test_a_migration_to_a_worker_that_has_joined_is_accepted_once_the_plan_is_decided() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(apply(workers={"0": {}, "1": {}, "2": {}}, bins={"2": "0-7"}))
        run.run_until_idle()
        run.control(migrate("m", [0], 2))
        run.run_until_idle()
        assert state(run, "m") == ("completed", "")
        run.run()


@pytest.mark.parametrize(
    ("sections", "cause"),
    [
        ({"bins": {"0": "0-6"}}, "bin 7: it has no owner"),
        ({"bins": {"0": "0-7", "1": "7"}}, "workers 0 and 1 both get it"),
        ({"bins": {"0": "0-3", "5": "4-7"}}, "worker 5, is no worker of the plan"),
        ({"bins": {"0": "0-8"}}, "names numbers beyond 7"),
        ({"bins_of": {"tagged": {"0": "0-7"}}}, "the plan has no such group"),
        ({"operators": {"none": {}}}, "it has no logic that can change"),
        ({"partitions": {"none": {"0": "0"}}}, "the flow does not read it"),
        ({"partitions": {"source": {"0": "0"}}}, "other partitions than the flow reads (0-1)"),
        ({"workers": {"0": {}, "1": {}, "7000": {}}}, "worker 7000 cannot start"),
        ({"workers": {}}, "it has no worker"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_plan_that_cannot_be_is_rejected(
    sections: dict[str, Any], cause: str, dry_run: bool
) -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        before = the_plan(run)
        run.control(apply(dry_run=dry_run, **sections))
        run.run_until_idle()
        assert cause in reason(run, "p")
        assert len(run.workers) == 2
        expect_nothing_changed(run, before)


def test_a_worker_that_has_left_is_no_new_one() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(apply("p1", workers={"0": {}}))
        run.run_until_idle()
        run.control(apply("p2", workers={"0": {}, "1": {}}))
        run.run_until_idle()
        assert the_plan(run)["bins"] == {"0": "0-3", "2": "4-7"}
        run.run()
    assert state(run, "p2") == ("reconfigured", "")


def test_a_plan_behind_the_end_of_the_sources_is_rejected() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.run()
        run._giving = True
        run.control(apply(operators=SECOND))
        run.control(apply("shown", dry_run=True))
    assert "sources have ended" in reason(run, "shown")
