"""The rows of an arrangement at a time are those of a checkpoint that tells them, else an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from meander import Flow
from meander.dataflow.api.plan import Plan
from meander.dataflow.collections.dictionary import Dictionary
from meander.dataflow.operators.collection.checkpointed_rows import (
    CollectionRows,
    find_arrangement,
    newest_time,
    rows_at,
)
from meander.dataflow.operators.collection.stored_updates import PIECE_ROWS, StoredUpdates
from meander.dataflow.operators.collection.updates import UpdateCoding
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import SetupError
from meander.state.checkpoint.arrangements import KeptArrangement, OperatorFrontier
from meander.state.checkpoint.checkpoint import Checkpoint, Cut
from meander.state.collections.layer import Updates
from meander.state.encoding.object_column import ObjectColumn
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, ExecutionId
from meander.state.store.store import Database, Store
from meander.state.times.time import END_TIME, MIN_TIME, from_millis

DEGREE = KeptArrangement("degree", "output", "degree", 0)
EDGES = KeptArrangement("degree", "input", "edges", 0)
SIDES = (KeptArrangement("hops", "left", "hops", 0), KeptArrangement("hops", "right", "edges", 0))
SPACE = BinSpace(0)
Entries = list[tuple[bytes, bytes]]


def checkpoint(frontier: int = END_TIME) -> Checkpoint:
    """A checkpoint of a reduction and a join."""
    frontiers = (OperatorFrontier("degree", frontier), OperatorFrontier("edges", frontier))
    cut = Cut(arrangements=(DEGREE, EDGES, *SIDES), frontiers=frontiers)
    return Checkpoint(4, ExecutionId(1), SPACE, 0, (), cut)


NUMBERS = UpdateCoding(Dictionary(), key=False, value=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    database = Database(tmp_path / "states", 8 << 20)
    yield database.store("degree")
    database.close()


def updates(*rows: tuple[int, int, int, int]) -> Updates:
    """Updates of rows (key, value, millisecond, diff)."""
    return Updates.of([(key, value, (from_millis(ms),), diff) for key, value, ms, diff in rows])


def listed(rows: CollectionRows) -> list[tuple[int, int, int]]:
    columns = rows.keys.tolist(), rows.values.tolist(), rows.counts.tolist()
    return [*zip(*columns, strict=True)]


def written(store: Store, some: Updates, coding: UpdateCoding = NUMBERS) -> list[Entries]:
    stored = StoredUpdates(
        store, SPACE, lambda *_: (MIN_TIME, iter(())), coding.dictionary, [coding]
    )
    stored.add(0, some)
    stored.write()
    return [[*store.scan(bin)] for bin in store.bins()]


def rewritten(store: Store, since: int, rows: Sequence[Updates]) -> list[Entries]:
    """The entries of a bin that has been rewritten with the rows of its arrangement."""
    stored = StoredUpdates(
        store, SPACE, lambda *_: (since, iter(rows)), NUMBERS.dictionary, [NUMBERS]
    )
    stored.load(Bin(0))
    stored.add(0, updates(*[(9, n, 1, 1) for n in range(PIECE_ROWS + 9)]))
    stored.write()
    assert stored.compact(1), "the bin was due"
    return [[*store.scan(Bin(0))]]


def test_rows_are_sorted_by_key_and_value_and_count_up_to_the_end_of_a_millisecond(
    store: Store,
) -> None:
    bins = written(store, updates((7, 2, 5, 1), (-3, 9, 5, 2), (7, 1, 5, 1), (7, 2, 6, -1)))
    found = {ms: listed(rows_at(checkpoint(), DEGREE, bins, ms)) for ms in (4, 5, 6)}
    assert found == {4: [], 5: [(-3, 9, 2), (7, 1, 1), (7, 2, 1)], 6: [(-3, 9, 2), (7, 1, 1)]}
    assert listed(rows_at(checkpoint(), DEGREE, bins, None)) == found[6]
    assert listed(rows_at(checkpoint(), DEGREE, bins, 5).of_key("7")) == [(7, 1, 1), (7, 2, 1)]


def test_python_values_are_shown_and_found(store: Store) -> None:
    coding = UpdateCoding(Dictionary(), key=True, value=False)
    keys = coding.dictionary.codes(ObjectColumn.of(["Rome", "7", (1, 2)]))
    one = np.ones(3, np.int64)
    some = Updates(keys, np.arange(3), np.full((3, 1), from_millis(5)), one)
    rows = rows_at(checkpoint(), DEGREE, written(store, some, coding), None)
    assert {*rows.keys.tolist()} == {"Rome", "7", (1, 2)}
    for text, value in (("Rome", 0), ("7", 1), ("Oslo", None)):
        assert rows.of_key(text).values.tolist() == ([] if value is None else [value])


def test_a_time_that_the_checkpoint_has_not_completed_is_refused(store: Store) -> None:
    bins = written(store, updates((7, 1, 5, 1), (7, 2, 9, 1)))
    early = checkpoint(from_millis(9))
    assert listed(rows_at(early, DEGREE, bins, None)) == [(7, 1, 1)]
    assert listed(rows_at(early, DEGREE, bins, 8)) == [(7, 1, 1)]
    with pytest.raises(SetupError) as refused:
        rows_at(early, DEGREE, bins, 9)
    assert str(refused.value) == (
        "arrangement 'output' of operator 'degree' at 9 ms, checkpoint 4: the checkpoint is"
        " complete up to 8 ms; give --as-of 8 or earlier, leave it out, or take a later checkpoint."
    )
    with pytest.raises(SetupError, match="operator 'degree' had completed no time"):
        newest_time(checkpoint(MIN_TIME), DEGREE)


def test_a_time_before_a_rewrite_is_refused_and_a_later_one_answered(store: Store) -> None:
    bins = rewritten(store, from_millis(6) - 1, [updates((7, 1, 0, 1), (7, 2, 8, 1))])
    assert listed(rows_at(checkpoint(), DEGREE, bins, 5)) == [(7, 1, 1)]
    assert listed(rows_at(checkpoint(), DEGREE, bins, 8)) == [(7, 1, 1), (7, 2, 1)]
    with pytest.raises(SetupError) as refused:
        rows_at(checkpoint(), DEGREE, bins, 4)
    assert str(refused.value) == (
        "arrangement 'output' of operator 'degree' at 4 ms, checkpoint 4: its rows no longer tell"
        " apart times before 5 ms; give --as-of 5 or later, or an earlier --checkpoint."
    )
    with pytest.raises(SetupError, match="name a later --checkpoint"):
        rows_at(checkpoint(from_millis(3)), DEGREE, bins, None)


def test_a_bin_keeps_the_refused_times_of_its_earlier_owner(store: Store) -> None:
    rewritten(store, from_millis(6) - 1, [updates((7, 1, 0, 1))])
    bins = rewritten(store, from_millis(3) - 1, [updates((7, 1, 0, 1))])
    with pytest.raises(SetupError, match="before 5 ms"):
        rows_at(checkpoint(), DEGREE, bins, 3)


def test_an_arrangement_is_found_where_it_is_kept() -> None:
    assert find_arrangement(checkpoint(), "degree", None) == DEGREE
    assert find_arrangement(checkpoint(), "degree", "input") == EDGES
    assert find_arrangement(checkpoint(), "hops", "right") == SIDES[1]


@pytest.mark.parametrize(
    ("operator", "name", "sentence"),
    [
        (
            "sink",
            None,
            (
                "operator 'sink': checkpoint 4 has no collection of an operator of that name;"
                " name one of these: degree, hops."
            ),
        ),
        (
            "hops",
            None,
            (
                "operator 'hops': it keeps no answer; name one of its arrangements:"
                " --arrangement left, --arrangement right."
            ),
        ),
        (
            "degree",
            "left",
            (
                "operator 'degree': it has no arrangement 'left'; name one of its arrangements:"
                " --arrangement output, --arrangement input."
            ),
        ),
    ],
)
def test_an_unknown_arrangement_is_refused_with_those_that_there_are(
    operator: str, name: str | None, sentence: str
) -> None:
    with pytest.raises(SetupError) as refused:
        find_arrangement(checkpoint(), operator, name)
    assert str(refused.value) == sentence


def test_a_plan_knows_which_operator_keeps_each_arrangement() -> None:
    flow = Flow("f")
    rows = flow.source(ListSource([[]])).collection(lambda record: record)
    shared = rows.arrange("shared")
    one = shared.join("one", rows, lambda key, left, right: (key, left))
    both = one.join("both", rows, lambda key, left, right: (key, left))
    both.distinct("own").changes().sink(ListSink())
    shared.distinct("once").count("count").changes().sink(ListSink())
    assert Plan(flow).arrangements == (
        KeptArrangement("shared", "output", "shared", 0),
        KeptArrangement("one", "left", "shared", 0),
        KeptArrangement("one", "right", "one", 0),
        KeptArrangement("both", "left", "both", 0),
        KeptArrangement("both", "right", "both", 1),
        KeptArrangement("own", "output", "own", 0),
        KeptArrangement("own", "input", "own", 1),
        KeptArrangement("once", "output", "once", 0),
        KeptArrangement("once", "input", "shared", 0),
        KeptArrangement("count", "output", "count", 0),
    )
