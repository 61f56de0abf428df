"""Timers of a process operator: when they call back, in which order, and where (I2, I3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meander import Flow
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.keyed.callbacks import CallKind, Calls
from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.operators.keyed.logic import Applied, Process, Sealing
from meander.dataflow.operators.keyed.operator import SLICE, Order
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.control import MAX_MILLIS
from meander.state.encoding import codec
from meander.state.encoding.codec import PLAIN
from meander.state.store.store import Bins, Store
from meander.state.times.time import from_millis, to_millis
from tests.support.sim.manual_flow import ManualFlow, ManualSink, ManualSource, keyed
from tests.support.sim.one_key_flow import KEY, Entry, answers, move, run_process
from tests.support.sim.operator_bench import guard
from tests.support.sim.start import Start

# -- when they call back


def _remind(context: Any, state: list[object], value: int) -> list[object]:
    """Keep the value and set a timer so many milliseconds later."""
    state.append(value)
    context.timer(context.time_ms + value)
    return state


def _ring(context: Any, state: list[object]) -> list[object]:
    context.emit((context.key, list(state)))
    return state


def test_a_timer_calls_back_with_state_and_time_after_the_records_of_its_time(
    start: Start,
) -> None:
    """I3: one set at 1 for 4 sees the records of 4, and not that of 5."""
    partitions: list[list[Entry]] = [[(1, 3), (4, 50)], [(4, 60), (5, 70)]]
    _, got = run_process(start, partitions, _remind, _ring)
    assert [(ms, value) for ms, value, _ in got][:1] == [(4, (KEY, [3, 50, 60]))]


def test_timers_fire_in_the_order_of_time_and_the_run_ends_when_all_have(start: Start) -> None:
    """I7: the end of a bounded run reaches them."""
    _, got = run_process(start, [[(1, 100), (2, 7), (3, 40)]], _remind, _ring)
    assert [ms for ms, _, _ in got] == [9, 43, 101]


def test_a_timer_set_twice_for_one_time_fires_once(start: Start) -> None:
    _, got = run_process(start, [[(1, 9), (4, 6), (4, 6)]], _remind, _ring)
    assert got == [(10, (KEY, [9, 6, 6]), got[0][2])]


@pytest.mark.parametrize("later_ms", [0, -1, -100])
def test_a_timer_that_is_not_after_now_is_refused(start: Start, later_ms: int) -> None:
    """I1: the flow's time may have passed it already."""
    run, got = run_process(start, [[(1000, later_ms), (1001, 5)]], _remind, _ring)
    (letter,) = run.dead_letters
    assert letter.operator == "p" and "not after the record's 1000 ms" in letter.reason
    assert [value for _, value, _ in got] == [(KEY, [5])]


def _at(context: Any, state: list[object], at: object) -> list[object]:
    context.timer(at)
    return [*state, 1]


@pytest.mark.parametrize("at", [MAX_MILLIS + 1, 10**18, 10**30, 2000.0, float("inf"), True, "2000"])
def test_a_timer_that_is_no_time_is_refused_where_it_is_set(start: Start, at: object) -> None:
    """I5: the record is set aside, and the run goes on."""
    run, got = run_process(start, [[(1000, at), (1001, 2000)]], _at, _ring)
    (letter,) = run.dead_letters
    assert (letter.operator, letter.value) == ("p", at)
    assert letter.reason.startswith("ValueError: a time ")
    assert [(ms, value) for ms, value, _ in got] == [(2000, (KEY, [1]))]


def test_a_timer_at_the_last_of_all_times_fires(start: Start) -> None:
    run, got = run_process(start, [[(1000, MAX_MILLIS)]], _at, _ring)
    assert (got[0][0], run.dead_letters) == (MAX_MILLIS, [])


def test_a_timer_may_be_a_numpy_integer_and_moves(start: Start) -> None:
    """I2: it leaves its worker as any other."""

    def numpys(context: Any, state: list[object], value: int) -> list[object]:
        context.timer(np.int64(value))
        return [*state, 1]

    run, got = run_process(start, [[(1000, 3000), (2000, 4000)]], numpys, _ring, [move(1500, 1)])
    assert [(ms, value, worker) for ms, value, worker in got] == [
        (3000, (KEY, [1, 1]), 1),
        (4000, (KEY, [1, 1]), 1),
    ]
    assert run.dead_letters == []


def test_a_timer_of_the_records_own_millisecond_is_refused_whatever_its_sequence() -> None:
    timer_only: list[CallKind] = ["timer"]
    context = Context(codec.encode(KEY), from_millis(5, sequence=3), timer_only, ())
    with pytest.raises(ValueError, match="not after"):
        context.timer(5)
    context.timer(6)


def test_a_timer_without_a_callback_is_refused(start: Start) -> None:
    run, _ = run_process(start, [[(1, 5)]], _remind)
    assert "no on_timer function" in run.dead_letters[0].reason


def test_a_timer_may_set_the_next(start: Start) -> None:
    """I3: also one that comes before records which are there already."""

    def again(context: Any, state: list[object]) -> list[object]:
        context.emit((context.time_ms, len(state)))
        if context.time_ms < 10:
            context.timer(context.time_ms + 3)
        return state

    _, got = run_process(start, [[(1, 2), (7, 100), (8, 100)]], _remind, again)
    assert [value for _, value, _ in got][:4] == [(3, 1), (6, 1), (9, 3), (12, 3)]


def test_timers_of_one_time_fire_in_the_order_of_their_keys(start: Start) -> None:
    """I3: what they emit stands under their key's hash, so that it has one place on any worker."""
    fired: list[object] = []

    def ring(context: Any, state: list[object]) -> list[object]:
        fired.append(context.key)
        return state

    flow = Flow("f", bins=1)
    words = [f"w{i}" for i in range(20)]
    source = ListSource([[(1, word) for word in words]])
    stream = flow.source(source).key_by(lambda v: v)
    stream.process("p", list, lambda c, s, v: _remind(c, s, 5), ring).sink(ListSink())
    start(flow, workers=1).run()
    assert fired == sorted(words, key=codec.encode)


def test_a_failing_timer_function_is_treated_as_any_other(start: Start) -> None:
    def ring(context: Any, state: list[object]) -> list[object]:
        state.append("changed")
        raise RuntimeError("no")

    run, got = run_process(start, [[(1, 5), (2, 1)]], _remind, ring)
    assert got == [] and len(run.dead_letters) == 2
    assert run.state()["p"] == {codec.encode(KEY): codec.encode([5, 1])}


# -- what they cost


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records and calls each pass over the states of an operator had."""
    apply, seen = Process.apply, list[int]()

    def counted(self: Process, store: Store, bins: Bins, rows: Rows, calls: Calls) -> Applied:
        applied = apply(self, store, bins, rows, calls)
        seen.append(applied.rows + (0 if applied.called is None else len(applied.called)))
        return applied

    monkeypatch.setattr(Process, "apply", counted)
    return seen


@pytest.mark.parametrize("order", ["event", "processing"])
@pytest.mark.parametrize("later", [None, 5, 100_000])
def test_records_of_many_times_and_their_timers_need_few_passes(
    start: Start, passes: list[int], order: Order, later: int | None
) -> None:
    """Each pass costs a look-up of states, a message and a pointstamp at the sink."""

    def step(context: Context, state: int, value: int) -> int:
        if later is None:
            context.emit(value)
        else:
            context.timer(context.time_ms + later)
        return state + 1

    def ring(context: Context, state: int) -> int:
        context.emit(context.time_ms - (later or 0))
        return state

    source, sink, flow = ManualSource(), ManualSink(), Flow("f")
    stream = flow.source(source).key_by(lambda v: v % 7)
    stream.process("p", int, step, ring, order=order).sink(sink)
    run = start(flow, workers=1)
    source.give(0, *((ms, ms) for ms in range(1, 1001)))
    run.finish(source)
    assert sink.values == [*range(1, 1001)]
    assert sum(passes) == (1000 if later is None else 2000) and len(passes) <= 10


def test_a_pass_is_no_smaller_for_what_the_one_before_has_left(
    start: Start, passes: list[int]
) -> None:
    """Functions take their time, so that a pass ends between a record and its neighbour's timer."""
    source, sink, flow = ManualSource(), ManualSink(), Flow("f")

    def step(context: Context, state: int, value: int) -> int:
        run.sim.clock.advance(0.00002)
        context.timer(context.time_ms + 5)
        return state + 1

    def ring(context: Context, state: int) -> int:
        run.sim.clock.advance(0.00002)
        return state

    flow.source(source).key_by(lambda v: v % 7).process("p", int, step, ring).sink(sink)
    run = start(flow, workers=1)
    source.give(0, *((ms, ms) for ms in range(1, 3001)))
    run.finish(source)
    assert sum(passes) == 6000 and len(passes) <= 40


def test_timers_that_set_timers_end_a_turn_all_the_same(start: Start, passes: list[int]) -> None:
    """A turn is short, however many calls are due (I7 for what else a worker does)."""

    def again(context: Context, state: int) -> int:
        if context.time_ms < 10_000:
            context.timer(context.time_ms + 1)
        return state + 1

    source, sink, flow = ManualSource(), ManualSink(), Flow("f")
    stream = flow.source(source).key_by(lambda v: KEY)
    stream.process("p", int, lambda c, s, v: _remind_number(c, s), again).sink(sink)
    run = start(flow, workers=1)
    source.give(0, (1, "first"))
    run.finish(source)
    assert run.state()["p"] == {codec.encode(KEY): codec.encode(10_000)}
    assert max(passes) == SLICE


def _remind_number(context: Context, state: int) -> int:
    context.timer(context.time_ms + 1)
    return state + 1


# -- timers that move


@pytest.mark.parametrize("target", [0, 1])
def test_a_timer_fires_at_the_owner_of_its_time(start: Start, target: int) -> None:
    """I2: from t on not at the old owner: those of 29, 30 and 31 around a move at 30."""
    source: list[list[Entry]] = [[(1, 28), (2, 28), (3, 28), (4, 100)]]
    _, got = run_process(start, source, _remind, _ring, [move(1, 1 - target), move(30, target)])
    assert [(ms, worker) for ms, _, worker in got] == [
        (29, 1 - target), (30, target), (31, target), (104, target),
    ]  # fmt: skip


def test_a_timer_set_while_its_bin_is_about_to_leave_leaves_too(start: Start) -> None:
    """I2: the departure at 50 is certain before the record of 40 sets a timer for 60."""
    source, sink = ManualSource(partitions=2), ListSink()
    flow = Flow("f", bins=1, control_lead=0.0)
    stream = flow.source(source).key_by(lambda v: KEY)
    stream.process("p", list, _remind, _ring).sink(sink)
    run = start(flow)
    for feed in source.feeds:
        feed.busy = True
    run.sim.submit(move(10, 0))
    run.sim.submit(move(50, 1))
    source.give(1, (100, 900))
    source.give(0, (20, 20))
    run.run_until_idle()
    departures = assembly_departures(run)
    assert departures == [50, 50], "both bins are certain to leave"
    source.give(0, (40, 20))
    run.run_until_idle()
    assert keyed(run.workers[0], "p").timers.least == from_millis(40)
    run.finish(source)
    assert [(ms, worker) for ms, _, worker in answers(sink)] == [(40, 0), (60, 1), (1000, 1)]


def assembly_departures(run: ManualFlow) -> list[int]:
    (outlet,) = run.workers[0].parts.operators.outgoing
    return [to_millis(departure.transfer.time) for departure in outlet.leaving]


def test_a_pending_timer_holds_what_comes_after_it(start: Start) -> None:
    """I1: a result of the timer's time may still leave, so nothing downstream passes it."""
    source, sink = ManualSource(partitions=2), ListSink()
    flow = Flow("f", bins=1)
    stream = flow.source(source).key_by(lambda v: KEY).process("p", list, _remind, _ring)
    stream.probe("after").sink(sink)
    run = start(flow)
    source.give(0, (20, 30))
    source.feeds[0].busy = True
    run.wait(0.01)
    (time,) = run.workers[0].frontiers()["after"].times
    assert isinstance(time, int) and to_millis(time) == 20 and sink.values == []
    source.feeds[0].busy = False
    source.give(1, (200, 5))
    run.wait(0.01)
    assert sink.values == [(KEY, [30])]
    run.finish(source)


def test_a_process_without_timers_is_never_asked_for_any() -> None:
    errors, _, _ = guard()
    logic = Process(list, (lambda c, s, v: s,), None, None, None, (), Sealing(PLAIN), errors)
    assert (logic.call_kinds) == ()
