"""Notifications: a key is called once all of a time has come, and before anything later."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander import Flow, KeyedStream
from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.operators.keyed.notifications import Notifications
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.state.times.antichain import Antichain, minimal
from meander.state.times.time import Time
from tests.support.sim.manual_flow import ManualSource, keyed
from tests.support.sim.one_key_flow import KEY, answers, move
from tests.support.sim.operator_bench import calls
from tests.support.sim.start import Start


def gather(context: Context, state: list[object], value: object) -> list[object]:
    context.notify()
    return [*state, value]


def tell(context: Context, state: list[object]) -> list[object]:
    context.emit(state)
    return []


def whole(*partitions: list[tuple[int, object]]) -> ManualSource:
    """Partitions that all have been filled when they are first read."""
    source = ManualSource(len(partitions))
    for partition, entries in enumerate(partitions):
        source.give(partition, *entries)
    return source


@pytest.mark.parametrize("order", ["event", "processing"])
def test_a_key_is_called_once_all_of_a_time_has_come(
    start: Start, order: Literal["event", "processing"]
) -> None:
    """I3: also what another partition still has of that time."""
    source, flow, sink = ManualSource(partitions=2), Flow("f", bins=1), ListSink()
    source.feeds[1].busy = True
    stream = flow.source(source).key_by(lambda v: KEY)
    stream.process("p", list, gather, on_notify=tell, order=order).sink(sink)
    run = start(flow)
    source.give(0, (5, "a"), (5, "b"))
    run.wait(0.01)
    assert sink.values == []
    source.give(1, (5, "c"), (9, "d"))
    run.wait(0.01)
    assert [sorted(map(str, v)) for v in map(_listed, sink.values)] == [["a", "b", "c"]]
    source.feeds[1].busy = False
    run.finish(source)
    assert sink.values[1:] == [["d"]]
    assert all(not keyed(worker, "p")._outputs.least for worker in run.workers)


def _listed(value: Any) -> list[object]:
    return value  # type: ignore[no-any-return]


def test_no_frontier_passes_a_time_that_was_asked_for(start: Start) -> None:
    """I1: whoever is called then may still send at it."""
    source, flow = ManualSource(partitions=2), Flow("f", bins=1)
    source.feeds[1].busy = True
    stream = flow.source(source).key_by(lambda v: KEY)
    stream.process("p", list, gather, on_notify=tell, order="processing").probe("p out")
    run = start(flow)
    source.give(1, (3, "a"))
    source.give(0, (5, "b"), (9, "c"))
    run.run_until_idle()
    assert [list(worker.frontiers()["p out"]) for worker in run.workers] == 2 * [[3 << 20]]
    owed = [keyed(worker, "p").notifications for worker in run.workers]
    assert sorted(time for one in owed for time, _ in one) == [3 << 20, 5 << 20, 9 << 20]
    source.feeds[1].busy = False
    run.finish(source)


def test_at_one_time_records_come_first_then_timers_then_notices(start: Start) -> None:
    """I3: one order, so that an answer does not depend on who is quicker."""

    def step(context: Context, state: list[object], value: int) -> list[object]:
        context.notify()
        context.notify()
        context.timer(7 if value < 3 else 8)
        return [*state, value]

    def ring(context: Context, state: list[object]) -> list[object]:
        context.notify()
        return [*state, "ring"]

    source, flow, sink = whole([(5, 1), (6, 2)], [(7, 3)]), Flow("f", bins=1), ListSink()
    stream = flow.source(source).key_by(lambda v: KEY)
    stream.process("p", list, step, ring, on_notify=tell).sink(sink)
    start(flow).finish(source)
    assert [(ms, value) for ms, value, _ in answers(sink)] == [
        (5, [1]), (6, [2]), (7, [3, "ring"]), (8, ["ring"]),
    ]  # fmt: skip


@pytest.mark.parametrize("commands", [[], [move(5, 1), move(6, 0), move(7, 1)]])
def test_nothing_asked_for_is_left_behind_by_a_bin(start: Start, commands: list[Any]) -> None:
    """I2, I4: a notice is where its key is at that time."""
    flow, sink = Flow("f", bins=1), ListSink()
    entries: list[list[tuple[int, object]]] = [[(ms, p) for ms in range(3, 10)] for p in range(3)]
    source = whole(*entries)
    stream = flow.source(source).key_by(lambda v: KEY)
    stream.process("p", list, gather, on_notify=tell).sink(sink)
    run = start(flow, 2)
    for command in commands:
        run.sim.submit(command)
    run.finish(source)
    assert [value for _, value, _ in answers(sink)] == 7 * [[0, 1, 2]]
    if commands:
        assert [worker for ms, _, worker in answers(sink) if ms >= 5] == [1, 0, 1, 1, 1]


def test_in_a_loop_a_key_is_called_once_all_of_a_round_has_come(start: Start) -> None:
    """I3: each round's amounts of a node are summed, and a third of each sum goes to two others."""
    flow, sink = Flow("f", bins=4), ListSink()

    def pass_on(context: Context, state: list[Any]) -> list[Any]:
        total = sum(state)
        context.emit((context.key, total), to="sums")
        for there in (1, 2) if total > 1 else ():
            context.emit(((int(str(context.key)) + there) % 4, total // 3))
        return []

    def take(context: Context, state: list[Any], value: tuple[int, int]) -> list[Any]:
        context.notify()
        return [*state, value[1]]

    def body(stream: KeyedStream[Any]) -> tuple[KeyedStream[Any], KeyedStream[Any]]:
        node = stream.process("node", list, take, on_notify=pass_on, side=["sums"])
        return node.key_by(lambda v: v[0]), node.side("sums")

    source = ListSource([[(1, (0, 8))], [(1, (0, 8)), (2, (3, 2))]])
    flow.source(source).key_by(lambda v: v[0]).iterate("loop", body).sink(sink)
    start(flow, 3).run()
    assert sorted(sink.values) == sorted(_summed({0: 16}) + _summed({3: 2}))  # type: ignore[type-var]


def _summed(amounts: dict[int, int]) -> list[object]:
    told: list[object] = []
    while amounts:
        told += amounts.items()
        following: dict[int, int] = {}
        for node, total in amounts.items():
            for there in (1, 2) if total > 1 else ():
                at = (node + there) % 4
                following[at] = following.get(at, 0) + total // 3
        amounts = following
    return told


def test_a_notice_that_asks_again_has_failed(start: Start) -> None:
    """I7: it would never end; and who has no function to be called has nothing to ask for."""

    def again(context: Context, state: list[object]) -> list[object]:
        context.notify()
        return state

    flow = Flow("f", bins=1)
    stream = flow.source(ListSource([[(1, "a")]])).key_by(lambda v: KEY)
    stream.process("p", list, gather, on_notify=again).sink(ListSink())
    stream.process("q", list, gather).sink(ListSink())
    run = start(flow)
    run.run()
    assert {letter.operator: letter.value for letter in run.dead_letters} == {"p": None, "q": "a"}
    assert all("no on_notify function to call" in letter.reason for letter in run.dead_letters)


PATHS = st.tuples(st.integers(0, 3), st.integers(0, 3))


@given(
    asked=st.lists(st.tuples(PATHS, st.sampled_from([b"a", b"b"]))),
    frontiers=st.lists(PATHS, max_size=5),
)
def test_each_is_called_once_in_order_when_its_time_has_passed(
    asked: list[tuple[tuple[int, int], bytes]], frontiers: list[tuple[int, int]]
) -> None:
    """I3, I6."""
    notices = Notifications()
    for time, key in asked:
        notices.request(time, key)
    called: list[tuple[Any, bytes]] = []
    for frontier in [*map(Antichain.of, sorted(frontiers)), Antichain()]:
        while (
            calls(["notification"], None, notices, frontier, notices.iterations).next() is not None
        ):
            called.append(notices.pop())
            assert all(_place(called[-1][0]) < _place(element) for element in frontier)
        left = {t for t, _ in asked} - {t for t, _ in called}
        assert set(notices.least_times) == set(minimal(left))
    assert called == sorted(set(asked))
    assert notices.size == 0


def _place(time: Time) -> tuple[int, ...]:
    return time if isinstance(time, tuple) else (time,)
