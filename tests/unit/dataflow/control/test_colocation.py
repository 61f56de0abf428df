"""Operators whose bins move for themselves: a command moves them only if it names them, and whoever
comes or goes gets or gives bins of all."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from meander import Flow, KeyedStream, columns
from meander.dataflow.api.nodes import ExchangeNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.command import MoveBins
from meander.dataflow.simulation.faults import At, Control
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import Join
from meander.schemas.control import CommandError
from meander.schemas.errors import SetupError
from meander.state.keys.ids import Bin, WorkerId
from meander.testing import Answer, TestFlow
from tests.support.sim.manual_flow import ManualFlow, ManualSource, keyed, until
from tests.support.sim.start import Start

BITS = 2
BINS = 1 << BITS
KEYS = 40


def count(n: int, value: object) -> tuple[int, object]:
    return n + 1, value


def emit(context: Any, state: int, value: object) -> int:
    context.emit(value)
    return state + 1


def exchanges(flow: Flow) -> list[tuple[str, str]]:
    """Of each, from whom and to whose bins' owners."""
    nodes = [node for node in Plan(flow).nodes if isinstance(node, ExchangeNode)]
    return [(node.upstream.node.name, node.group) for node in nodes]


def defined() -> tuple[Flow, KeyedStream[Any]]:
    flow = Flow("f")
    return flow, flow.source(ListSource([[(1, "dog")]])).key_by(lambda v: v)


# -- exchanges


def test_behind_key_by_records_travel_once() -> None:
    flow, stream = defined()
    stream.fold("a", lambda: 0, count, colocate=False)
    assert exchanges(flow) == [("key_by", "a")]


def test_between_operators_that_do_not_move_together_there_is_an_exchange() -> None:
    flow, stream = defined()
    stream = stream.fold("a", lambda: 0, count).fold("b", lambda: 0, count)
    stream = stream.fold("c", columns.count(), colocate=False).map(str)
    stream = stream.process("d", lambda: 0, emit, colocate=False)
    stream.fold("e", lambda: 0, count).fold("f", lambda: 0, count)
    assert exchanges(flow) == [("key_by", ""), ("b", "c"), ("map", "d"), ("d", "")]


def test_each_of_two_inputs_has_an_exchange_where_it_needs_one() -> None:
    flow, stream = defined()
    alone = stream.fold("a", lambda: 0, count, colocate=False)
    alone.connect(stream, "b", lambda: 0, emit, emit)
    assert exchanges(flow) == [("key_by", ""), ("key_by", "a"), ("a", "")]


def test_what_goes_round_in_a_loop_comes_back_to_whose_bins_it_is() -> None:
    flow, stream = defined()

    def body(inside: KeyedStream[Any]) -> tuple[KeyedStream[Any], KeyedStream[Any]]:
        again, leave = inside.fold("a", lambda: 0, count, colocate=False).split(str, "again", "x")
        return again, leave

    stream.iterate("loop", body).fold("b", lambda: 0, count)
    assert exchanges(flow) == [("key_by", ""), ("loop", "a"), ("split", ""), ("loop exit", "")]


def test_a_wrong_choice_is_refused() -> None:
    _, stream = defined()
    with pytest.raises(SetupError, match="operator 'a': its colocate is 'no'; give True or"):
        stream.fold("a", lambda: 0, count, colocate="no")  # type: ignore[call-overload]


# -- moves


class Counting:
    """Counts per key, of which those of `b` move alone, on two workers."""

    def __init__(self, start: Start) -> None:
        self.source, self.sink = ManualSource(), ListSink()
        flow = Flow("f", bins=BITS)
        stream = flow.source(self.source).key_by(lambda key: key).fold("a", lambda: 0, count)
        stream = stream.fold("b", lambda: 0, count, colocate=False)
        stream.fold("c", lambda: 0, count).sink(self.sink)
        self.run: ManualFlow = start(flow)
        self.times = 0
        self.count()

    def count(self) -> None:
        self.times += 1
        self.source.give(0, *((1000 * self.times, key) for key in range(KEYS)))
        self.run.wait(0.01)

    def submit(self, id: str, bins: list[int], worker: int, **how: Any) -> None:
        command = MoveBins(id, tuple(map(Bin, bins)), WorkerId(worker), **how)
        self.run.sim.coordinator.submit(command)

    def said(self, kind: str) -> list[dict[str, object]]:
        return [event for event in self.run.events if event["type"] == kind]

    def completed(self, ids: set[str]) -> bool:
        return ids <= {str(event["id"]) for event in self.said("completed")}

    def until_completed(self, *ids: str) -> None:
        until(lambda: self.completed({*ids}), lambda: self.run.wait(0.001))

    def owners(self) -> dict[str, list[int]]:
        """By operator, who has keys of each bin."""
        found: dict[str, dict[int, int]] = {"a": {}, "b": {}, "c": {}}
        for worker in self.run.workers:
            for name, bins in found.items():
                bins.update((bin, int(worker.me)) for bin in keyed(worker, name).store.bins())
        return {name: [bins[bin] for bin in range(BINS)] for name, bins in found.items()}

    def finish(self) -> None:
        self.count()
        self.run.finish(self.source)
        for name in ("a", "b", "c"):
            assert self.run.states(name) == dict.fromkeys(range(KEYS), self.times)
        assert Counter(self.sink.values) == dict.fromkeys(range(KEYS), self.times)


@pytest.fixture
def flow(start: Start) -> Counting:
    return Counting(start)


def test_a_command_moves_the_bins_of_those_that_move_together(flow: Counting) -> None:
    flow.submit("m", [0, 1], 1)
    flow.until_completed("m")
    assert flow.owners() == {"a": [1, 1, 1, 1], "b": [0, 0, 1, 1], "c": [1, 1, 1, 1]}
    moved = sorted((e["bin"], e["from"], e["to"]) for e in flow.said("bin_moved"))
    assert moved == [(0, 0, 1), (1, 0, 1)]
    assert [flow.run.owner(0, name) for name in ("a", "c")] == [1, 1]
    flow.finish()


@pytest.mark.parametrize("precopy", [True, False])
def test_a_command_that_names_an_operator_moves_its_bins_only(
    flow: Counting, precopy: bool
) -> None:
    flow.submit("m", [3, 0], 1, operator="b", precopy=precopy)
    flow.until_completed("m")
    assert flow.owners() == {"a": [0, 0, 1, 1], "b": [1, 0, 1, 1], "c": [0, 0, 1, 1]}
    assert [(e["bin"], e["from"], e["to"]) for e in flow.said("bin_moved")] == [(0, 0, 1)]
    assert flow.said("accepted")[0]["operator"] == "b" and flow.said("accepted")[0]["bins"] == [
        3,
        0,
    ]
    flow.finish()


def test_commands_of_different_operators_run_side_by_side_over_the_same_bins(
    flow: Counting,
) -> None:
    flow.submit("m", [0, 1], 1)
    flow.submit("n", [1, 2], 0, operator="b", overlap="reject")
    with pytest.raises(CommandError, match="bin 1 is moved by command 'n'"):
        flow.submit("o", [0, 1], 1, operator="b", overlap="reject")
    flow.until_completed("m", "n")
    assert flow.owners() == {"a": [1, 1, 1, 1], "b": [0, 0, 0, 1], "c": [1, 1, 1, 1]}
    flow.finish()


def test_a_dry_run_names_the_operators_own_bins(flow: Counting) -> None:
    flow.submit("m", [0], 1, operator="b")
    flow.until_completed("m")
    command = MoveBins("n", (Bin(0), Bin(1)), WorkerId(0), operator="b")
    plan = flow.run.sim.coordinator.plan(command)
    assert [[way.bin for way in round] for round in plan.rounds] == [[0]]
    assert plan.bytes(Bin(0)) > 0


@pytest.mark.parametrize("operator", ["a", "x"])
def test_only_operators_that_move_alone_can_be_named(flow: Counting, operator: str) -> None:
    why = f"operator '{operator}' does not move alone: leave it out, or name one of 'b'"
    with pytest.raises(CommandError, match=why):
        flow.submit("m", [0], 1, operator=operator)


# -- workers that come and go


RECORDS = 300
ONE = WorkerId(1)


def listed(*, colocate: bool) -> tuple[Flow, ListSink]:
    """Two counts per key, of which the second, `b`, moves alone."""
    flow, sink = Flow("f", bins=BITS), ListSink()
    source = ListSource([[(ms, ms % KEYS) for ms in range(RECORDS)]] * 2)
    stream = flow.source(source).key_by(lambda v: v).fold("a", lambda: 0, count, colocate=colocate)
    stream.fold("b", lambda: 0, count, colocate=False).sink(sink)
    return flow, sink


def counted(run: TestFlow) -> bool:
    """Whether each record has been counted once, in both."""
    expected = Counter(ms % KEYS for ms in range(RECORDS)) + Counter(
        ms % KEYS for ms in range(RECORDS)
    )
    return run.states("a") == run.states("b") == expected


def test_joining_workers_get_bins_of_all_operators_and_leaving_workers_give_them_away() -> None:
    flow, _ = listed(colocate=True)
    with TestFlow(flow, workers=1, seed=3) as run:
        coordinator = run.sim.coordinator

        def until_said(kind: str, **what: object) -> None:
            wanted = {"type": kind, **what}.items()
            until(lambda: any(wanted <= event.items() for event in run.events), run.act, 100_000)

        until(lambda: coordinator.ready, run.act)
        run.sim.submit(Join())
        until_said("joined")
        assert coordinator.share("s", [ONE]) >= {"s/bins", "s/bins of b"}
        until_said("completed", id="s/bins")
        until_said("completed", id="s/bins of b")
        owners = coordinator.owners()
        assert Counter(owners[:BINS]) == Counter(owners[BINS:]) == {0: BINS // 2, 1: BINS // 2}
        coordinator.leave("l", [ONE])
        until_said("left")
        assert coordinator.owners() == [0] * 2 * BINS
        run.run()
        assert counted(run)


def test_where_all_move_alone_a_command_has_to_name_one_and_workers_come_and_go() -> None:
    flow, _ = listed(colocate=False)
    move = {"type": "migrate", "bins": "all", "worker": 0}
    commands: list[dict[str, object]] = [
        {"id": "m", **move},
        {"id": "n", **move, "operator": "b"},
        {"id": "r", "type": "rescale", "workers": 1},
    ]
    faults = [At(Control(one), records=50 + 50 * n) for n, one in enumerate(commands)]
    with TestFlow(flow, workers=2, faults=faults) as run:
        run.run()
        why = "no operator of this flow moves with others: name one of 'a', 'b'"
        assert run.answer("m") == Answer("rejected", why)
        assert run.answer("n") == Answer("completed", moved=BINS // 2)
        assert [event["worker"] for event in run.events if event["type"] == "left"] == [1]
        assert counted(run)
