"""What a user defines is what runs: names, chains, forks, probes, and mistakes named at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from meander import Flow, KeyedStream, columns
from meander.dataflow.api.nodes import ExchangeNode, StepsNode
from meander.dataflow.api.plan import MAX_BINS, Plan
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import MeanderError, SetupError
from meander.state.times.time import to_millis
from tests.support.sim.manual_flow import ManualSource
from tests.support.sim.start import Start


def words() -> ListSource:
    return ListSource([[(1, "dog"), (2, "cat")], [(3, "dog")]])


def _count(n: int, value: object) -> tuple[int, object]:
    return n + 1, (value, n + 1)


def _pass(context: Any, state: int, value: object) -> int:
    context.emit(value)
    return state + 1


def exchanges(flow: Flow) -> list[str]:
    return [node.name for node in Plan(flow).nodes if isinstance(node, ExchangeNode)]


# -- exchanges


def test_consecutive_operators_on_one_key_exchange_once() -> None:
    flow = Flow("f")
    keyed = flow.source(words()).key_by(lambda v: v)
    chain = keyed.fold("a", lambda: 0, _count).map(str).filter(bool).flat_map(lambda v: [v])
    chain.inspect(print).process("b", lambda: 0, _pass).probe("here").fold("c", lambda: 0, _count)
    assert exchanges(flow) == ["key_by exchange"]
    chain.key_by(len).fold("d", lambda: 0, _count)
    assert exchanges(flow) == ["key_by exchange", "key_by-2 exchange"]


def test_two_operators_on_one_keyed_stream_share_its_exchange() -> None:
    flow = Flow("f")
    keyed = flow.source(words()).key_by(lambda v: v)
    keyed.fold("a", lambda: 0, _count).connect(keyed, "b", lambda: 0, _pass, _pass)
    assert len(exchanges(flow)) == 1


def test_records_cross_to_another_worker_once_for_a_chain(start: Start) -> None:
    """The second operator's records all come from its own worker."""
    flow, sink = Flow("f", bins=4), ListSink()
    source = ListSource([[(ms, ms) for ms in range(1, 40)]])
    keyed = flow.source(source).key_by(lambda v: v)
    keyed.fold("a", lambda: 0, _count).fold("b", lambda: 0, _count).sink(sink)
    run = start(flow, workers=3)
    run.run()
    assert all(len(worker.parts.operators.exchanges) == 1 for worker in run.workers)
    for worker in run.workers:
        states = worker.state()
        assert set(states["a"]) == set(states["b"]) != set()


def test_a_chain_of_stateless_steps_is_one_operator_and_a_fork_ends_it() -> None:
    flow = Flow("f")
    stream = flow.source(words()).map(str).filter(bool)
    stream.map(len).key_by(lambda v: v).fold("a", lambda: 0, _count)
    assert [len(n.steps) for n in Plan(flow).nodes if isinstance(n, StepsNode)] == [4]
    stream.sink(ListSink())
    assert [len(n.steps) for n in Plan(flow).nodes if isinstance(n, StepsNode)] == [2, 2]


def test_every_member_builds_the_same_graph() -> None:
    """I1: a location has one number everywhere."""

    def graph() -> object:
        flow = Flow("f")
        keyed = flow.source(words()).map(str).key_by(lambda v: v).fold("a", lambda: 0, _count)
        keyed.probe("p").sink(ListSink())
        built = Plan(flow).graph
        return built.nodes, built.edges

    assert graph() == graph()


# -- forks, probes, several sources and sinks


def test_a_stream_used_twice_gives_all_its_records_to_both(start: Start) -> None:
    flow, sinks = Flow("f", bins=1), [ListSink() for _ in range(4)]
    stream = flow.source(words()).map(str.upper)
    stream.sink(sinks[0])
    stream.filter(lambda v: v == "CAT").sink(sinks[1])
    keyed = stream.key_by(lambda v: v)
    keyed.fold("n", lambda: 0, _count).sink(sinks[2])
    keyed.map(len).sink(sinks[3])
    start(flow).run()
    assert [sorted(map(str, sink.values)) for sink in sinks] == [
        ["CAT", "DOG", "DOG"],
        ["CAT"],
        ["('CAT', 1)", "('DOG', 1)", "('DOG', 2)"],
        ["3", "3", "3"],
    ]


def _spoil(n: int, record: dict[str, object]) -> tuple[int, object]:
    record["spoilt"] = True
    return n + 1, record


@pytest.mark.parametrize("workers", [1, 3])
def test_a_function_that_changes_its_record_changes_it_for_its_own_branch_only(
    start: Start, workers: int
) -> None:
    """I2: otherwise what a flow answers would depend on who owns which bin."""
    flow, sinks = Flow("f", bins=4), [ListSink() for _ in range(3)]
    source = ListSource([[(ms, {"k": ms}) for ms in range(1, 30)]])
    stream = flow.source(source)
    keyed = stream.key_by(lambda r: r["k"])
    keyed.fold("spoils", lambda: 0, _spoil).sink(sinks[0])
    keyed.fold("reads", lambda: 0, lambda n, r: (n + 1, r)).sink(sinks[1])
    stream.sink(sinks[2])
    start(flow, workers).run()
    assert all(value == {"k": ms, "spoilt": True} for ms, value in by_offset(sinks[0]))
    for sink in sinks[1:]:
        assert [value for _, value in by_offset(sink)] == [{"k": ms} for ms in range(1, 30)]


def by_offset(sink: ListSink) -> list[tuple[int, object]]:
    return sorted(((r.offset + 1, r.value) for r in sink.results), key=lambda pair: pair[0])


def test_a_probe_shows_the_frontier_at_its_place(start: Start) -> None:
    """I1: here what may still come before the fold, and after it."""
    source, flow = ManualSource(partitions=2), Flow("f", bins=1)
    source.feeds[1].busy = True
    stream = flow.source(source).probe("before")
    folded = stream.key_by(lambda v: v).fold("n", lambda: 0, _count)
    folded.probe("after").sink(ListSink())
    run = start(flow)
    source.give(1, (7, "a"))
    source.give(0, (9, "b"))
    run.run_until_idle()
    for frontiers in (run.workers[0].frontiers(), run.sim.coordinator.frontiers()):
        shown = {
            name: [to_millis(time) for time in frontier if isinstance(time, int)]
            for name, frontier in frontiers.items()
        }
        assert shown == {"before": [7], "after": [7], "sink": [7]}
    source.feeds[1].busy = False
    run.finish(source)
    assert not any(run.workers[0].frontiers().values())


def test_records_of_two_sources_are_distinguished(start: Start) -> None:
    """I3: by the number of their source, in the order of definition."""
    flow, sink = Flow("f", bins=1), ListSink()
    for name in ("left", "right"):
        keyed = flow.source(ListSource([[(1, name)]]), name).key_by(lambda v: 0)
        keyed.fold(f"n {name}", lambda: 0, _count).sink(sink)
    start(flow).run()
    assert {(result.value, result.origin) for result in sink.results} == {
        (("left", 1), 0),
        (("right", 1), 1),
    }


def test_a_flow_may_run_more_than_once(start: Start) -> None:
    flow, sink = Flow("f", bins=1), ListSink()
    flow.source(words()).key_by(lambda v: v).fold("n", lambda: 0, _count).sink(sink)
    for _ in range(2):
        start(flow).run()
    assert sorted(map(str, sink.values)) == sorted(2 * ["('cat', 1)", "('dog', 1)", "('dog', 2)"])


# -- names


def test_missing_names_are_numbered() -> None:
    flow = Flow("f")
    stream = flow.source(words()).map(str).map(str).key_by(len).map(str)
    stream.key_by(len).sink(ListSink())
    assert [node.name for node in flow.nodes] == [
        "source", "map", "map-2", "key_by", "key_by exchange", "map-3", "key_by-2",
        "key_by-2 exchange", "sink",
    ]  # fmt: skip


STATEFUL: list[Callable[[KeyedStream[Any]], object]] = [
    lambda keyed: keyed.fold("n", lambda: 0, _count),
    lambda keyed: keyed.process("n", lambda: 0, _pass),
    lambda keyed: keyed.connect(keyed, "n", lambda: 0, _pass, _pass),
    lambda keyed: keyed.probe("n"),
]


@pytest.mark.parametrize("second", STATEFUL)
def test_two_operators_cannot_keep_state_under_one_name(
    second: Callable[[KeyedStream[Any]], object],
) -> None:
    """I4: it would be one state."""
    keyed = Flow("f").source(words()).key_by(lambda v: v)
    keyed.fold("n", lambda: 0, _count)
    with pytest.raises(SetupError, match=r"operator 'n': another operator .* has its name"):
        second(keyed)


def test_an_operator_of_the_name_of_a_source_or_sink_is_told_of_it() -> None:
    keyed = Flow("f").source(words(), "n").key_by(lambda v: v)
    with pytest.raises(SetupError, match=r"operator 'n': source 'n' .* has its name; sources, .*"):
        keyed.fold("n", lambda: 0, _count)
    keyed.sink(ListSink(), "end")
    with pytest.raises(SetupError, match=r"operator 'end': sink 'end' of the flow has its name"):
        keyed.probe("end")


def test_a_fold_without_a_step_is_refused_when_it_is_defined() -> None:
    keyed = Flow("f").source(ListSource([])).key_by(lambda v: v)
    with pytest.raises(SetupError, match=r"operator 'x': a fold needs .* give it a step"):
        keyed.fold("x", lambda: 0)  # type: ignore[call-overload]
    with pytest.raises(SetupError, match=r"operator 'x': .* or a fold over columns alone"):
        keyed.fold("x", columns.count(), lambda n, v: (n, v))  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a.b", "día", "a\0"])
def test_a_flows_name_must_do_as_part_of_a_topics(name: str) -> None:
    with pytest.raises(SetupError, match="use letters, digits, '-' and '_' only"):
        Flow(name)


# -- mistakes


def test_a_flow_without_a_source_is_refused() -> None:
    with pytest.raises(SetupError, match=r"flow 'f': it has no source; call flow.source"):
        Plan(Flow("f"))


@pytest.mark.parametrize("bits", [-1, 17])
def test_a_flow_has_up_to_two_to_the_sixteenth_bins(bits: int) -> None:
    with pytest.raises(MeanderError, match="its bins is .*; give a whole number from 0 to 16"):
        Flow("f", bins=bits)


def test_streams_of_two_flows_do_not_meet() -> None:
    left = Flow("left").source(words()).key_by(lambda v: v)
    right = Flow("right").source(words()).key_by(lambda v: v)
    with pytest.raises(SetupError, match=r"operator 'n': .* flow 'right'"):
        left.connect(right, "n", lambda: 0, _pass, _pass)


def test_a_list_source_says_where_it_belongs() -> None:
    with pytest.raises(TypeError, match="runs in a TestFlow only"):
        words().open()
    with pytest.raises(TypeError, match="runs in a TestFlow only"):
        ListSink().open()


@pytest.mark.parametrize("groups", [8, 9])
def test_a_flow_has_no_more_bins_than_one_record_says_the_owners_of(groups: int) -> None:
    flow = Flow("f", bins=16)
    keyed = flow.source(words()).key_by(lambda value: value)
    for number in range(groups - 1):
        keyed.fold(f"a{number}", lambda: 0, _count, colocate=False)
    fits = groups == 8
    told = "has 589,824 bins, .* and 524,288 is the most"
    with contextlib.nullcontext() if fits else pytest.raises(SetupError, match=told):
        assert Plan(flow).groups.total == MAX_BINS
