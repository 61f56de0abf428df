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


def counts(journal: list[tuple[int, Decision]], life: int, offset: int) -> bool:
    known = Known.by((Incarnation(one), decision) for one, decision in journal)
    return known.counts(offset, replace(CHECKPOINT, incarnation=Incarnation(life)))


@pytest.mark.parametrize(
    ("life", "offset", "there"),
    [
        (1, 2, True),  # taken before that with which the second began
        (1, 3, True),
        (1, 4, False),  # and since
        (2, 5, True),
        (2, 6, False),
        (3, 7, True),
    ],
)
def test_what_a_life_has_gone_on_from_counts_and_what_came_before_it(
    life: int, offset: int, there: bool
) -> None:
    begins = [ANEW, replace(GOES_ON, checkpoint=3), replace(GOES_ON, checkpoint=5)]
    assert counts([*enumerate(begins, 1)], life, offset) == there


def test_what_is_gone_back_behind_counts_no_more() -> None:
    begins = [(n, replace(GOES_ON, checkpoint=at)) for n, at in ((1, 0), (2, 3), (3, 5), (4, 2))]
    assert counts([*begins], 1, 2) and counts([*begins], 4, 6)
    assert not any(counts([*begins], life, 3) for life in (1, 2, 3))


def test_nothing_counts_that_was_before_a_flow_has_begun_anew() -> None:
    begins = [(1, ANEW), (2, replace(GOES_ON, checkpoint=3)), (3, ANEW)]
    assert not counts([*begins], 1, 0) and not counts([*begins], 2, 4)
