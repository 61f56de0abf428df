"""Alarms: calls by the wall clock, which a test advances, wherever their key moves (I1, I2)."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest

from meander import Checkpointing, Context, Flow, KafkaSink, KafkaSource, SetupError
from meander.dataflow.api.plan import Plan
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.testing import Jump, TestFlow


def _step(context: Any, state: int, value: Any) -> int:
    name, seconds = value
    if seconds is None:
        context.cancel(name)
    else:
        context.alarm(seconds, name=name)
    return state + 1


def _ring(context: Any, state: int) -> int:
    context.emit([context.key, context.timer_name, state])
    return state


def _alarm_in(seconds: float, context: Any, state: int, value: object) -> int:
    context.alarm(seconds)
    return state


def _flow(**options: Any) -> Flow:
    flow = Flow("alarms", bins=2, **options)
    keyed = flow.source(KafkaSource("in", pairs=True)).key_by(lambda pair: pair[0])
    stream = keyed.process("p", int, lambda c, s, v: _step(c, s, v[1]), on_alarm=_ring)
    stream.sink(KafkaSink("out"))
    return flow


def _feed(run: TestFlow, *records: tuple[str, object], **options: Any) -> None:
    for key, value in records:
        run.feed("in", value, key=key, **options)


@pytest.mark.parametrize("workers", [1, 3])
def test_an_alarm_calls_once_so_much_time_has_passed_and_no_record_comes(workers: int) -> None:
    with TestFlow(_flow(), workers=workers) as run:
        _feed(run, ("a", [None, 5]), ("b", ["late", 60]))
        run.advance(4)
        assert run.values("out") == []
        run.advance(1.5)
        assert run.values("out") == [["a", None, 1]]
        run.advance(60)
        assert run.values("out") == [["a", None, 1], ["b", "late", 1]]


def test_a_flow_that_ends_calls_no_alarm() -> None:
    """I7: it does not wait for the clock either."""
    with TestFlow(_flow()) as run:
        _feed(run, ("a", [None, 3600]))
        run.run()
    assert run.values("out") == []


def test_an_alarm_of_a_name_replaces_the_one_before_and_a_cancelled_one_never_calls() -> None:
    with TestFlow(_flow()) as run:
        _feed(run, ("a", ["x", 5]), ("b", ["x", 5]), ("c", ["x", 5]))
        run.advance(3)
        _feed(run, ("a", ["x", None]), ("b", ["x", 5]))
        run.advance(3)
        assert run.values("out") == [["c", "x", 1]]
        run.advance(3)
        assert sorted(run.values("out")) == [["b", "x", 2], ["c", "x", 1]]  # type: ignore[type-var]


def test_alarms_move_with_their_keys() -> None:
    """I2: each calls once, at the owner of its key."""
    with TestFlow(_flow(), workers=3) as run:
        _feed(run, *((f"k{n}", [None, 5]) for n in range(20)))
        run.run_until_idle()
        for n in range(4):
            target = n % 3
            run.control({"type": "migrate", "id": f"m{n}", "bins": "all", "worker": target})
            run.advance(2)
        run.advance(5)
        results = run.results("out")
        assert sorted(result.value[0] for result in results) == sorted(  # type: ignore[index]
            f"k{n}" for n in range(20)
        )


def test_an_alarm_has_the_time_that_the_operator_has_reached() -> None:
    """I1: no earlier than the records before it, and results of both stand in this order."""
    times = list[tuple[str, int]]()

    def step(context: Context[str], state: int, value: object) -> int:
        times.append(("record", context.time_ms))
        context.alarm(1)
        return state

    def ring(context: Context[str], state: int) -> int:
        times.append(("alarm", context.time_ms))
        return state

    flow = Flow("times")
    keyed = flow.source(KafkaSource("in", value="str")).key_by(lambda value: value)
    keyed.process("p", int, step, on_alarm=ring).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        for ms in (1000, 5000, 9000):
            run.feed("in", "a", ms=ms)
            run.advance(2)
    assert times == sorted(times, key=lambda time: time[1])
    assert [kind for kind, _ in times] == ["record", "alarm"] * 3


def test_an_alarm_may_set_the_next() -> None:
    def ring(context: Any, state: int) -> int:
        context.emit(state)
        context.alarm(10)
        return state + 1

    flow = Flow("ticks")
    keyed = flow.source(KafkaSource("in", value="str")).key_by(lambda value: value)
    step = partial(_alarm_in, 10)
    keyed.process("p", int, step, on_alarm=ring).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("in", "a")
        for _ in range(3):
            run.advance(10.5)
        assert run.values("out") == [0, 1, 2]


def test_a_wall_clock_set_backwards_delays_an_alarm() -> None:
    with TestFlow(_flow()) as run:
        _feed(run, ("a", [None, 5]))
        run.run_until_idle()
        run.inject(Jump(-10))
        run.advance(6)
        assert run.values("out") == []
        run.advance(10)
        assert run.values("out") == [["a", None, 1]]


def test_a_result_of_an_alarm_reaches_sorted_operators_behind_it_without_a_record() -> None:
    """I7: the sources of a silent flow pass its time."""
    flow = Flow("chain", bins=1)
    keyed = flow.source(KafkaSource("in", pairs=True)).key_by(lambda pair: pair[0])
    rung = keyed.process("p", int, lambda c, s, v: _step(c, s, v[1]), on_alarm=_ring)
    counted = rung.key_by(lambda value: value[0]).fold("n", int, lambda n, _: (n + 1, n + 1))
    again = counted.key_by(str).process("q", int, partial(_alarm_in, 2), on_alarm=_ring)
    again.sink(KafkaSink("out"))
    with TestFlow(flow, partitions=3) as run:
        _feed(run, ("a", [None, 5]))
        run.advance(6)
        run.advance(3)
        assert run.values("out") == [["1", None, 0]]


def test_results_behind_alarms_wait_for_checkpoints_where_a_flow_delivers_exactly_once() -> None:
    """I5: a replay would call them at other times."""
    with pytest.raises(SetupError, match="nondeterministic"):
        Plan(_flow(delivery="exactly_once"))
    once = _flow(delivery="exactly_once", checkpoints=Checkpointing(interval=1.0))
    assert Plan(once).outboxes == {"sink"}


def test_alarms_in_a_loop_are_refused() -> None:
    flow = Flow("f")
    keyed = flow.source(KafkaSource("in")).key_by(str)

    def body(stream: Any) -> Any:
        again = stream.process("p", int, lambda c, s, v: s, on_alarm=_ring).key_by(str)
        return again, again

    with pytest.raises(SetupError, match="it sets alarms in scope"):
        keyed.iterate("loop", body)


def _first_alone(context: Any, state: int, value: object) -> int:
    if state == 0:
        context.alarm(3600, name=str(value))
    return state + 1


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("policy", ["aligned", "unaligned"])
def test_alarms_restart_with_a_checkpoint_and_call_once(
    workers: int, delivery: Any, policy: Any
) -> None:
    """I5: no record sets them again."""
    sink, words = ListSink(), [(n, f"k{n % 7}") for n in range(1000)]
    flow = Flow("f", bins=3, delivery=delivery, checkpoints=Checkpointing(0.05, policy))
    keyed = flow.source(ListSource([words, words])).key_by(lambda word: word)
    keyed.process("p", int, _first_alone, on_alarm=_ring).sink(sink)
    with TestFlow(flow, workers=2) as run:
        while len(run.world.checkpoints) < 3:
            run.act()
        world = run.world
    assert sink.values == []
    with TestFlow(flow, workers=workers, world=world) as run:
        while any(worker.loading for worker in run.workers):
            run.act()
        run.sim.clock.advance(3601)
        run.run()
    called = [cast("list[Any]", value)[:2] for value in sink.values]
    assert sorted(called) == [[f"k{n}", f"k{n}"] for n in range(7)]
