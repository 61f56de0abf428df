"""Slots of executors are granted to placements, each its own, or the error names what is known."""

from __future__ import annotations

import pytest

from meander.app.driver.workers.placement import Executor, expect_free_slots
from meander.dataflow.control.resources import Resources
from meander.schemas.errors import SetupError

A0, B1, B2 = (
    Executor("0", "spark-a", slots=2, running=1),
    Executor("1", "spark-b", slots=2, running=2),
    Executor("2", "spark-b", slots=1, running=0),
)
BUSY = {"worker 0": A0.place, "worker 1": B1.place, "worker 2": B1.place}
ON_B, IN_2 = Resources(host="spark-b"), Resources(executor="2")


def test_any_executor_of_a_host_with_a_free_slot_does() -> None:
    expect_free_slots({"worker 3": ON_B}, [A0, B1, B2], BUSY)


def test_two_workers_do_not_share_the_last_slot() -> None:
    both = {"worker 3": ON_B, "worker 4": IN_2}
    with pytest.raises(SetupError) as refused:
        expect_free_slots(both, [A0, B1, B2], BUSY)
    assert str(refused.value) == (
        "worker 3: no free slot on host spark-b: 3 of 3 slots run worker 1, worker 2 and worker 4;"
        " free one, or name another host; hosts known: spark-a (executor 0: 1 of 2 slots free),"
        " spark-b (executor 1: 0 of 2 slots free, executor 2: 0 of 1 slots free)."
    )


def test_cores_are_free_slots_of_one_executor() -> None:
    a, b = (
        Executor("0", "spark-a", slots=4, running=2),
        Executor("1", "spark-b", slots=4, running=3),
    )
    two = Resources(cores=2)
    expect_free_slots({"worker 3": two}, [a, b], {})
    with pytest.raises(SetupError) as refused:
        expect_free_slots({"worker 3": two, "worker 4": two}, [a, b], {"worker 0": a.place})
    assert str(refused.value) == (
        "worker 4: no 2 free slots together on any executor: 7 of 8 slots run worker 0,"
        " worker 3 (2) and 4 other tasks; free them, or name another host; hosts known: spark-a"
        " (executor 0: 0 of 4 slots free), spark-b (executor 1: 1 of 4 slots free)."
    )


def test_a_worker_with_many_cores_comes_before_one_that_may_run_elsewhere() -> None:
    a, b = (
        Executor("0", "spark-a", slots=2, running=0),
        Executor("1", "spark-b", slots=1, running=0),
    )
    expect_free_slots({"worker 3": Resources(cores=1), "worker 4": Resources(cores=2)}, [a, b], {})


def test_more_cores_than_an_executor_has_are_refused_by_their_number() -> None:
    with pytest.raises(SetupError) as refused:
        expect_free_slots({"worker 3": Resources("spark-b", cores=3)}, [A0, B1, B2], BUSY)
    assert str(refused.value) == (
        "worker 3: its 3 cores are more than the 2 slots of host spark-b; name fewer, or run"
        " executors with more cores; hosts known: spark-a (executor 0: 1 of 2 slots free), spark-b"
        " (executor 1: 0 of 2 slots free, executor 2: 1 of 1 slots free)."
    )


def test_tasks_that_are_no_workers_of_the_flow_count_too() -> None:
    with pytest.raises(SetupError, match="2 of 2 slots run worker 1 and another task;"):
        expect_free_slots({"worker 3": Resources(executor="1")}, [B1], {"worker 1": B1.place})
    with pytest.raises(SetupError, match="2 of 2 slots run 2 other tasks;"):
        expect_free_slots({"worker 3": Resources(executor="1")}, [B1], {})


def test_an_executor_on_another_host_than_named_is_unknown() -> None:
    wrong = Resources(host="spark-a", executor="2")
    with pytest.raises(SetupError, match="Spark has no executor 2 on host spark-a; name another"):
        expect_free_slots({"worker 3": wrong}, [A0, B2], {})


def test_without_executors_the_error_says_so() -> None:
    with pytest.raises(SetupError, match="no executor has registered with the driver yet"):
        expect_free_slots({"worker 3": ON_B}, [], {})
