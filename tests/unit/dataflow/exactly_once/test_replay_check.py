"""What comes again is compared with what was out, all that is sure to, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from meander.dataflow.control.decisions import StartDecision
from meander.dataflow.control.instructions import Revoke
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.reports import ResultsSuppressed
from meander.dataflow.exactly_once.checksum import Checksum, CommittedChecksum
from meander.dataflow.exactly_once.commit_history import (
    NOT_COMMITTED,
    History,
    PreviousWorker,
    Written,
)
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.exactly_once.replay_check import Replays
from meander.schemas.errors import MeanderError
from meander.schemas.status import ReplayChecked
from meander.state.checkpoint.checkpoint import ReplayFrom
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, ExecutionId, WorkerId

Row = tuple[int, bytes | None, bytes | None]
ROWS: Sequence[Row] = [
    (1, b"a", b"1"),
    (1, b"a", b"2"),
    (2, None, b"1"),
    (2, b"", b"1"),
    (3, b"b", None),
]
ZERO, ONE = WorkerId(0), WorkerId(1)
FIRST, SECOND, NOW = ExecutionId(5), ExecutionId(6), ExecutionId(7)


def tally(rows: Sequence[Row]) -> Checksum:
    times, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
    return Checksum.of(np.array(times, np.int64), keys, values)


def test_a_tally_is_the_same_in_whatever_order_and_parts() -> None:
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    assert tally(shuffled) == tally(ROWS)
    assert tally(shuffled[:2]) + tally(shuffled[2:]) == tally(ROWS)
    assert tally(ROWS) - tally(ROWS[:3]) == tally(ROWS[3:])
    assert tally([]) == Checksum(0, 0)


@pytest.mark.parametrize(
    "other",
    [
        (1, b"b", b"1"), (2, b"a", b"1"), (1, b"a", b"3"), (1, b"1", b"a"), (1, None, b"1"),
        (1, b"a", None), (1, b"a1", b""), (1, b"", b"a1"),
    ],
)  # fmt: skip
def test_a_tally_is_another_with_another_time_key_or_value(other: Row) -> None:
    found = tally([other, *ROWS[1:]])
    assert found.count == len(ROWS)
    assert found != tally(ROWS)


def test_a_tally_is_another_where_a_result_stands_for_two() -> None:
    """Which a checksum by exclusive or would miss."""
    assert tally([ROWS[0]] * 3) != tally([ROWS[0], ROWS[1], ROWS[1]])


def marker(
    life: ExecutionId, time: int, since: int, rows: int, worker: WorkerId = ZERO
) -> CommitMarker:
    out = CommittedChecksum(since, Checksum(rows, 100 * life + rows))
    return CommitMarker(life, worker, {"sink": time}, checksums={"sink": out})


def history(
    markers: Sequence[CommitMarker], replay_from: Sequence[ReplayFrom] = (ReplayFrom("sink", 10),)
) -> History:
    """Of two lives, and of a third that begins where results come again from a time on."""
    begins = StartDecision(0, (ZERO, ONE), 2)
    goes_on = replace(begins, checkpoint=1, replay_from=tuple(replay_from))
    journal = (FIRST, begins), (SECOND, replace(begins, checkpoint=1)), (NOW, goes_on)
    return History(BinSpace(1), journal, markers)


def claims(*markers: CommitMarker) -> Mapping[PreviousWorker, CommittedChecksum]:
    return history(markers).claims("sink")


def test_a_transaction_counts_if_all_of_it_comes_again() -> None:
    markers = [
        marker(FIRST, 8, 2, 4),
        marker(FIRST, 12, 9, 5),
        marker(FIRST, 20, 12, 6),
        marker(FIRST, 30, 21, 7),
    ]
    out = CommittedChecksum(12, Checksum(13, 1013))
    assert claims(*markers) == {PreviousWorker(FIRST, ZERO): out}


def test_each_worker_of_each_execution_has_its_own() -> None:
    markers = marker(FIRST, 20, 12, 6), marker(SECOND, 30, 20, 7), marker(SECOND, 30, 10, 3, ONE)
    assert claims(*markers) == {
        PreviousWorker(FIRST, ZERO): CommittedChecksum(12, Checksum(6, 506)),
        PreviousWorker(SECOND, ZERO): CommittedChecksum(20, Checksum(7, 607)),
        PreviousWorker(SECOND, ONE): CommittedChecksum(10, Checksum(3, 603)),
    }


def test_markers_that_do_not_say_what_is_out_are_not_compared() -> None:
    older = CommitMarker(FIRST, ZERO, {"sink": 15})
    assert claims(older, marker(SECOND, 30, 20, 7)).keys() == {PreviousWorker(SECOND, ZERO)}


def test_no_result_is_compared_where_the_start_of_the_replay_is_unknown() -> None:
    known = history([marker(FIRST, 20, 12, 6)], replay_from=[ReplayFrom("other", 3)])
    assert not known.claims("sink")
    assert known.replay_from("sink") == 20, "what is out by now may be let go of by now"
    assert known.replay_from("other") == 3


def test_a_result_is_whose_it_was_first() -> None:
    """A later life has suppressed it, though its markers are later, too."""
    markers = marker(FIRST, 20, 12, 6), marker(SECOND, 30, 20, 7), marker(SECOND, 25, 20, 7, ONE)
    earlier = history(markers).of("sink", 0)
    whose = earlier.committed_by(np.array([0, 0, 0, 1, 1]), np.array([19, 20, 30, 19, 25]))
    found = [None if number < 0 else earlier.previous_workers[number] for number in whose]
    assert found == [
        PreviousWorker(FIRST, ZERO), PreviousWorker(SECOND, ZERO), None,
        PreviousWorker(SECOND, ONE), None,
    ]  # fmt: skip


def replays(accept: bool = False) -> Replays:
    """Of two workers, which must give six results of a worker."""
    return Replays(history([marker(FIRST, 20, 12, 6)]), {"sink": ["n"]}, [ZERO, ONE], accept)


def test_results_are_compared_once_all_earlier_members_have_reported_theirs() -> None:
    found = replays()
    assert found.report(ZERO, ResultsSuppressed("sink", [(FIRST, ZERO, 4, 500)])) == []
    found.join(WorkerId(2))
    assert found.report(ONE, ResultsSuppressed("sink", [(FIRST, ZERO, 2, 6)])) == []
    assert found.awaited == ["sink"]
    said = found.report(WorkerId(2), ResultsSuppressed("sink", []))
    assert said == [ReplayChecked("sink", 6, [])]
    assert not found.awaited


@pytest.mark.parametrize(
    ("count", "digest", "said"),
    [(5, 506, "5 came again"), (6, 507, "as many, but others"), (7, 506, "7 came again")],
)
def test_a_flow_whose_replay_gives_others_ends_unless_it_accepts_them(
    count: int, digest: int, said: str
) -> None:
    wrong = f"worker 0 of execution 5 committed 6, and {said}"
    for accept in (False, True):
        found = replays(accept)
        found.report(ONE, ResultsSuppressed("sink", []))
        if accept:
            (event,) = found.report(ZERO, ResultsSuppressed("sink", [(FIRST, ZERO, count, digest)]))
            assert event.wrong == [wrong]
            continue
        with pytest.raises(MeanderError) as caught:
            found.report(ZERO, ResultsSuppressed("sink", [(FIRST, ZERO, count, digest)]))
        assert caught.value.subject == "sink 'sink'"
        assert wrong in caught.value.cause
        assert "have 'n' give the same" in caught.value.remedy
        assert "--allow-nondeterminism" in caught.value.remedy


def test_a_move_that_was_called_off_moves_nothing_in_a_history() -> None:
    """I5: what the owner that stayed has committed is out."""
    moves = Moves("m", 50, ONE, (Bin(0),))
    decided = StartDecision(0, (ZERO,) * 2, 2), moves, Revoke("m", 50)
    told: list[Written] = [(FIRST, one) for one in decided]
    markers = [CommitMarker(FIRST, ZERO, {"sink": 100})]
    for journal, found in ((told, [0, 0]), (told[:2], [0, NOT_COMMITTED])):
        earlier = History(BinSpace(1), journal, markers).of("sink", 0)
        assert earlier.committed_by(np.array([0, 0]), np.array([40, 80])).tolist() == found
