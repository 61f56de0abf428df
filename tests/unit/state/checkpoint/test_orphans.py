"""I5: what lies on the state and in-flight topics after many lives is what those checkpoints name
that are kept, and no more than that; each of them can be gone back to, and a savepoint outlives
them all."""

from __future__ import annotations

import pytest

from meander import Flow
from meander.dataflow.checkpoint.checkpoint_writer import CheckpointWriter
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import DurableWorld, TakeCheckpoint
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.keys.ids import execution_of
from meander.state.layers.bin_layers import BinLayers
from meander.state.layers.manifest import Manifest
from meander.testing import TestFlow

LINES = [[(n, f"w{n % 40}") for n in range(p, 2400, 3)] for p in range(3)]
EXECUTIONS, EACH, RECORDS = 4, 3, 40


def counting() -> Flow:
    flow = Flow("counts", bins=3, snapshot_interval=0.01)
    words = flow.source(ListSource(LINES)).key_by(lambda word: word)
    words.fold("n", lambda: 0, lambda n, word: (n + 1, [word, n + 1])).sink(ListSink())
    return flow


def until_read(run: TestFlow, more: int) -> None:
    goal = run.counters["read"] + more
    while run.counters["read"] < goal:
        run.act()


def take(run: TestFlow, savepoint: str = "") -> None:
    before = len(run.world.checkpoints)
    run.inject(TakeCheckpoint(savepoint=savepoint))
    while len(run.world.checkpoints) == before:
        run.act()


def lives(flow: Flow, world: DurableWorld | None, seed: int, count: int) -> DurableWorld:
    """Each takes some checkpoints, and is killed in the midst of another."""
    for life in range(count):
        with TestFlow(flow, 2, 100 * seed + life, world=world) as run:
            for _ in range(EACH):
                until_read(run, RECORDS)
                take(run)
            until_read(run, RECORDS)
            run.inject(TakeCheckpoint())
            for _ in range(200):
                run.act()
            world = run.world
    assert world is not None
    return world


def in_flight(kept: list[Checkpoint]) -> set[bytes]:
    return {place.key for one in kept for place in one.locations}


def chunks(kept: list[Checkpoint]) -> set[bytes]:
    return {place.key for one in kept for place in one.chunks}


@pytest.mark.parametrize("seed", range(2))
def test_orphans_of_killed_executions_do_not_pile_up(seed: int) -> None:
    flow = counting()
    world = lives(flow, None, seed, EXECUTIONS)
    with TestFlow(flow, 2, seed, world=world):
        flying, layers = world.in_flight.keys, world.state.keys
    kept = world.checkpoints[-3:]
    assert flying == in_flight(kept), "what it begins with, or can go back to, and no more"
    assert layers == chunks(kept)


@pytest.mark.parametrize("back", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_a_flow_can_be_restored_from_before_the_checkpoint_of_an_execution(
    seed: int, back: int
) -> None:
    flow = counting()
    world = lives(flow, None, seed, EXECUTIONS)
    with TestFlow(flow, 2, seed, world=world) as run:
        until_read(run, RECORDS)
        assert run.world.restored is run.world.checkpoints[-1], "it has taken none of its own"
    del world.checkpoints[-back:]
    with TestFlow(flow, 3, seed, world=world) as run:
        run.run()
        assert run.states("n") == {f"w{n}": 60 for n in range(40)}


@pytest.mark.parametrize("seed", range(2))
def test_checkpoints_of_earlier_executions_go_as_new_ones_come(seed: int) -> None:
    flow = counting()
    world = lives(flow, None, seed, 2)
    with TestFlow(flow, 2, seed, world=world) as run:
        life = world.execution
        for _ in range(EACH + 1):
            until_read(run, RECORDS)
            take(run)
            while run.sim.coordinator.checkpoints.under_way:
                run.act()
            # Workers hear of it with the next that one is kept no longer.
            kept, before = world.checkpoints[-3:], world.checkpoints[-4:]
            flying, layers = world.in_flight.keys, world.state.keys
            assert in_flight(kept) <= flying and chunks(kept) <= layers, "all that they name"
            assert {key for key in flying if (execution_of(key) or 0) < life} <= in_flight(kept)
            assert {key for key in layers if (execution_of(key) or 0) < life} <= chunks(before)


@pytest.mark.parametrize("seed", range(2))
def test_a_savepoint_is_whole_after_many_executions(seed: int) -> None:
    flow = counting()
    with TestFlow(flow, 2, seed) as run:
        until_read(run, RECORDS)
        take(run, "early")
        world = run.world
    (early,) = world.savepoints
    world = lives(flow, world, seed, EXECUTIONS)
    world.checkpoints = [early]
    with TestFlow(flow, 3, seed, world=world) as run:
        assert world.restored is early
        run.run()
        assert run.states("n") == {f"w{n}": 60 for n in range(40)}


@pytest.mark.parametrize("seed", range(2))
def test_no_checkpoint_names_a_layer_that_has_proved_unreadable(seed: int) -> None:
    """It proves so after the checkpoint has noted it, and before the checkpoint is whole."""
    with TestFlow(counting(), 2, seed) as run:
        until_read(run, RECORDS)
        take(run)
        until_read(run, RECORDS)
        run.inject(TakeCheckpoint())
        noted = None
        while noted is None:
            run.act()
            noted = next(filter(None, map(noted_by, run.workers)), None)
        trace, manifest = noted
        trace.schedule_rewrite(manifest.bin)
        spoilt = {layer.id for layer in manifest.layers}
        while not any(event["type"] == "checkpoint_failed" for event in run.events):
            run.act()
        (failed,) = (one for one in run.events if one["type"] == "checkpoint_failed")
        assert failed["reason"] == (
            f"a layer of bin {manifest.bin} of operator 'n' is unreadable; the next checkpoint"
            " writes the bin again"
        )
        take(run)
        *_, last = run.world.checkpoints
        assert last.number == 3, "the one that would have named it is none"
        assert not spoilt & {layer.id for one in last.manifests for layer in one.layers}
        run.run()


def noted_by(worker: Worker) -> tuple[BinLayers, Manifest] | None:
    """What a worker has noted for a checkpoint of which its part is not whole."""
    contents = worker.parts.snapshots._contents
    if not isinstance(contents, CheckpointWriter) or contents.done:
        return None
    states = contents._states
    noted = (one for one in states.manifests if one.layers)
    return next(((states._bin_layers[one.operator], one) for one in noted), None)
