"""A beginning that reaches the journal behind that of a later claim counts for nothing (I8)."""

from __future__ import annotations

import random

import numpy as np

from meander.app.recovery.checkpoint_index import CheckpointIndex
from meander.dataflow.control.decisions import (
    Decision,
    FirstCheckpointDecision,
    JoinDecision,
    SavepointDecision,
    StartDecision,
)
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.exactly_once.commit_history import History, Written
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, ExecutionId, WorkerId
from tests.support.property.budget import FIRST_SEED

SPACE, WORKERS, CASES = BinSpace(1), 3, 300


def test_a_late_beginning_changes_nothing_that_is_read_from_the_journal() -> None:
    late = 0
    for seed in range(FIRST_SEED, FIRST_SEED + CASES):
        rng = random.Random(f"late {seed}")
        journal, begun = decided(rng)
        disturbed = with_late(rng, journal)
        late += len(disturbed) - len(journal)
        assert CheckpointIndex.of(disturbed) == CheckpointIndex.of(journal), f"seed {seed}"
        markers = [
            CommitMarker(life, WorkerId(worker), {"sink": rng.randrange(200)})
            for life in begun
            for worker in range(WORKERS)
        ]
        assert out(disturbed, markers) == out(journal, markers), f"seed {seed}"
    assert late > CASES


def decided(rng: random.Random) -> tuple[list[Written], list[ExecutionId]]:
    """Some drivers' journal, each with some executions, and the executions of these."""
    journal, begun, execution = list[Written](), list[ExecutionId](), 0
    for _ in range(rng.randint(1, 4)):
        execution += rng.randint(3, 10)
        for _ in range(rng.randint(1, 3)):
            life = ExecutionId(execution := execution + 1)
            begun.append(life)
            journal.append((life, start(rng, from_scratch=len(begun) == 1)))
            journal += [(life, decision(rng)) for _ in range(rng.randint(0, 4))]
        # One more than those that are told of: it begins too late, if ever.
        execution += 1
    return journal, begun


def with_late(rng: random.Random, journal: list[Written]) -> list[Written]:
    """Put beginnings of earlier executions at random places behind later ones."""
    found = list(journal)
    for _ in range(rng.randint(1, 4)):
        place = rng.randint(1, len(found))
        last = max(life for life, one in found[:place] if isinstance(one, StartDecision))
        earlier = ExecutionId(rng.randint(0, last - 1))
        found.insert(place, (earlier, start(rng, from_scratch=rng.random() < 0.3)))
    return found


def start(rng: random.Random, *, from_scratch: bool) -> StartDecision:
    owners = tuple(WorkerId(rng.randrange(WORKERS)) for _ in range(SPACE.count))
    checkpoint = None if from_scratch else rng.randrange(20)
    return StartDecision(rng.randrange(100), owners, WORKERS, checkpoint, oldest=checkpoint)


def decision(rng: random.Random) -> Decision:
    time = rng.randrange(200)
    worker = WorkerId(rng.randrange(WORKERS))
    some: list[Decision] = [
        Moves(f"m{rng.random()}", time, worker, (Bin(rng.randrange(SPACE.count)),)),
        SavepointDecision(f"s{rng.randrange(3)}", rng.randrange(20), time),
        FirstCheckpointDecision(time),
        JoinDecision(WorkerId(WORKERS + rng.randrange(3)), time),
    ]
    return rng.choice(some)


def out(journal: list[Written], markers: list[CommitMarker]) -> list[object]:
    """Who has committed each result, as a history says."""
    earlier = History(SPACE, journal, markers).of("sink", 0)
    bins, times = np.repeat(np.arange(SPACE.count), 200), np.tile(np.arange(200), SPACE.count)
    who = [*earlier.previous_workers, None]
    return [who[number] for number in earlier.committed_by(bins, times)]
