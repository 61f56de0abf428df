"""Collections in flows on simulated workers: bad records, bad functions, and loops without end."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest

from meander import Checkpointing, Flow
from meander.app.flows.graphs import bfs
from meander.dataflow.collections.reduce import NegativeCount
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.operators.error_policy import FunctionFailed
from meander.dataflow.operators.retries import OnError
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import MeanderError
from meander.state.collections.kernels import hashes_of
from meander.state.keys.bins import BinSpace
from meander.state.times.time import from_millis
from meander.testing import At, Control, Raise, TestFlow


class Defined:
    """A flow with a collection of given records, which come a millisecond after each other."""

    def __init__(
        self, *records: object, on_error: OnError = "dead_letter", key: type = int,
        value: type = int,
    ) -> None:  # fmt: skip
        self.flow, self.sink = Flow("f", bins=2), ListSink()
        stream: Any = self.flow.source(ListSource([[*enumerate(records, 1)]]))
        self.rows = stream.collection(lambda one: one, on_error=on_error, key=key, value=value)

    def run(self) -> TestFlow:
        with TestFlow(self.flow, seed=5, dead_letters="allow") as run:
            run.run()
        return run

    @property
    def changes(self) -> list[tuple[Any, Any, int]]:
        found = (cast(dict[str, Any], value) for value in self.sink.values)
        return sorted((one["key"], one["value"], one["diff"]) for one in found)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ((1, 2), "ValueError: (1, 2) is no key, value and diff"),
        ((1, 2, 3, 4), "ValueError: (1, 2, 3, 4) is no key, value and diff"),
        (7, "ValueError: 7 is no key, value and diff"),
        (("a", 2, 1), "ValueError: its key is 'a', no integer of 64 bits"),
        (("a", 2, 1), "no integer of 64 bits; name its type, as in collection(read, key=str)"),
        ((1 << 63, 2, 1), "ValueError: its key is 9223372036854775808, no integer of 64 bits"),
        ((1 << 63, 2, 1), "; name its type, as in collection(read, key=object)"),
        ((1, "b", 1), "; name its type, as in collection(read, value=str)"),
        ((1, 2.0, 1), "ValueError: its value is 2.0, no integer of 64 bits"),
        ((1, None, 1), "ValueError: its value is None, no integer of 64 bits"),
        ((1, None, 1), "; name its type, as in collection(read, value=object)"),
        ((1, -(1 << 63) - 1, 1), "ValueError: its value is -9223372036854775809, no integer of"),
        ((1, np.int64(2), 1), "ValueError: its value is np.int64(2), no integer of 64 bits"),
        ((1, np.int64(2), 1), "; name its type, as in collection(read, value=numpy.int64)"),
        ((1, Fraction(2), 1), "; give a plain Python value, such as an int, a str or a tuple"),
        ((1, 2, True), "ValueError: its diff is True, no integer of 64 bits"),
        ((1, 2, 0), "ValueError: its diff is 0, which changes nothing"),
    ],
)
def test_a_record_without_a_change_is_set_aside(record: object, reason: str) -> None:
    defined = Defined((5, -(1 << 63), 1), record, [5, 6, 1])
    defined.rows.changes().sink(defined.sink)
    run = defined.run()
    (letter,) = run.dead_letters
    assert (letter.operator, letter.offset) == ("collection", 1)
    assert reason in letter.reason
    assert defined.changes == [(5, -(1 << 63), 1), (5, 6, 1)]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            (1, "b", 1),
            "ValueError: its key is 1, no str; name a type of all, as in collection(read,",
        ),
        (("a", 7, 1), "ValueError: its value is 7, no str"),
        (("a", "b", "c"), "ValueError: its diff is 'c', no integer of 64 bits"),
    ],
)
def test_a_record_with_values_of_other_types_is_set_aside(record: object, reason: str) -> None:
    defined = Defined(("a", "b", 1), record, ["a", "c", 1], key=str, value=str)
    defined.rows.changes().sink(defined.sink)
    (letter,) = defined.run().dead_letters
    assert letter.reason.startswith(reason)
    assert defined.changes == [("a", "b", 1), ("a", "c", 1)]


def test_a_record_with_a_value_that_is_not_plain_is_set_aside() -> None:
    defined = Defined((1, "b", 1), (1, complex(1), 1), value=object)
    defined.rows.changes().sink(defined.sink)
    (letter,) = defined.run().dead_letters
    assert letter.reason.startswith(
        "ValueError: its value is (1+0j), no plain value; give a plain "
    )
    assert defined.changes == [(1, "b", 1)]


def test_the_least_of_python_values_is_the_least_of_python() -> None:
    words = "delta", "alpha", "echo", "charlie", "bravo"
    defined = Defined(*((7, word, 1) for word in words), value=str)
    defined.rows.minimum("least").changes().sink(defined.sink)
    defined.run()
    assert sum_of(defined.changes) == {(7, "alpha"): 1}
    defined = Defined(*((7, word, 1) for word in words), (7, "alpha", -1), value=str)
    defined.rows.top("two", 2).changes().sink(defined.sink)
    defined.run()
    assert sum_of(defined.changes) == {(7, "bravo"): 1, (7, "charlie"): 1}


def test_a_function_takes_python_values_and_returns_some() -> None:
    defined = Defined(("a", 2, 1), ("b", 3, 1), ("a", 2, -1), key=str)
    rows: Any = defined.rows
    loud = rows.map(lambda keys, values: ([key.upper() for key in keys], values))
    only = loud.filter(lambda keys, values: keys != "B")
    many = loud.flat_map(
        lambda keys, values: (values, keys, np.arange(len(keys))), key=int, value=str
    )
    both = many.join(
        "both", only.map(lambda keys, values: (values, keys), key=int, value=str),
        lambda numbers, one, other: (numbers, [f"{a}{b}" for a, b in zip(one, other, strict=True)]),
    )  # fmt: skip
    both.changes().sink(defined.sink)
    defined.run()
    assert sorted(defined.changes) == [(2, "AA", -1), (2, "AA", 1)]


def test_a_python_value_that_is_removed_too_often_is_named() -> None:
    defined = Defined(("a", "b", 1), ("a", "b", -1), ("a", "b", -1), key=str, value=str)
    defined.rows.distinct("once").changes().sink(defined.sink)
    with pytest.raises(NegativeCount, match=r"key 'a' of operator 'once': its value 'b' has count"):
        defined.run()


def sum_of(changes: list[tuple[Any, Any, int]]) -> dict[tuple[object, object], int]:
    found = Counter[tuple[object, object]]()
    for key, value, diff in changes:
        found[key, value] += diff
    return {row: count for row, count in found.items() if count}


def test_records_without_a_change_are_skipped_or_end_the_flow() -> None:
    skipping = Defined((1, 2), (1, 2, 1), on_error="skip")
    skipping.rows.changes().sink(skipping.sink)
    assert skipping.run().counters["skipped"] == 1
    assert skipping.changes == [(1, 2, 1)]
    failing = Defined((1, 2), on_error="fail")
    failing.rows.changes().sink(failing.sink)
    with pytest.raises(FunctionFailed, match=r"'collection': .*offset 0: .*\(1, 2\) is no key"):
        failing.run()


def test_a_fault_makes_the_function_of_a_collection_raise() -> None:
    defined = Defined((1, 2, 1), (3, 4, 1))
    defined.rows.changes().sink(defined.sink)
    with TestFlow(defined.flow, faults=[At(Raise("collection"), step=0)]) as run:
        run.run()
        assert len(run.dead_letters) == 1
    assert len(defined.changes) == 1


@pytest.mark.parametrize("removals", [1, 2])
def test_a_value_that_is_removed_too_often_ends_the_flow(removals: int) -> None:
    defined = Defined((1, 2, 1), *[(1, 2, -1)] * removals, (1, 3, 1))
    defined.rows.count("number").changes().sink(defined.sink)
    if removals == 1:
        defined.run()
        assert defined.changes == [(1, 1, -1), (1, 1, 1), (1, 1, 1)]
        return
    with pytest.raises(NegativeCount) as ended:
        defined.run()
    assert str(ended.value) == (
        f"key 1 of operator 'number': it has -1 values at time {from_millis(3)} (3 ms);"
        " send each removal once, and not before its addition."
    )


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map", "join", "reduce"])
def test_a_function_with_another_result_ends_the_flow_and_is_named(kind: str) -> None:
    defined = Defined((1, 2, 1))
    rows: Any = defined.rows
    wrong: Any = lambda *_: 7  # noqa: E731
    match kind:
        case "join":
            found = rows.join("wrong", rows, wrong)
        case "reduce":
            found = rows.reduce("wrong", wrong)
        case _:
            found = getattr(rows, kind)(wrong, "wrong")
    found.changes().sink(defined.sink)
    with pytest.raises(MeanderError, match=r"^operator 'wrong': its function returned int for 1 r"):
        defined.run()


def test_a_loop_that_never_comes_to_rest_ends_the_flow() -> None:
    defined = Defined((1, 2, 1))
    more = defined.rows.iterate(
        "more", lambda rows: rows.map(lambda k, v: (k, v + 1)), max_iterations=9
    )
    more.changes().sink(defined.sink)
    with pytest.raises(MeanderError) as ended:
        defined.run()
    assert str(ended.value) == (
        "loop 'more': its collection still changes, as at key 1: it has had 9 iterations, and"
        " max_iterations is 9; have its body come to an end, or raise max_iterations."
    )


def test_a_loop_without_state_ends_once_its_changes_cancel_each_other() -> None:
    defined = Defined((1, 9, 1), (2, 64, 1), (1, 9, -1))
    less = defined.rows.iterate(
        "less", lambda rows: rows.map(lambda k, v: (k, v // 2)), max_iterations=20
    )
    kept = defined.rows.iterate("kept", lambda rows: rows, max_iterations=2)
    less.concat(kept).changes().sink(defined.sink)
    defined.run()
    assert defined.changes == sorted(
        [(1, 0, 1), (1, 9, 1), (2, 0, 1), (2, 64, 1), (1, 0, -1), (1, 9, -1)]
    )


def test_a_loop_within_a_loop_ends_once_both_are_at_rest() -> None:
    defined = Defined((1, 200, 1), (2, 3, 1))

    def body(rows: Any) -> Any:
        halved = rows.iterate("inner", lambda r: r.map(lambda k, v: (k, np.maximum(v // 2, 10))))
        return halved.map(lambda k, v: (k, np.minimum(v, 5)))

    defined.rows.iterate("outer", body, max_iterations=9).changes().sink(defined.sink)
    defined.run()
    assert defined.changes == [(1, 5, 1), (2, 5, 1)]


KEYS = 50
SEEDS = 30


def test_a_join_pairs_rows_of_a_bin_that_has_moved_with_later_ones() -> None:
    """Its new owner has had nothing to do since before the moved rows came (I2)."""
    bins = BinSpace(1).bins_of(hashes_of(np.arange(KEYS)))
    moving, staying = int(np.argmin(bins)), int(np.argmax(bins))
    lefts = [
        (10, (staying, 1, 1)),
        (10, (moving, 1, 1)),
        (60, (moving, 2, 1)),
        (90, (staying, 3, 1)),
    ]
    rights = [(10, (staying, 1, 1)), (50, (moving, 7, 1)), (90, (staying, 4, 1))]
    wanted = [(staying, pair, 1) for pair in (101, 104, 301, 304)]
    wanted += [(moving, pair, 1) for pair in (107, 207)]
    move = Control({"type": "migrate", "id": "m", "bins": [0], "worker": 1, "time": 55})
    for seed in range(SEEDS):
        flow, sink = Flow("f", bins=1, checkpoints=Checkpointing()), ListSink()
        left, right = (
            flow.source(ListSource([some], SourceOptions(idle_after=1e6))).collection(tuple)
            for some in (lefts, rights)
        )
        pairs = left.join("pairs", right, lambda keys, one, other: (keys, one * 100 + other))
        pairs.changes().sink(sink)
        with TestFlow(flow, 2, seed, faults=[At(move, records=1)]) as run:
            run.run()
        found: list[Any] = [*sink.values]
        rows = sorted((one["key"], one["value"], one["diff"]) for one in found)
        assert rows == sorted(wanted), f"seed {seed}"


NODES, LOOP_SEEDS = 12, 5


def test_a_loop_reads_an_arrangement_as_it_was_before_a_move_while_earlier_times_iterate() -> None:
    """The edges of a bin leave once they are complete, while the distances before the move are
    not (I4)."""
    path = [(10, (node, node + 1, 1)) for node in range(NODES)]
    move = Control({"type": "migrate", "id": "m", "bins": [0], "worker": 1, "time": 55})
    for seed in range(LOOP_SEEDS):
        flow, sink = Flow("f", bins=1, checkpoints=Checkpointing()), ListSink()
        edges, roots = (
            flow.source(ListSource([some], SourceOptions(idle_after=1e6))).collection(tuple)
            for some in ([*path, (90, (NODES, 0, 1))], [(20, (0, 0, 1)), (90, (0, 1, 1))])
        )
        bfs(edges.arrange("edges"), roots).changes().sink(sink)
        with TestFlow(flow, 2, seed, faults=[At(move, records=1)]) as run:
            run.run()
        found: list[Any] = [*sink.values]
        rows = sorted((one["key"], one["value"], one["diff"]) for one in found)
        assert rows == [(node, node, 1) for node in range(NODES + 1)], f"seed {seed}"
