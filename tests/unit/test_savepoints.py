"""That there is a checkpoint is known by the journal too: a flow never begins anew unasked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from app.journal import from_bytes, to_bytes
from app.savepoints import Known, Writing, expect_kept
from dataflow.decisions import Begins, Decision, Drops, Keeps, Takes
from schemas.errors import SetupError
from state.bins import BinSpace
from state.checkpoint import Checkpoint, Cut
from state.ids import Incarnation

LIFE = Incarnation(5)
CHECKPOINT = Checkpoint(1, LIFE, BinSpace(8), 0, (), Cut(time=7))
ANEW, GOES_ON = Begins(0, (), 1), Begins(0, (), 1, checkpoint=0)


class Written:
    """What has been written, and whether it is durable."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.placed: int | None = None
        self.durable = False

    def write(self, _: Checkpoint) -> Callable[[], int | None]:
        return lambda: self.placed

    def writing(self, *, known: bool) -> Callable[[Checkpoint], Callable[[], bool]]:
        return Writing(self.write, print, print, self.journal, {}, known).write

    def journal(self, decision: Decision) -> Callable[[], bool]:
        self.decisions.append(decision)
        return lambda: self.durable


def test_the_first_checkpoint_of_a_flow_counts_once_the_journal_tells_of_it() -> None:
    written = Written()
    write = written.writing(known=False)
    done = write(CHECKPOINT)
    assert not done() and written.decisions == [], "told of only once it lies there"
    written.placed = 3
    assert not done() and written.decisions == [Takes(7)]
    written.durable = True
    assert done()
    assert write(replace(CHECKPOINT, number=2))() and written.decisions == [Takes(7)]


@pytest.mark.parametrize("known", [False, True])
def test_a_savepoint_tells_by_itself_that_there_are_checkpoints(known: bool) -> None:
    written = Written()
    written.placed, written.durable = 3, True
    write = written.writing(known=known)
    assert write(replace(CHECKPOINT, savepoint="v1"))() and write(CHECKPOINT)()
    assert written.decisions == [Keeps("v1", 3, 7)]


@pytest.mark.parametrize(
    "decided", [[ANEW, Takes(7)], [GOES_ON], [ANEW, Keeps("v1", 0, 7), Drops("v1")]]
)
def test_a_flow_that_has_had_a_checkpoint_does_not_begin_without(decided: list[Decision]) -> None:
    journal = [from_bytes(to_bytes(LIFE, one)) for one in decided]
    with pytest.raises(SetupError, match="meander reset counts has it begin anew"):
        expect_kept(Known.by(journal), "counts", "counts.checkpoints")


@pytest.mark.parametrize("decided", [[], [ANEW], [ANEW, ANEW]])
def test_a_flow_that_has_had_none_begins_anew(decided: list[Decision]) -> None:
    expect_kept(Known.by((LIFE, one) for one in decided), "counts", "counts.checkpoints")
