"""A trace merges its layers by level, and forgets the times that no reader asks for."""

from __future__ import annotations

import pytest

from meander.state.collections import trace as traces
from meander.state.collections.description import LayerDescription
from meander.state.collections.layer import Layer, Updates
from meander.state.collections.merge import UNBOUNDED, Merge, layer_of
from meander.state.collections.trace import IMMEDIATE, Trace
from meander.state.times.antichain import Antichain
from tests.support.collections.columns import Row, rows_of


def layer(now: int, rows: list[Row]) -> Layer:
    """The rows of the times from one number on, before the next."""
    bounds = Antichain.of(now), Antichain.of(now + 1), Antichain.of(0)
    return layer_of(Updates.of(rows), LayerDescription(*bounds))


def some(now: int, count: int) -> Layer:
    return layer(now, [(now, value, (now,), 1) for value in range(count)])


def lengths(trace: Trace) -> list[int]:
    return [len(layer) for layer in trace.layers]


def compact(trace: Trace) -> None:
    while trace.compact(UNBOUNDED):
        pass


def rows(trace: Trace) -> list[Row]:
    return sorted(row for layer in trace.layers for row in rows_of(layer.updates()))


@pytest.fixture(autouse=True)
def tails_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "TAIL_ROWS", 1)


def test_layers_of_one_size_merge_as_a_counter_carries() -> None:
    trace, found = Trace(1, IMMEDIATE), []
    for now in range(8):
        trace.insert(some(now, 1))
        found.append(lengths(trace))
    assert found == [[1], [2], [2, 1], [4], [4, 1], [4, 2], [4, 2, 1], [8]]


def test_smaller_layers_merge_with_a_larger_one_that_comes() -> None:
    trace = Trace(1, IMMEDIATE)
    for now, count in enumerate([4, 2, 1, 100]):
        trace.insert(some(now, count))
    assert lengths(trace) == [107]


def test_a_row_pays_for_eight_rows_of_each_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[Merge, list[int]] = {}
    step = Merge.step

    def metered(merge: Merge, fuel: int) -> int:
        taken.setdefault(merge, []).append(step(merge, fuel))
        return taken[merge][-1]

    monkeypatch.setattr(Merge, "step", metered)
    trace = Trace(1, factor=1)
    for now in range(128):
        trace.insert(some(now, 1))
    assert max(map(sum, taken.values())) == 64
    assert max(map(max, taken.values())) == 8


def test_an_empty_layer_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, empty = Trace(1), [layer(now, []) for now in range(5)]
    filled = some(2, 3)
    monkeypatch.setattr(Merge, "__init__", None)
    for one in (*empty[:2], filled, *empty[3:]):
        trace.insert(one)
    assert lengths(trace) == [3]
    assert trace.layers[0].description.lower == Antichain.of(0)
    assert trace.layers[-1].description.upper == Antichain.of(3)
    assert trace.upper == Antichain.of(5)


def test_layers_follow_each_other_without_a_gap() -> None:
    trace = Trace(1)
    trace.insert(some(0, 1))
    with pytest.raises(AssertionError, match="without a gap"):
        trace.insert(some(2, 1))


def test_a_reader_keeps_times_apart_until_it_advances() -> None:
    trace = Trace(1)
    slow, fast = trace.reader(), trace.reader()
    trace.insert(layer(0, [(7, 1, (0,), 1)]))
    trace.insert(layer(1, [(7, 1, (1,), -1)]))
    fast.advance(Antichain.of(2))
    compact(trace)
    assert rows(trace) == [(7, 1, (0,), 1), (7, 1, (1,), -1)]
    slow.advance(Antichain.of(1))
    assert trace.since == Antichain.of(1)
    compact(trace)
    assert rows(trace) == []
    assert trace.layers[0].description.since == Antichain.of(1)


def test_a_reader_that_closes_holds_nothing_back() -> None:
    trace = Trace(1)
    slow, fast = trace.reader(), trace.reader()
    trace.insert(some(0, 1))
    fast.advance(Antichain.of(1))
    slow.close()
    assert trace.since == trace.reader().since == Antichain.of(1)
    fast.close()
    assert trace.since == Antichain.of(1)


def test_a_reader_never_goes_back() -> None:
    reader = Trace(1).reader()
    reader.advance(Antichain.of(3))
    with pytest.raises(AssertionError, match="never goes back"):
        reader.advance(Antichain.of(2))


def test_a_compaction_ends_with_one_layer_and_then_does_nothing() -> None:
    trace = Trace(1)
    for now, count in enumerate([8, 4, 1]):
        trace.insert(some(now, count))
    taken = [trace.compact(3)]
    while taken[-1]:
        taken.append(trace.compact(3))
    assert lengths(trace) == [13]
    assert trace.compact(3) == 0


def test_work_merges_on_without_an_insert() -> None:
    trace = Trace(1)
    trace.insert(some(0, 60))
    trace.insert(some(1, 60))
    assert trace.work(UNBOUNDED) == 0, "an insert pays for the merge with its own rows"
    trace.reader().advance(Antichain.of(2))
    compacted = trace.compact(10)
    assert 0 < compacted <= 10
    assert trace.work(UNBOUNDED) == 120 - compacted
