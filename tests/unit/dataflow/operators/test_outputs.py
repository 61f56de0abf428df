"""Operators with several outputs: each record leaves by those that its function names."""

from __future__ import annotations

from typing import Any

import pytest

from meander import Flow, KeyedStream
from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import SetupError
from tests.support.sim.manual_flow import ManualSource, keyed
from tests.support.sim.one_key_flow import KEY, move
from tests.support.sim.start import Start


def parity(number: int) -> str:
    return "odd" if number % 2 else "even"


def numbers(count: int) -> ListSource:
    return ListSource([[(ms, ms) for ms in range(1, count)]])


# -- split


@pytest.mark.parametrize("workers", [1, 3])
def test_each_record_leaves_by_the_output_that_is_named(start: Start, workers: int) -> None:
    """I3: once, and with its place in the total order."""
    flow, evens, odds = Flow("f"), ListSink(), ListSink()
    even, odd = flow.source(numbers(50)).split(parity, "even", "odd")
    even.sink(evens)
    odd.sink(odds)
    start(flow, workers).run()
    for sink, rest in ((evens, 0), (odds, 1)):
        assert sorted((r.offset + 1, r.value) for r in sink.results) == [
            (n, n) for n in range(1, 50) if n % 2 == rest
        ]


def test_a_keyed_stream_stays_keyed_when_it_is_split(start: Start) -> None:
    """I2: what is behind the split is where its key's state is."""
    flow, sink = Flow("f", bins=4), ListSink()
    stream = flow.source(numbers(40)).key_by(lambda n: n % 5)
    even, odd = stream.split(parity, "even", "odd")
    assert isinstance(even, KeyedStream)
    assert isinstance(odd, KeyedStream)
    even.fold("evens", int, lambda total, n: (total + n, (n % 5, total + n))).sink(sink)
    odd.sink(ListSink())
    run = start(flow, workers=3)
    run.run()
    assert (4, sum(n for n in range(2, 40, 2) if n % 5 == 4)) in sink.values
    run.state()


def test_a_value_for_which_no_output_is_named_has_failed(start: Start) -> None:
    """I5: it is set aside, not dropped in silence."""
    flow, sink = Flow("f"), ListSink()
    (low,) = flow.source(numbers(5)).split(lambda n: ["low", "high", None, []][n - 1], "low")
    low.sink(sink)
    run = start(flow)
    run.run()
    assert sink.values == [1]
    assert [(letter.operator, letter.value) for letter in run.dead_letters] == [
        ("split", n) for n in (2, 3, 4)
    ]
    assert "'high' is none of its outputs low" in run.dead_letters[0].reason


def test_outputs_are_named_once_each() -> None:
    stream = Flow("f").source(numbers(2))
    for outputs in ((), ("a", "a")):
        with pytest.raises(SetupError, match=r"operator 'split': .* name each of its outputs once"):
            stream.split(parity, *outputs)


# -- side outputs of a process


def sort_out(context: Context, state: int, value: int) -> int:
    if value < state:
        context.emit(("late", value), to="late")
        context.emit(("by", state - value), to="late")
    else:
        context.emit(value)
    return max(state, value)


def test_a_process_emits_to_its_side_outputs(start: Start) -> None:
    """I3: in each of them results stand at the place of their record."""
    flow, first, late = Flow("f", bins=1), ListSink(), ListSink()
    values = ListSource([[(1, 5), (2, 3), (3, 6)]])
    stream = flow.source(values).key_by(lambda v: KEY).process("p", int, sort_out, side=["late"])
    stream.sink(first)
    stream.side("late").sink(late)
    start(flow).run()
    assert [(r.offset, r.value) for r in first.results] == [(0, 5), (2, 6)]
    assert [(r.offset, r.index, r.value) for r in late.results] == [
        (1, 0, ("late", 3)), (1, 1, ("by", 2)),
    ]  # fmt: skip


def test_side_outputs_stay_keyed_and_move_with_their_bins(start: Start) -> None:
    """I2, I4: what follows has its state where the key is, before and after a move."""
    flow, sink = Flow("f", bins=1), ListSink()
    values = ListSource([[(ms, ms if ms % 2 else 0) for ms in range(1, 20)]])
    stream = flow.source(values).key_by(lambda v: KEY).process("p", int, sort_out, side=["late"])
    stream.side("late").fold("n", int, lambda n, v: (n + 1, n + 1)).sink(sink)
    run = start(flow, 2, [move(9, 0), move(15, 1)])
    run.run()
    assert sorted(map(int, map(str, sink.values))) == list(range(1, 19))
    assert {r.worker for r in sink.results if r.time >= 15 << 20} == {1}
    run.state()


def test_timers_emit_to_side_outputs_too(start: Start) -> None:
    flow, late = Flow("f", bins=1), ListSink()

    def step(context: Context, state: int, value: int) -> int:
        context.timer(context.time_ms + 5)
        return state + value

    def ring(context: Context, state: int) -> int:
        context.emit(state, to="rings")
        return state

    stream = flow.source(ListSource([[(1, 5)]])).key_by(lambda v: KEY)
    stream.process("p", int, step, ring, side=["rings"]).side("rings").sink(late)
    start(flow).run()
    assert late.values == [5]


def test_no_frontier_passes_what_may_still_leave_by_a_side_output(start: Start) -> None:
    """I1: a record that waits is owed to all outputs."""
    source, flow = ManualSource(partitions=2), Flow("f", bins=1)
    source.feeds[1].busy = True
    stream = flow.source(source).key_by(lambda v: KEY).process("p", int, sort_out, side=["late"])
    stream.side("late").probe("late").sink(ListSink())
    run = start(flow)
    source.give(1, (7, 1))
    source.give(0, (9, 2))
    run.run_until_idle()
    assert {name: list(f) for name, f in run.workers[0].frontiers().items()} == {
        "late": [7 << 20], "sink": [7 << 20],
    }  # fmt: skip
    source.feeds[1].busy = False
    run.finish(source)
    assert all(not keyed(worker, "p")._outputs.least for worker in run.workers)


def test_what_is_emitted_to_no_output_of_the_operator_has_failed(start: Start) -> None:
    """I5: and all that the function did with it is undone."""

    def step(context: Any, state: int, value: int) -> int:
        context.emit(value)
        context.emit(value, to="nowhere")
        return state + 1

    flow, sink = Flow("f", bins=1), ListSink()
    stream = flow.source(ListSource([[(1, 5)]])).key_by(lambda v: KEY)
    stream.process("p", int, step, side=["late"]).sink(sink)
    run = start(flow)
    run.run()
    assert (sink.values, run.state()) == ([], {"p": {}})
    assert "no side output 'nowhere': name it in `side`" in run.dead_letters[0].reason


def test_a_side_output_that_was_not_named_is_refused() -> None:
    stream = Flow("f").source(numbers(2)).key_by(lambda v: v)
    processed = stream.process("p", int, sort_out, side=["late"])
    with pytest.raises(SetupError, match=r"operator 'p': it has no side output 'early'"):
        processed.side("early")
    for side in ("late", ["late", "late"]):
        with pytest.raises(SetupError, match=r"operator 'q': its side outputs are"):
            stream.process("q", int, sort_out, side=side)
