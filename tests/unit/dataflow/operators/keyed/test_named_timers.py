"""Timers with names: set anew, cancelled, and told apart, wherever their key moves (I2, I3)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from meander.dataflow.operators.keyed.callbacks import CallKind
from meander.dataflow.operators.keyed.context import NAME_BYTES, Context
from meander.state.encoding import codec
from meander.state.times.time import from_millis
from tests.support.sim.one_key_flow import KEY, Entry, move, run_process
from tests.support.sim.start import Start


def _step(context: Any, state: list[object], value: Any) -> list[object]:
    """Set the timer of a name so many milliseconds later, or cancel it."""
    name, later = value
    if later is None:
        context.cancel(name)
    else:
        context.timer(context.time_ms + later, name=name)
    return [*state, later]


def _ring(context: Any, state: list[object]) -> list[object]:
    context.emit((context.time_ms, context.timer_name))
    return state


def _fired(start: Start, entries: list[Entry], *moves: Any) -> list[object]:
    run, got = run_process(start, [entries], _step, _ring, moves)
    assert run.dead_letters == []
    return [value for _, value, _ in got]


def test_a_timer_of_a_name_replaces_the_one_before(start: Start) -> None:
    entries: list[Entry] = [(1, ("x", 50)), (2, ("y", 60)), (3, ("x", 10)), (4, ("x", 100))]
    assert _fired(start, entries) == [(62, "y"), (104, "x")]


def test_a_cancelled_timer_never_fires(start: Start) -> None:
    entries: list[Entry] = [(1, ("x", 50)), (2, ("y", 60)), (3, ("x", None)), (4, ("z", None))]
    assert _fired(start, entries) == [(62, "y")]


def test_a_timer_cancelled_at_its_own_time_does_not_fire(start: Start) -> None:
    """I3: records of a time come before its timers."""
    assert _fired(start, [(1, ("x", 50)), (51, ("x", None)), (52, ("x", 1))]) == [(53, "x")]


@pytest.mark.parametrize("cancelled_at", [4, 30, 60])
def test_a_timer_cancelled_around_a_move_does_not_return(start: Start, cancelled_at: int) -> None:
    """I2: before the move, between its decision and its time, and after it."""
    entries: list[Entry] = [
        (1, ("x", 200)), (2, ("y", 200)), (cancelled_at, ("x", None)), (300, ("z", 1)),
    ]  # fmt: skip
    assert _fired(start, entries, move(40, 1), move(90, 2)) == [(202, "y"), (301, "z")]


def test_timers_of_one_key_and_time_fire_in_the_order_of_their_names(start: Start) -> None:
    """I3: the one without a name comes first, and results have this order too."""
    entries: list[Entry] = [(1, (name, 9)) for name in ("b", None, "ab", "a", "ü")]
    names = [cast("tuple[int, str]", value)[1] for value in _fired(start, entries)]
    assert names == [None, "a", "ab", "b", "ü"]


def test_a_timer_function_may_set_its_own_name_anew_and_cancel_others(start: Start) -> None:
    def ring(context: Any, state: list[object]) -> list[object]:
        _ring(context, state)
        context.cancel("other")
        if context.time_ms < 20:
            context.timer(context.time_ms + 5, name=context.timer_name)
        return state

    entries: list[Entry] = [(1, ("other", 30)), (2, ("x", 10))]
    run, got = run_process(start, [entries], _step, ring)
    assert [value for _, value, _ in got] == [(12, "x"), (17, "x"), (22, "x")]
    assert run.dead_letters == []


def test_what_a_failing_function_cancels_still_fires(start: Start) -> None:
    """I5: the function leaves nothing behind."""

    def step(context: Any, state: list[object], value: Any) -> list[object]:
        _step(context, state, value)
        if value[1] is None:
            raise ValueError("half-way")
        return state

    run, got = run_process(start, [[(1, ("x", 50)), (2, ("x", None))]], step, _ring)
    assert [value for _, value, _ in got] == [(51, "x")]
    assert len(run.dead_letters) == 1


TIMED: list[CallKind] = ["timer"]


@pytest.mark.parametrize("name", ["", "x" * (NAME_BYTES + 1), b"x", 7, "\ud800"])
def test_a_name_that_is_no_text_of_the_right_length_is_refused(name: Any) -> None:
    context = Context(codec.encode(KEY), from_millis(5), TIMED, ())
    with pytest.raises(ValueError, match="the name of a timer"):
        context.timer(6, name=name)
    with pytest.raises(ValueError, match="the name of a timer"):
        context.cancel(name)
    assert context._timers == []


def test_cancelling_without_any_timers_is_refused() -> None:
    context = Context(codec.encode(KEY), from_millis(5), (), ())
    with pytest.raises(ValueError, match="no on_timer or on_alarm function"):
        context.cancel("x")
