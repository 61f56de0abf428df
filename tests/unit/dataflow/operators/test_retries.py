"""Retries: a function that raises is called again, in order, and changes no state before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meander import Context, Flow, KafkaSink, KafkaSource, Retry, SetupError
from meander.dataflow.logic.changeable import ChangeableLogic
from meander.dataflow.operators.keyed import columns
from meander.dataflow.operators.retries import Fallback
from meander.schemas.errors import MeanderError
from meander.testing import TestFlow

ONCE_MORE = Retry(times=1, wait=0.2)


class Flaky:
    """A function that fails on the first calls for each value in `failures`."""

    def __init__(self, **failures: int) -> None:
        self.left, self.calls = dict(failures), list[str]()

    def __call__(self, value: str) -> str:
        self.calls.append(value)
        if self.left.get(value, 0) > 0:
            self.left[value] -= 1
            raise ConnectionError(value)
        return value.upper()


def _mapped(function: Callable[[str], object], policy: Retry) -> Flow:
    flow = Flow("upper")
    words = flow.source(KafkaSource("words", value="str"))
    words.map(str.strip).map(function, on_error=policy).map(lambda v: v).sink(KafkaSink("out"))
    return flow


def test_function_that_fails_is_called_again_before_later_records() -> None:
    flaky = Flaky(b=2)
    with TestFlow(_mapped(flaky, Retry(times=2, wait=0.1)), workers=1) as run:
        run.feed("words", "a", "b", "c")
        run.run()
    assert flaky.calls == ["a", "b", "b", "b", "c"]
    assert run.values("out") == ["A", "B", "C"]
    assert (run.counters["retries"], run.dead_letters) == (2, [])


def test_record_on_which_all_calls_fail_gets_the_fallback() -> None:
    flaky = Flaky(b=9)
    with TestFlow(_mapped(flaky, Retry(times=3, wait=0.0)), workers=1) as run:
        run.feed("words", "a", "b", "c")
        run.run()
        (letter,) = run.dead_letters
    assert flaky.calls.count("b") == 1 + 3
    assert (letter.value, letter.reason) == ("b", "ConnectionError: b")
    assert run.values("out") == ["A", "C"]


def test_fallback_may_skip_or_end_the_flow() -> None:
    with TestFlow(_mapped(Flaky(b=9), Retry(times=1, wait=0.0, then="skip")), workers=1) as run:
        run.feed("words", "b")
        run.run()
    assert run.counters["skipped"] == 1
    with TestFlow(_mapped(Flaky(b=9), Retry(times=1, wait=0.0, then="fail")), workers=1) as run:
        run.feed("words", "b")
        with pytest.raises(MeanderError, match=r"operator 'map-2': .* ConnectionError: b"):
            run.run()


def test_next_call_waits_by_the_clock_while_turns_go_on() -> None:
    flaky, times = Flaky(a=1), list[float]()
    with TestFlow(_mapped(flaky, Retry(times=1, wait=3.0)), workers=1) as run:
        before = run.sim.clock.monotonic()
        run.feed("words", "a")
        run.run()
        times.append(run.sim.clock.monotonic() - before)
    assert times[0] >= 3.0
    assert run.values("out") == ["A"]


def test_flow_at_rest_has_no_call_to_repeat() -> None:
    with TestFlow(_mapped(Flaky(a=1), ONCE_MORE), workers=1) as run:
        run.feed("words", "a")
        run.run_until_idle()
        assert run.values("out") == ["A"]


def test_value_that_a_failed_call_changed_is_whole_in_the_next_call() -> None:
    seen = list[object]()

    def popped(value: dict[str, int]) -> int:
        seen.append(dict(value))
        taken = value.pop("n")
        if len(seen) == 1:
            raise ConnectionError
        return taken

    flow = Flow("popped")
    flow.source(KafkaSource("in")).map(popped, on_error=ONCE_MORE).sink(KafkaSink("out"))
    with TestFlow(flow, workers=1) as run:
        run.feed("in", {"n": 1})
        run.run()
    assert seen == [{"n": 1}, {"n": 1}]
    assert run.values("out") == [1]


@pytest.mark.parametrize("kind", ["filter", "flat_map", "inspect", "key_by", "split", "collection"])
def test_each_kind_of_step_is_called_again(kind: str) -> None:
    flaky, flow = Flaky(b=1), Flow(kind)
    words = flow.source(KafkaSource("words", value="str"))
    match kind:
        case "filter":
            out = words.filter(flaky, on_error=ONCE_MORE)
        case "flat_map":
            out = words.flat_map(lambda v: [flaky(v)] * 2, on_error=ONCE_MORE)
        case "inspect":
            out = words.inspect(flaky, on_error=ONCE_MORE)
        case "key_by":
            out = words.key_by(flaky, on_error=ONCE_MORE)
        case "split":
            _, out = words.split(
                lambda v: str(flaky(v) != "A"), "False", "True", on_error=ONCE_MORE
            )
        case _:
            rows = words.collection(lambda v: (flaky(v), 1, 1), key=str, on_error=ONCE_MORE)
            out = rows.changes().map(lambda change: change["key"])
    out.sink(KafkaSink("out"))
    with TestFlow(flow, workers=1) as run:
        run.feed("words", "a", "b", "c")
        run.run()
    assert flaky.calls == ["a", "b", "b", "c"]
    expected = {
        "flat_map": ["A", "A", "B", "B", "C", "C"],
        "split": ["b", "c"],
        "collection": ["A", "B", "C"],
    }
    assert sorted(map(str, run.values("out"))) == expected.get(kind, ["a", "b", "c"])
    assert run.dead_letters == []


def test_state_that_a_failed_call_changed_is_as_before() -> None:
    failures = [2]

    def step(state: list[str], value: str) -> tuple[list[str], list[str]]:
        state.append(value)
        if value == "b" and failures[0]:
            failures[0] -= 1
            raise ConnectionError
        return state, list(state)

    flow = Flow("lists")
    words = flow.source(KafkaSource("words", value="str")).key_by(lambda _: 0)
    words.fold("list", list, step, on_error=Retry(times=2, wait=0.1)).sink(KafkaSink("out"))
    with TestFlow(flow, workers=2) as run:
        run.feed("words", "a", "b", "c")
        run.run()
    assert run.values("out") == [["a"], ["a", "b"], ["a", "b", "c"]]


def test_process_function_sends_nothing_of_a_failed_call_and_its_timer_comes_again() -> None:
    failures = {"step": 1, "timer": 2}

    def fail(kind: str) -> None:
        if failures[kind]:
            failures[kind] -= 1
            raise ConnectionError(kind)

    def step(context: object, state: int, value: int) -> int:
        context.emit(("step", value))  # type: ignore[attr-defined]
        context.timer(context.time_ms + 5)  # type: ignore[attr-defined]
        fail("step")
        return state + value

    def timer(context: object, state: int) -> int:
        context.emit(("timer", state))  # type: ignore[attr-defined]
        fail("timer")
        return state

    flow = Flow("timed")
    numbers = flow.source(KafkaSource("numbers")).key_by(lambda _: 0)
    policy = Retry(times=2, wait=0.1)
    numbers.process("sum", int, step, timer, on_error=policy).sink(KafkaSink("out"))
    with TestFlow(flow, workers=1) as run:
        run.feed("numbers", 1, ms=1000)
        run.feed("numbers", 2, ms=1010)
        run.run()
    assert run.values("out") == [["step", 1], ["timer", 1], ["step", 2], ["timer", 3]]
    assert run.counters["retries"] == 3
    assert run.dead_letters == []


def test_timer_on_which_all_calls_fail_becomes_a_dead_letter() -> None:
    def step(context: object, state: int, value: int) -> int:
        context.timer(context.time_ms + 5)  # type: ignore[attr-defined]
        return state + value

    def timer(context: object, state: int) -> int:
        raise ConnectionError("timer")

    flow = Flow("timed")
    numbers = flow.source(KafkaSource("numbers")).key_by(lambda _: "k")
    numbers.process("sum", int, step, timer, on_error=ONCE_MORE).sink(KafkaSink("out"))
    with TestFlow(flow, workers=1) as run:
        run.feed("numbers", 1)
        run.run()
        (letter,) = run.dead_letters
    assert (letter.reason, letter.key, letter.value) == ("ConnectionError: timer", "k", None)
    assert run.counters["retries"] == 1


class Upper(ChangeableLogic, frozen=True):
    """A changeable step that fails on its first call."""

    def __call__(self, value: str) -> str:
        FAILED.append(value)
        if len(FAILED) == 1:
            raise ConnectionError
        return value.upper()


FAILED: list[str] = []


def test_changeable_step_is_called_again() -> None:
    FAILED.clear()
    with TestFlow(_mapped(Upper(), ONCE_MORE), workers=1) as run:
        run.feed("words", "a", "b")
        run.run()
    assert FAILED == ["a", "a", "b"]
    assert run.values("out") == ["A", "B"]


def test_sink_loop_and_columns_refuse_retries() -> None:
    flow = Flow("refused")
    numbers = flow.source(KafkaSource("numbers"))
    with pytest.raises(SetupError, match="sink.*rejects a record for its form"):
        numbers.sink(KafkaSink("out"), on_error=ONCE_MORE)
    with pytest.raises(SetupError, match="records of many keys at once"):
        numbers.key_by(lambda n: n).fold("count", columns.count(), on_error=ONCE_MORE)
    with pytest.raises(SetupError, match="its times is 0"):
        Retry(times=0)
    with pytest.raises(SetupError, match="its wait is -1"):
        Retry(wait=-1)
    with pytest.raises(SetupError, match="its times is '5'; give a whole number"):
        Retry(times="5")  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="its wait is '200ms'; give seconds from 0 to 3,600"):
        Retry(wait="200ms")  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_results_with_failures_are_those_without(seed: int) -> None:
    results = []
    for failures in (0, 7):
        left = dict.fromkeys(range(0, 40, 3), failures)

        def step(
            state: int, value: int, left: dict[int, int] = left
        ) -> tuple[int, tuple[int, int]]:
            if left.get(value, 0) > 0:
                left[value] -= 1
                raise ConnectionError(value)
            return state + value, (value, state + value)

        flow = Flow("sums", bins=3)
        numbers = flow.source(KafkaSource("numbers")).key_by(lambda n: n % 5)
        summed = numbers.fold("sum", int, step, on_error=Retry(times=9, wait=0.01))
        summed.sink(KafkaSink("out"))
        with TestFlow(flow, workers=3, seed=seed) as run:
            for n in range(40):
                run.feed("numbers", n, ms=1000 + n, partition=n % 2)
            run.run_until_idle()
            run.control({"type": "migrate", "id": "m", "bins": "all", "worker": 1})
            run.run()
        results.append(run.values("out"))
    assert results[0] == results[1]


def _lives(policy: Retry, failures: dict[int, int]) -> Flow:
    """A fold that fails so often on each value, and whose keys live for ten milliseconds."""

    def step(state: int, value: int) -> tuple[int, list[int]]:
        if failures.get(value, 0) > 0:
            failures[value] -= 1
            raise ConnectionError(value)
        return state + 1, [value, state + 1]

    flow = Flow("lives", bins=1)
    numbers = flow.source(KafkaSource("numbers")).key_by(lambda n: n % 2)
    numbers.fold("seen", int, step, ttl=0.01, on_error=policy).sink(KafkaSink("out"))
    return flow


def _counts(
    flow: Flow, *records: tuple[int, int]
) -> tuple[list[object], dict[object, object], list[object]]:
    with TestFlow(flow, workers=1, partitions=1) as run:
        for value, ms in records:
            run.feed("numbers", value, ms=ms)
        run.run()
        return run.values("out"), dict(run.states("seen")), [one.value for one in run.dead_letters]


def test_key_that_expires_at_a_record_on_which_a_fold_fails_begins_anew() -> None:
    found = _counts(_lives(Retry(2, 0.1), {4: 2}), (0, 1000), (2, 1009), (4, 1019), (6, 1028))
    assert found == ([[0, 1], [2, 2], [4, 1], [6, 2]], {0: 2}, [])


@pytest.mark.parametrize(("then", "letters"), [("skip", []), ("dead_letter", [2, 5])])
def test_record_on_which_all_calls_of_a_fold_fail_renews_no_key(
    then: Fallback, letters: list[object]
) -> None:
    """It changes no state either, as with a process function."""
    found = _counts(
        _lives(Retry(1, 0.1, then), {2: 9, 5: 9}), (0, 1000), (1, 1002), (2, 1009), (5, 1011),
        (3, 1011), (4, 1011), (7, 1020),
    )  # fmt: skip
    assert found == ([[0, 1], [1, 1], [3, 2], [4, 1], [7, 3]], {0: 1, 1: 3}, letters)


@pytest.mark.parametrize("seed", range(3))
def test_keys_live_as_long_with_failures_as_without(seed: int) -> None:
    results = []
    for failures in (0, 3):
        flow = _lives(Retry(times=9, wait=0.05), dict.fromkeys(range(0, 90, 3), failures))
        with TestFlow(flow, workers=3, seed=seed) as run:
            for n in range(90):
                run.feed("numbers", n, ms=1000 + 3 * n + 7 * (n % 5 == 0), partition=n % 2)
            run.run_until_idle()
            run.control({"type": "migrate", "id": "m", "bins": "all", "worker": 1})
            run.run()
            assert not run.dead_letters
        found: list[Any] = [*run.values("out")]
        results.append(found)
    assert results[0] == results[1]
    assert 2 < sum(count == 1 for _, count in results[0]) < 60, "keys expire"


class _Bell:
    """An operator whose records set alarms a second later, which fail so often."""

    def __init__(self, failures: int, policy: Retry) -> None:
        self.failures, self.calls, self._policy = failures, list[str](), policy

    def flow(self) -> Flow:
        flow = Flow("bells", bins=2)
        words = flow.source(KafkaSource("words", value="str")).key_by(lambda word: word[0])
        rung = words.process("bell", int, self._step, on_alarm=self._ring, on_error=self._policy)
        rung.sink(KafkaSink("out"))
        return flow

    def _step(self, context: Context[str], state: int, word: str) -> int:
        self.calls.append(word)
        if not state:
            context.alarm(1, name="bell")
        return state + 1

    def _ring(self, context: Context[str], state: int) -> int:
        self.calls.append(f"ring {context.key}")
        context.emit([context.key, state])
        context.alarm(3600)
        if context.key == "a" and self.failures:
            self.failures -= 1
            raise ConnectionError
        context.cancel("bell")
        return state


def _keys(run: TestFlow) -> list[str]:
    values: list[Any] = [*run.values("out")]
    return [key for key, _ in values]


def _ring(run: TestFlow, bell: _Bell) -> None:
    """Run until the function has failed on the alarm."""
    run.feed("words", "a1", ms=1000)
    run.run_until_idle()
    run.sim.clock.advance(1.1)
    while "ring a" not in bell.calls:
        run.act()


def test_alarm_that_fails_is_called_again_before_later_records_and_alarms() -> None:
    bell = _Bell(2, Retry(times=2, wait=5))
    with TestFlow(bell.flow(), workers=1) as run:
        _ring(run, bell)
        run.feed("words", "b1", "a2", ms=2000)
        run.advance(2)
        assert bell.calls == ["a1", *["ring a"] * 3, "b1", "a2", "ring b"]
        assert run.values("out") == [["a", 1], ["b", 1]]
    assert (run.counters["retries"], run.dead_letters) == (2, [])


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("wait", [0.0, 0.3])
def test_alarm_on_which_all_calls_fail_gets_the_fallback_while_records_come(
    workers: int, wait: float
) -> None:
    """Its calls have other times, and still count as calls of one alarm."""
    bell = _Bell(99, Retry(times=3, wait=wait))
    with TestFlow(bell.flow(), workers=workers) as run:
        for n in range(20):
            run.feed("words", f"a{n}", f"b{n}", ms=1000 + 500 * n)
            run.advance(0.2)
        assert bell.calls.count("ring a") == 1 + 3
        (letter,) = run.dead_letters
        assert _keys(run) == ["b"]
    assert (letter.reason, letter.key) == ("ConnectionError", "a")
    assert len([call for call in bell.calls if call[0] in "ab"]) == 40


@pytest.mark.parametrize("first", [0, 1])
def test_alarm_that_waits_for_another_call_moves_with_its_key(first: int) -> None:
    """I7: the worker that had it applies records again."""
    bell = _Bell(1, Retry(times=1, wait=30))
    with TestFlow(bell.flow(), workers=2) as run:
        _ring(run, bell)
        for n in range(3):
            target = (first + n) % 2
            run.control({"type": "migrate", "id": f"m{n}", "bins": "all", "worker": target})
            run.feed("words", "b", ms=5000 + 5000 * n)
            for _ in range(500):
                run.act()
        run.advance(31)
        assert bell.calls.count("ring a") == 2
        assert _keys(run).count("a") == 1
        assert bell.calls.count("b") == 3
