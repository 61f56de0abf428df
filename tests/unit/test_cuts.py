"""I5 at cuts that random flows come to seldom: while states are being loaded, behind a worker that
has joined, and by a command that comes too often."""

from __future__ import annotations

import pytest

from dataflow import Flow, restore
from dataflow.sim import Freeze, Join, World
from dataflow.testing import ListSink, ListSource, TestFlow

LINES = [[(n, f"w{n % 40}") for n in range(p, 1200, 3)] for p in range(3)]


def counting(checkpoint_interval: float | None = None) -> Flow:
    flow = Flow("counts", bins=1, snapshot_interval=0.01, checkpoint_interval=checkpoint_interval)
    words = flow.source(ListSource(LINES)).key_by(lambda word: word)
    words.fold("n", lambda: 0, lambda n, word: (n + 1, [word, n + 1])).sink(ListSink())
    return flow


def until_read(run: TestFlow, records: int) -> None:
    while run.counters["read"] < records:
        run.act()


def until_taken(run: TestFlow) -> None:
    """A checkpoint, as soon as can be."""
    before = len(run.world.checkpoints)
    run.strike(Freeze())
    while len(run.world.checkpoints) == before:
        run.act()


def first_life(flow: Flow, seed: int, workers: int = 2) -> World:
    with TestFlow(flow, workers, seed) as run:
        until_read(run, 400)
        until_taken(run)
        until_read(run, 600)
        until_taken(run)
        return run.world


def all_counted(run: TestFlow) -> bool:
    return run.states("n") == {f"w{n}": 30 for n in range(40)}


@pytest.mark.parametrize("seed", range(8))
def test_a_bin_of_which_a_part_is_loaded_is_in_the_cut_as_it_lies_on_the_topic(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = counting()
    world = first_life(flow, seed)
    monkeypatch.setattr(restore, "ENTRIES", 3)
    with TestFlow(flow, 2, seed, world=world) as run:
        while not any(worker.state()["n"] for worker in run.workers):
            run.act()
        assert any(worker.loading and worker.state()["n"] for worker in run.workers)
        until_taken(run)
    with TestFlow(flow, 3, seed, world=world) as run:
        run.run()
        assert all_counted(run)


@pytest.mark.parametrize("seed", range(4))
def test_who_has_joined_forgets_no_layer_that_a_checkpoint_names(seed: int) -> None:
    flow = counting()
    with TestFlow(flow, 1, seed) as run:
        until_read(run, 300)
        until_taken(run)
        run.strike(Join())
        run.control({"type": "migrate", "id": "m", "bins": "all", "worker": 1})
        while not any(event["type"] == "completed" for event in run.events):
            run.act()
        until_read(run, 1000)
        world = run.world
    with TestFlow(flow, 2, seed, world=world) as run:
        run.run()
        assert all_counted(run)


def test_one_checkpoint_is_taken_at_a_time() -> None:
    with TestFlow(counting(), 2) as run:
        until_read(run, 100)
        run.strike(Freeze())
        run.strike(Freeze())
        (refused,) = [event for event in run.events if event["type"] == "rejected"]
        assert "a checkpoint is being taken" in str(refused["reason"])
        run.run()
    assert len(run.world.checkpoints) == 1


def test_a_checkpoint_is_taken_as_often_as_the_flow_says() -> None:
    with TestFlow(counting(checkpoint_interval=0.05), 2) as run:
        run.run()
        numbers = [one.number for one in run.world.checkpoints]
        assert len(numbers) >= 3
        assert numbers == [*range(1, 1 + len(numbers))]
