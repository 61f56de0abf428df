"""Loops: what goes round comes back a round later, what leaves is of the time it entered with."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander import Flow, KeyedStream, Stream
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.timestamp_overrides import OverrideHistory
from meander.dataflow.coordinator.frontier_blockers import FrontierBlockers
from meander.dataflow.operators.buffer.rows import Rows, in_order
from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.records.loop_times import nested_time, passed_frontier
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import MeanderError, SetupError
from meander.state.encoding import codec
from meander.state.times.antichain import Antichain
from meander.state.times.time import from_millis, less_equal, to_millis
from tests.support.sim.manual_flow import ManualSource
from tests.support.sim.one_key_flow import KEY, move
from tests.support.sim.operator_bench import records
from tests.support.sim.start import Start

Both = tuple[Stream[Any], Stream[Any]]


def numbers(count: int) -> ListSource:
    return ListSource([[(ms, ms) for ms in range(1, count)], [(1, 100), (30, 101)]])


def ends(stream: Any) -> Any:
    """Goes round until there is nothing left of the second number."""
    return stream.split(lambda v: "again" if v[1] else "leave", "again", "leave")


def count_down(stream: Any) -> Any:
    return ends(stream.map(lambda v: (v[0], v[1] - 1)))


# -- round and out


@pytest.mark.parametrize("workers", [1, 3])
def test_each_record_goes_round_as_often_as_it_wants(start: Start, workers: int) -> None:
    """I3, I7: and leaves with the time and place that it entered with."""
    flow, sink, rounds = Flow("f"), ListSink(), ListSink()

    def body(stream: Stream[Any]) -> Both:
        stream.sink(rounds)
        return count_down(stream)  # type: ignore[no-any-return]

    flow.source(numbers(8)).map(lambda n: (n, n)).iterate("loop", body).sink(sink)
    start(flow, workers).run()
    values = [*range(1, 8), 100, 101]
    assert sorted(sink.values) == [(n, 0) for n in values]  # type: ignore[type-var]
    assert all(to_millis(r.time) == r.offset + 1 for r in sink.results if r.partition == 0)
    assert len(rounds.values) == sum(values)


def test_loops_within_loops(start: Start) -> None:
    """I3, I7: the inner loop begins at its round 0 in each round of the outer one."""
    flow, sink = Flow("f"), ListSink()

    def inner(stream: Stream[Any]) -> Both:
        return count_down(stream.map(lambda v: (v[0] + 1, v[1])))  # type: ignore[no-any-return]

    def outer(stream: Stream[Any]) -> Both:
        done = stream.map(lambda v: (v[0], 3)).iterate("inner", inner)
        again, leave = done.split(lambda v: "again" if v[0] < 20 else "leave", "again", "leave")
        return again, leave

    flow.source(numbers(4)).map(lambda n: (n, n)).iterate("outer", outer).sink(sink)
    start(flow).run()
    assert sorted(sink.values) == [  # type: ignore[type-var]
        (20, 0), (21, 0), (22, 0), (103, 0), (104, 0),
    ]  # fmt: skip


def _edges() -> list[tuple[str, str]]:
    return [("a", "b"), ("b", "c"), ("c", "d"), ("d", "b"), ("e", "f"), ("a", "d")]


def _hop(context: Context, state: dict[str, Any], value: Any) -> dict[str, Any]:
    """A distance comes to a node: if none is as short, it goes on to its neighbours."""
    _, distance = value
    if distance < state.get("distance", 99):
        state["distance"] = distance
        context.emit(value, to="found")
        for there in state.get("to", []):
            context.emit((there, distance + 1))
    return state


def _learn(context: Context, state: dict[str, Any], edge: Any) -> dict[str, Any]:
    state.setdefault("to", []).append(edge[1])
    return state


@pytest.mark.parametrize("workers", [1, 4])
def test_shortest_paths(start: Start, workers: int) -> None:
    """I2, I3: state in a loop is where its key is; the graph comes in from outside of the loop."""
    flow, sink = Flow("paths", bins=4), ListSink()
    edges = flow.source(ListSource([[(1, edge) for edge in _edges()]]), "edges")
    starts = flow.source(ListSource([[(2, ("a", 0))]]), "starts").key_by(lambda v: v[0])
    by_node = edges.key_by(lambda edge: edge[0])

    def body(reached: KeyedStream[Any]) -> tuple[KeyedStream[Any], KeyedStream[Any]]:
        hop = reached.connect(by_node, "hop", dict, _hop, _learn, side=["found"])
        return hop.key_by(lambda v: v[0]), hop.side("found")

    starts.iterate("search", body).fold("least", lambda: 99, _least).sink(sink)
    # No edge comes so late that it gets a time behind that of the start.
    run = start(flow, workers, past=OverrideHistory(from_millis(3)))
    run.run()
    shortest = {node: min(d for n, d in map(_pair, sink.values) if n == node) for node in "abcd"}
    assert shortest == {"a": 0, "b": 1, "c": 2, "d": 1}
    run.state()


def _least(least: int, value: Any) -> tuple[int, object]:
    return min(least, value[1]), (value[0], min(least, value[1]))


def _pair(value: Any) -> tuple[str, int]:
    return value  # type: ignore[no-any-return]


def _count(n: int, value: Any) -> tuple[int, object]:
    return n + 1, (*value, n + 1)


@pytest.mark.parametrize("commands", [[], [move(4, 1), move(9, 0)]])
def test_one_time_has_all_its_rounds_before_a_later_one_begins(
    start: Start, commands: list[Any]
) -> None:
    """I3, I4: per key in the order (time, round, ...), wherever its bin is at that time."""
    flow, seen = Flow("f", bins=1), ListSink()

    def body(stream: KeyedStream[Any]) -> tuple[Any, Any]:
        counted = stream.fold("n", int, _count)
        counted.sink(seen)
        return count_down(counted)  # type: ignore[no-any-return]

    source = ListSource([[(ms, (ms, 1 + ms % 4)) for ms in range(1, 13)]])
    flow.source(source).key_by(lambda v: KEY).iterate("loop", body).sink(ListSink())
    run = start(flow, 2, commands)
    run.run()
    ordered = [(ms, left) for ms in range(1, 13) for left in range(1 + ms % 4, 0, -1)]
    assert sorted(map(_triple, seen.values), key=lambda v: v[2]) == [
        (ms, left, n) for n, (ms, left) in enumerate(ordered, start=1)
    ]


def _triple(value: Any) -> tuple[int, int, int]:
    return value  # type: ignore[no-any-return]


# -- no endless loop


def for_ever(stream: Stream[Any]) -> Both:
    again, leave = stream.split(lambda v: "again" if v % 2 else "leave", "again", "leave")
    return again, leave


def test_what_has_had_all_its_rounds_is_set_aside(start: Start) -> None:
    """I7: a loop ends, whatever goes round in it."""
    flow, sink, rounds = Flow("f"), ListSink(), ListSink()
    source = ListSource([[(1, 1), (2, 2), (3, 3)]])

    def body(stream: Stream[Any]) -> Both:
        stream.sink(rounds)
        return for_ever(stream)

    flow.source(source).iterate("loop", body, max_iterations=5).sink(sink)
    run = start(flow)
    run.run()
    assert sink.values == [2]
    assert sorted(rounds.values) == [1] * 5 + [2] + [3] * 5  # type: ignore[type-var]
    assert sorted((d.operator, d.value, d.reason) for d in run.dead_letters) == [
        (
            "loop feedback",
            n,
            "TooManyIterationsError: it has had 5 iterations, and max_iterations is 5",
        )
        for n in (1, 3)
    ]


def test_or_ends_the_flow_if_that_is_wanted(start: Start) -> None:
    flow = Flow("f")
    source = ListSource([[(1, 1)]])
    flow.source(source).iterate("loop", for_ever, max_iterations=3, on_error="fail").sink(
        ListSink()
    )
    with pytest.raises(MeanderError, match="operator 'loop feedback': .* it has had 3 iterations"):
        start(flow).run()


def test_a_bodys_flat_map_may_go_round_often(start: Start) -> None:
    """I3: each round's outputs are numbered anew."""
    flow, sink = Flow("f"), ListSink()

    def body(stream: Stream[Any]) -> Both:
        return count_down(stream.flat_map(lambda v: [v]))  # type: ignore[no-any-return]

    flow.source(ListSource([[(1, (1, 50))]])).iterate("loop", body).sink(sink)
    start(flow).run()
    assert sink.values == [(1, 0)]


# -- what is outside


def test_frontiers_within_a_loop_are_known_outside(start: Start) -> None:
    """I1: nothing leaves before what still goes round has been counted."""
    source, flow = ManualSource(partitions=2), Flow("f", bins=1)
    source.feeds[1].busy = True

    def body(stream: KeyedStream[Any]) -> tuple[Any, Any]:
        counted = stream.fold("n", int, _count).probe("inside")
        return count_down(counted)  # type: ignore[no-any-return]

    stream = flow.source(source).key_by(lambda v: KEY).iterate("loop", body)
    stream.probe("outside").sink(ListSink())
    run = start(flow)
    source.give(1, (7, (7, 0)))
    source.give(0, (9, (9, 4)))
    run.run_until_idle()
    frontiers = run.sim.coordinator.frontiers()
    assert frontiers["inside"].times == ((7 << 20, 0),)
    assert frontiers["outside"].times == (7 << 20,)
    held = run.sim.coordinator.frontier_blockers()
    assert {name: to_millis(holding.time) for name, holding in held.items()} == {
        "inside": 7, "outside": 7, "sink": 7,
    }  # fmt: skip
    source.feeds[1].busy = False
    run.finish(source)
    assert not any(run.sim.coordinator.frontiers().values())
    (letter,) = run.dead_letters
    assert letter.operator == "loop feedback", "the first value counts down past its end"


def test_what_holds_a_loop_back_is_named_wherever_in_it_that_is() -> None:
    """In a loop every place comes before every other."""
    flow = Flow("f")
    flow.source(numbers(2)).map(lambda n: (n, n)).iterate("loop", count_down).sink(ListSink())
    plan = Plan(flow)
    inside = [plan.ports[name].outputs[0] for name in ("loop", "loop feedback")]

    class Standing:
        def bounding(self, location: object) -> list[tuple[object, object]]:
            return [((5, 0), place) for place in inside]

    holding = FrontierBlockers(plan).of(Standing(), plan.probes["sink"])  # type: ignore[arg-type]
    assert holding is not None
    assert (holding.kind, holding.name, holding.time) == ("operator", "loop", 5)


# -- what is refused


def test_a_loop_is_made_of_two_streams_of_its_own() -> None:
    stream = Flow("f").source(numbers(2))
    wrong: list[Callable[[Stream[Any]], Any]] = [
        lambda inside: inside,
        lambda inside: (inside, inside, inside),
        lambda inside: (inside, stream),
        lambda inside: (stream, inside),
        lambda inside: inside.iterate("inner", lambda s: (s, s), max_iterations=1),
        lambda inside: None,
    ]
    for n, body in enumerate(wrong):
        with pytest.raises(SetupError, match=r"loop .* did not return two streams of the loop"):
            stream.iterate(f"loop{n}", body)


def test_a_keyed_loop_stays_keyed() -> None:
    keyed = Flow("f").source(numbers(2)).key_by(lambda v: v)
    with pytest.raises(SetupError, match=r"loop 'a': .* end their stream with key_by"):
        keyed.iterate("a", lambda inside: (Stream(inside._flow, inside._at), inside))
    left = keyed.iterate("b", lambda inside: (inside, inside))
    assert type(left) is KeyedStream
    with pytest.raises(SetupError, match="operator 'b': another operator"):
        keyed.iterate("b", lambda inside: (inside, inside))
    with pytest.raises(SetupError, match="its max_iterations is 0; give it 1 or more"):
        keyed.iterate("c", lambda inside: (inside, inside), max_iterations=0)


@pytest.mark.parametrize("keyed", [False, True])
def test_what_goes_round_has_a_key_where_what_enters_has_one(start: Start, keyed: bool) -> None:
    """I3: so all records of a place have keys, or none; whatever leaves, in whichever round."""
    flow, sink, counted = Flow("f", bins=2), ListSink(), ListSink()

    def body(stream: Stream[Any]) -> Both:
        less = stream.filter(lambda v: v[1]).map(lambda v: (v[0], v[1] - 1))
        return less.key_by(lambda v: v[1] % 3), stream.map(lambda v: v)

    entering: Stream[Any] = flow.source(numbers(8)).map(lambda n: (n, n % 5))
    left = (entering.key_by(lambda v: v[1] % 3) if keyed else entering).iterate("loop", body)
    left.sink(sink)
    left.key_by(lambda v: v[0]).fold("n", lambda: 0, lambda n, v: (n + 1, n + 1)).sink(counted)
    run = start(flow, 3)
    run.run()
    keys = {value: codec.encode(value[1] % 3) for value in sink.values}  # type: ignore[index]
    wanted = Counter((n, left) for n in (*range(1, 8), 100, 101) for left in range(n % 5 + 1))
    assert Counter(sink.values) == wanted
    assert {(r.value, r.key) for r in sink.results} == {
        (value, keys[value] if keyed else None) for value in wanted
    }
    # One state for each key, whatever key its records had in the loop.
    assert len(counted.results) == wanted.total()
    assert len(run.state()["n"]) == len({n for n, _ in wanted})


def test_where_records_have_keys_follows_from_the_flow() -> None:
    def body(stream: Stream[Any]) -> Both:
        return stream.key_by(lambda v: v), stream.map(lambda v: v)

    flow = Flow("f", bins=2, delivery="exactly_once")
    flow.source(numbers(3)).iterate("loop", body).sink(ListSink())
    plan = Plan(flow)
    having = {(name, number) for name, ports in plan.ports.items()
              for number, at in enumerate(ports.inputs) if at in plan.keyed_inputs}  # fmt: skip
    assert having == {("key_by exchange", 0), ("loop feedback", 0)}


def test_what_has_no_meaning_in_a_loop_is_refused() -> None:
    def pass_on(context: Context, state: int, value: Any) -> int:
        return state

    def ring(context: Context, state: int) -> int:
        return state

    keyed = Flow("f").source(numbers(2)).key_by(lambda v: v)
    bodies: list[tuple[str, Callable[[Any], Any]]] = [
        ("order='processing'", lambda s: s.fold("a", int, _count, order="processing")),
        (
            "order='processing'",
            lambda s: s.connect(s, "b", int, pass_on, pass_on, order="processing"),
        ),
        ("it sets timers in scope", lambda s: s.process("c", int, pass_on, ring)),
        ("it sets timers in scope", lambda s: keyed.connect(s, "d", int, pass_on, pass_on, ring)),
    ]  # fmt: skip
    for n, (message, body) in enumerate(bodies):
        with pytest.raises(SetupError, match=message):
            keyed.iterate(f"loop{n}", body)


def test_streams_of_two_loops_do_not_meet() -> None:
    flow, inner = Flow("f"), list[KeyedStream[Any]]()

    def body(stream: KeyedStream[Any]) -> tuple[KeyedStream[Any], KeyedStream[Any]]:
        inner.append(stream)
        return stream, stream

    keyed = flow.source(numbers(2)).key_by(lambda v: v)
    keyed.iterate("a", body)
    keyed.iterate("b", body)
    pass_on = lambda context, state, value: state  # noqa: E731
    inner[0].connect(inner[1], "meet", int, pass_on, pass_on)
    with pytest.raises(SetupError, match="an edge from scope 'b' to 'a': they do not touch"):
        Plan(flow)


# -- the total order

PATHS = st.tuples(*[st.integers(0, 3)] * 3)


@given(elements=st.lists(PATHS, max_size=4), record=PATHS, later=PATHS)
def test_nothing_to_come_precedes_what_has_settled(
    elements: list[tuple[int, ...]], record: tuple[int, ...], later: tuple[int, ...]
) -> None:
    """I3: in the order (time, rounds), of which a frontier knows only the product order."""
    frontier = Antichain.of(*elements)
    passed = not passed_frontier(frontier, record[1:]).less_equal(record[0])
    assert passed == all(record < element for element in elements)
    if passed and any(less_equal(element, later) for element in frontier):
        assert record < later


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=9
    ),
    st.integers(0, 9),
)
def test_records_of_all_rounds_come_in_one_order(
    places: list[tuple[int, int, int]], seed: int
) -> None:
    """I3: however they came in batches."""
    chance = random.Random(seed)
    many = [
        Rows.of(records([place], [place[0]], first_offset=place[2]), 0, (place[1],))
        for place in chance.sample(places, len(places))
    ]
    ordered = in_order(many)
    assert [value for rows in ordered for value in rows.batch.values] == sorted(places)
    for rows in ordered:
        assert {nested_time(time, rows.iterations) for time in rows.batch.times.tolist()} == {
            value[:2] for value in map(_triple, rows.batch.values)
        }
        assert len(np.unique(rows.batch.times)) == 1
