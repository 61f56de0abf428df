"""`context.forget()`: the key has no state behind the call, and its next record meets a new one."""

from __future__ import annotations

from typing import Any

from meander import Flow, KafkaSink, KafkaSource
from meander.testing import TestFlow


def flow_of(step: Any, *others: Any, **options: Any) -> Flow:
    flow = Flow("words", bins=2)
    words = flow.source(KafkaSource("in", value="str", key="str", pairs=True))
    processed = words.key_by(lambda pair: pair[0]).process("op", int, step, *others, **options)
    processed.sink(KafkaSink("out"))
    return flow


def count_until_end(context: Any, n: int, pair: Any) -> int:
    context.emit(n + 1)
    if pair[1] == "end":
        context.forget()
    return n + 1


def feed(run: TestFlow, *words: str) -> None:
    for word in words:
        run.feed("in", word, key="k")


def test_a_forgotten_key_has_no_state_and_starts_anew() -> None:
    with TestFlow(flow_of(count_until_end)) as run:
        feed(run, "a", "b", "end", "c")
        run.run_until_idle()
        assert run.states("op") == {"k": 1}
        feed(run, "end")
        run.run()
        assert run.values("out") == [1, 2, 3, 1, 2]
        assert run.states("op") == {}
        assert run.state()["op"] == {}


def test_none_is_a_state() -> None:
    def step(context: Any, state: Any, pair: Any) -> Any:
        context.emit(repr(state))

    with TestFlow(flow_of(step)) as run:
        feed(run, "a", "b")
        run.run()
        assert run.values("out") == ["0", "None"]
        assert run.states("op") == {"k": None}


def test_a_function_that_fails_forgets_nothing() -> None:
    def step(context: Any, n: int, pair: Any) -> int:
        if pair[1] == "bad":
            context.forget()
            raise ValueError("bad")
        return n + 1

    with TestFlow(flow_of(step)) as run:
        feed(run, "a", "bad")
        run.run()
        assert run.states("op") == {"k": 1}
        assert len(run.dead_letters) == 1


def test_a_key_that_never_had_a_state_may_be_forgotten() -> None:
    def step(context: Any, n: int, pair: Any) -> int:
        context.forget()
        return 7

    with TestFlow(flow_of(step)) as run:
        feed(run, "a")
        run.run()
        assert run.states("op") == {}


def test_a_notification_forgets_its_key() -> None:
    def step(context: Any, n: int, pair: Any) -> int:
        context.notify()
        return n + 1

    def on_notify(context: Any, n: int) -> int:
        context.emit(n)
        context.forget()
        return n

    with TestFlow(flow_of(step, on_notify=on_notify)) as run:
        feed(run, "a")
        run.run()
        assert run.values("out") == [1]
        assert run.states("op") == {}


def test_timers_of_a_forgotten_key_stay_and_meet_a_new_state() -> None:
    def step(context: Any, n: int, pair: Any) -> int:
        context.timer(context.time_ms + 5)
        context.forget()
        return n + 1

    def on_timer(context: Any, n: int) -> int:
        context.emit(n)
        context.forget()
        return n

    with TestFlow(flow_of(step, on_timer)) as run:
        feed(run, "a")
        run.run()
        assert run.values("out") == [0]
        assert run.states("op") == {}


def test_a_forgotten_key_stays_forgotten_wherever_its_bin_moves() -> None:
    with TestFlow(flow_of(count_until_end), workers=3) as run:
        for turn in range(6):
            feed(run, "a", "end" if turn % 2 else "b")
            run.run_until_idle()
            run.control({"type": "migrate", "id": f"m{turn}", "bins": "all", "worker": turn % 3})
            run.run_until_idle()
            assert run.states("op") == ({} if turn % 2 else {"k": 2})
        run.run()
