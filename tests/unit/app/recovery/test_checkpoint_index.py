"""The journal too says that there is a checkpoint: a flow never starts from scratch unasked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from meander.app.recovery.checkpoint_index import (
    CheckpointIndex,
    CheckpointRecorder,
    RetainedCheckpoints,
    earlier_checkpoints,
    expect_retained,
)
from meander.app.recovery.decision_log import from_bytes, to_bytes
from meander.dataflow.checkpoint.record_writer import Recorded
from meander.dataflow.control.decisions import (
    Decision,
    DropDecision,
    FirstCheckpointDecision,
    SavepointDecision,
    StartDecision,
)
from meander.schemas.errors import SetupError
from meander.state.checkpoint.checkpoint import INITIAL_CUT, Checkpoint, Cut
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import ExecutionId

LIFE = ExecutionId(5)
CHECKPOINT = Checkpoint(1, LIFE, BinSpace(8), 0, (), Cut(time=7))
FROM_SCRATCH = StartDecision(0, (), 1)
FROM_CHECKPOINT = replace(FROM_SCRATCH, checkpoint=0)


class Written:
    """What has been written, and whether it is durable."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.placed: int | None = None
        self.durable = False

    def write(self, one: Checkpoint) -> Callable[[], Recorded | None]:
        return lambda: None if self.placed is None else Recorded(self.placed, one)

    def writing(self, *, known: bool) -> Callable[[Checkpoint], Callable[[], Checkpoint | None]]:
        return CheckpointRecorder(self.write, print, print, self.journal, {}, known).write

    def journal(self, decision: Decision) -> Callable[[], bool]:
        self.decisions.append(decision)
        return lambda: self.durable


def test_the_first_checkpoint_of_a_flow_counts_once_the_journal_tells_of_it() -> None:
    written = Written()
    write = written.writing(known=False)
    done = write(CHECKPOINT)
    assert not done() and written.decisions == [], "told of only once it lies there"
    written.placed = 3
    assert not done() and written.decisions == [FirstCheckpointDecision(7)]
    written.durable = True
    assert done()
    assert write(replace(CHECKPOINT, number=2))() and written.decisions == [
        FirstCheckpointDecision(7)
    ]


@pytest.mark.parametrize("known", [False, True])
def test_a_savepoint_tells_by_itself_that_there_are_checkpoints(known: bool) -> None:
    written = Written()
    written.placed, written.durable = 3, True
    write = written.writing(known=known)
    assert write(replace(CHECKPOINT, savepoint="v1"))() and write(CHECKPOINT)()
    assert written.decisions == [SavepointDecision("v1", 3, 7)]


@pytest.mark.parametrize(
    "decided",
    [
        [FROM_SCRATCH, FirstCheckpointDecision(7)],
        [FROM_CHECKPOINT],
        [FROM_SCRATCH, SavepointDecision("v1", 0, 7), DropDecision("v1")],
    ],
)
def test_a_flow_that_has_had_a_checkpoint_does_not_begin_without(decided: list[Decision]) -> None:
    journal = [from_bytes(to_bytes(LIFE, one)) for one in decided]
    with pytest.raises(SetupError, match="meander reset counts lets it start from scratch"):
        expect_retained(CheckpointIndex.of(journal), "counts", "counts.checkpoints")


@pytest.mark.parametrize("decided", [[], [FROM_SCRATCH], [FROM_SCRATCH, FROM_SCRATCH]])
def test_a_flow_without_a_checkpoint_starts_from_nothing(decided: list[Decision]) -> None:
    expect_retained(
        CheckpointIndex.of((LIFE, one) for one in decided), "counts", "counts.checkpoints"
    )


def started(*decided: tuple[int, StartDecision]) -> CheckpointIndex:
    return CheckpointIndex.of((ExecutionId(life), one) for life, one in decided)


def on(checkpoint: int, oldest: int) -> StartDecision:
    return replace(FROM_CHECKPOINT, checkpoint=checkpoint, oldest=oldest)


def taken_by(life: int) -> Checkpoint:
    return replace(CHECKPOINT, execution=ExecutionId(life))


@pytest.mark.parametrize(
    ("life", "offset", "there"),
    [
        (1, 1, False),  # let go before the last has begun
        (1, 2, True),
        (1, 3, True),  # with this the second has begun
        (1, 4, False),  # and what has come since is of nobody
        (2, 5, True),
        (2, 6, False),
        (3, 7, True),
    ],
)
def test_the_checkpoint_of_an_execution_counts_and_those_it_may_be_restored_from(
    life: int, offset: int, there: bool
) -> None:
    known = started((1, FROM_SCRATCH), (2, on(3, 1)), (3, on(5, 2)))
    assert known.is_usable(offset, taken_by(life)) == there


def test_what_is_gone_back_behind_counts_no_more() -> None:
    known = started((1, on(0, 0)), (2, on(3, 0)), (3, on(5, 2)), (4, on(2, 1)))
    assert known.is_usable(1, taken_by(1)) and known.is_usable(2, taken_by(1))
    assert known.is_usable(6, taken_by(4))
    assert not any(known.is_usable(3, taken_by(life)) for life in (1, 2, 3))


def test_no_checkpoint_counts_from_before_a_new_start() -> None:
    known = started((1, FROM_SCRATCH), (2, on(3, 0)), (3, FROM_SCRATCH))
    assert not known.is_usable(0, taken_by(1)) and not known.is_usable(4, taken_by(2))


def test_of_a_journal_that_does_not_say_how_far_back_nothing_earlier_counts() -> None:
    known = started((1, FROM_SCRATCH), (2, replace(FROM_CHECKPOINT, checkpoint=3)))
    assert known.is_usable(3, taken_by(1)) and not known.is_usable(2, taken_by(1))


def test_states_written_for_a_flow_are_past_once_it_has_a_checkpoint_of_its_own() -> None:
    """To begin with them again would say again all that is out."""
    written, writer = replace(CHECKPOINT, cut=INITIAL_CUT), ExecutionId(1)
    journal: list[tuple[ExecutionId, Decision]] = [
        (writer, FirstCheckpointDecision(0)),
        (LIFE, FROM_SCRATCH),
    ]
    assert CheckpointIndex.of(journal).is_usable(0, written)
    assert not CheckpointIndex.of([*journal, (LIFE, FirstCheckpointDecision(7))]).is_usable(
        0, written
    )
    assert not CheckpointIndex.of([*journal, (ExecutionId(9), FROM_CHECKPOINT)]).is_usable(
        0, written
    )


def test_what_is_kept_besides_is_as_many_as_are_wanted_and_no_savepoint() -> None:
    among = RetainedCheckpoints({offset: taken_by(5) for offset in range(6)}, {})
    known = CheckpointIndex.of(
        [
            (LIFE, FROM_SCRATCH),
            (LIFE, SavepointDecision("v1", 0, 7)),
            (LIFE, SavepointDecision("v2", 3, 7)),
        ]
    )
    assert [*earlier_checkpoints(among, known, 5, 2)] == [2, 4]
    assert [*earlier_checkpoints(among, known, 5, 9)] == [1, 2, 4] and not earlier_checkpoints(
        among, known, 5, 0
    )
