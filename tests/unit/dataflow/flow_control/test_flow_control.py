"""Flow control: what is in a part of a flow stays bounded, and all of it comes through in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meander import Flow, Stream, flow_control, nondeterministic
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import SetupError
from meander.testing import TestFlow

Edges = dict[str, list[str]]


def run(flow: Flow, workers: int = 1, seed: int = 0) -> None:
    with TestFlow(flow, workers=workers, seed=seed) as running:
        running.run()


# -- the paper's trace


def test_one_batch_of_one_record_is_in_each_part_as_in_the_papers_trace() -> None:
    """Faucet, section 4.1, with N = 1 and B = 1."""
    first: Edges = {"a11": ["a21", "a22"], "a12": ["a23"]}
    second: Edges = {"a21": [], "a22": ["a31"], "a23": ["a32", "a33"]}
    trace = list[str]()
    flow, sink = Flow("f"), ListSink()

    def propose(name: str, edges: Edges) -> Callable[[tuple[str, ...]], Iterator[Any]]:
        def proposals(prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
            for extension in edges[prefix[-1]]:
                trace.append(f"{name} proposes {extension}")
                yield (*prefix, extension)

        return proposals

    def note(step: str) -> Callable[[tuple[str, ...]], object]:
        return lambda prefix: trace.append(f"{step} {prefix[-1]}")

    starts = flow.source(ListSource([[(1, ("a11",)), (1, ("a12",))]]))
    options = {"batch": 1, "in_flight": 1}
    with flow_control(starts.inspect(note("arrives")), **options, name="outer") as outer:  # type: ignore[arg-type]
        pairs = outer.inspect(note("outer admits"))
        expand = propose("outer", first)
        with flow_control(pairs, **options, expand=expand, name="inner") as inner:  # type: ignore[arg-type]
            triples = inner.inspect(note("inner admits")).flat_map(propose("inner", second))
            inside = triples.inspect(note("intersects")).leave()
        inside.inspect(note("leaves")).leave().sink(sink)
    run(flow)
    assert trace == [
        "arrives a11", "arrives a12",
        "outer admits a11",
        "outer proposes a21", "inner admits a21",
        "outer proposes a22", "inner admits a22",
        "inner proposes a31", "intersects a31", "leaves a31",
        "outer admits a12",
        "outer proposes a23", "inner admits a23",
        "inner proposes a32", "inner proposes a33", "intersects a32", "intersects a33",
        "leaves a32", "leaves a33",
    ]  # fmt: skip
    assert sink.values == [("a11", "a22", "a31"), ("a12", "a23", "a32"), ("a12", "a23", "a33")]


# -- bounds


RECORDS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 5)), max_size=40)
"""Milliseconds, key and number of a record."""


class Inside:
    """Counts what is in a part of a flow."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def enter(self, _: object) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def leave(self, _: object) -> None:
        self.now -= 1


def partitions_of(records: list[tuple[int, int, int]]) -> ListSource:
    ordered = sorted(records, key=lambda record: record[0])
    return ListSource([[(ms, (k, n)) for ms, k, n in ordered[p::3]] for p in range(3)])


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.booleans(), st.data())
def test_admitted_records_that_are_not_through_stay_within_the_batches(
    records: list[tuple[int, int, int]], workers: int, batch: int, in_flight: int, loop: bool,
    data: st.DataObject,
) -> None:  # fmt: skip
    """I3, I7: none is lost or doubled, and the results of a key keep their order."""
    flow, sink, inside = Flow("f", bins=2), ListSink(), Inside()
    keyed = flow.source(partitions_of(records)).key_by(lambda value: value[0])
    with flow_control(keyed, batch=batch, in_flight=in_flight) as inner:
        entered = inner.inspect(inside.enter).map(lambda value: (*value, value[1]))
        rounds = entered.iterate("loop", _count_down) if loop else entered
        summed = rounds.key_by(lambda value: value[0]).fold("sum", lambda: 0, _count)
        left = summed.inspect(inside.leave).leave()
    left.key_by(lambda value: value[0]).fold("last", lambda: 0, _count).sink(sink)
    run(flow, workers, data.draw(st.integers(0, 1 << 20)))
    assert inside.most <= workers * in_flight * batch
    assert inside.now == 0
    values: list[Any] = sink.values
    assert Counter(value[:2] for value in values) == Counter((k, n) for _, k, n in records)
    times = defaultdict[bytes | None, list[int]](list)
    for result in sink.results:
        times[result.key].append(result.time)
    assert all(some == sorted(some) for some in times.values())


def _count_down(stream: Stream[Any]) -> tuple[Stream[Any], Stream[Any]]:
    again, left = stream.split(lambda value: "again" if value[2] else "left", "again", "left")
    return again.map(lambda value: (*value[:2], value[2] - 1)), left


def _count(count: int, value: Any) -> tuple[int, Any]:
    return count + 1, value


@settings(max_examples=25, deadline=None)
@given(RECORDS, st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.data())
def test_outputs_of_an_expansion_that_are_not_through_stay_within_the_batches(
    records: list[tuple[int, int, int]], workers: int, batch: int, in_flight: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    """I3: the outputs are those of a flat_map, with the same places in the total order."""
    flow, sink, wanted, inside = Flow("f"), ListSink(), ListSink(), Inside()
    stream = flow.source(partitions_of(records))

    def many(value: Any) -> Iterator[Any]:
        for number in range(2 * value[1]):
            yield (*value, number)

    with flow_control(stream, batch=batch, in_flight=in_flight, expand=many) as inner:
        keyed = inner.inspect(inside.enter).key_by(lambda value: value[2] % 3)
        left = keyed.inspect(inside.leave).leave()
    left.sink(sink)
    stream.flat_map(many).sink(wanted)
    run(flow, workers, data.draw(st.integers(0, 1 << 20)))
    assert inside.most <= workers * in_flight * batch
    found, expected = (sorted((r.place, r.value) for r in s.results) for s in (sink, wanted))
    assert found == expected


def test_records_that_wait_before_the_batcher_withhold_the_source() -> None:
    """I6: no more are read than the bound, where none is through."""
    flow, sink, read = Flow("f", max_waiting=2000, max_inflight=1 << 30), ListSink(), Inside()
    source = ListSource([[(n, n) for n in range(2000)]])
    stream = flow.source(source).inspect(read.enter)
    with flow_control(stream, batch=1, in_flight=1) as inner:
        left = inner.inspect(read.leave).leave()
    left.sink(sink)
    run(flow)
    assert sink.values == [*range(2000)]
    assert read.most < 1500, "the source waits for the batcher"


def test_a_function_that_fails_in_the_middle_sets_its_record_aside() -> None:
    flow, sink = Flow("f"), ListSink()

    def fragile(value: int) -> Iterator[int]:
        yield value
        if value == 2:
            raise ValueError("two")
        yield -value

    stream = flow.source(ListSource([[(n, n) for n in (1, 2, 3)]]))
    with flow_control(stream, expand=fragile) as inner:
        inner.leave().sink(sink)
    with TestFlow(flow) as running:
        running.run()
        letters = [(letter.value, letter.reason) for letter in running.dead_letters]
    assert sink.values == [1, -1, 2, 3, -3]
    assert letters == [(2, "ValueError: two")]


# -- definitions that cannot work


def numbers() -> Stream[int]:
    return Flow("f").source(ListSource([[(1, 1)]]))


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"batch": 0}, "its batch is 0"),
        ({"batch": "all"}, "its batch is 'all'"),
        ({"in_flight": 0}, "its in_flight is 0"),
        ({"expand": 7}, "its expand is 7"),
        ({"expand": nondeterministic(lambda n: [n])}, "its expand is declared nondeterministic"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], cause: str) -> None:
    with (
        pytest.raises(SetupError, match=f"flow control 'flow_control': {cause}"),
        flow_control(numbers(), **options),
    ):
        pass


def test_a_collection_is_not_expanded() -> None:
    rows = numbers().collection(lambda n: (n, n, 1))
    with (
        pytest.raises(SetupError, match="it expands rows of a collection"),
        flow_control(rows, expand=list),
    ):
        pass


def test_leave_needs_a_scope_that_was_entered() -> None:
    with pytest.raises(SetupError, match="leave needs a scope that enter or flow_control has"):
        numbers().leave()
