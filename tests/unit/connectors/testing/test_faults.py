"""Faults as data: what each does to a flow, that none is lost, and that all can be repeated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from meander import Checkpointing, Flow, KafkaSink, KafkaSource, columns, testing
from meander.dataflow.api.checkpointing import ON_COMMAND
from meander.dataflow.errors import WorkerLost
from meander.dataflow.simulation.faults import Fault
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.status import parse_event
from meander.state.keys.bins import BinSpace
from meander.testing import (
    AddPartition,
    Answer,
    At,
    Control,
    Crash,
    Feed,
    Idle,
    Join,
    Jump,
    Leave,
    MovePartition,
    Pause,
    Raise,
    Slow,
    TestFlow,
)
from tests.support.sim.counting_test_flow import BINS, KEYS, counting, expect_counts, fed

ALL_TO_1 = Control({"type": "migrate", "id": "m", "bins": "all", "worker": 1})


def course(seed: int, *faults: At) -> tuple[object, ...]:
    """All that can be seen of a run."""
    with fed(TestFlow(counting(), seed=seed, faults=faults)) as run:
        run.run()
        expect_counts(run)
        return run.sim.actions, run.events, run.records("out"), run.counters


PLAN = [
    At(ALL_TO_1, records=10),
    At(Pause(1, 300), records=20),
    At(Slow(0, 1, 300), step=50),
    At(Idle("in", 1, 200), seconds=0.001),
]


# -- the same again


def test_the_same_seed_and_faults_take_the_same_course() -> None:
    assert course(3, *PLAN) == course(3, *PLAN)


def test_another_seed_or_another_fault_takes_another_course() -> None:
    assert len({course(3, *PLAN)[0], course(4, *PLAN)[0], course(3, *PLAN[1:])[0]}) == 3


def test_a_failure_says_how_to_repeat_it() -> None:
    run = fed(TestFlow(counting(), seed=5, faults=PLAN))

    def fail() -> None:
        with run:
            run.run()
            assert run.values("out") == ["something else"]

    with pytest.raises(AssertionError) as failed:
        fail()
    (note,) = failed.value.__notes__
    steps = run.sim.actions
    assert note.startswith(
        f"The failure occurred at step {steps} of TestFlow(flow, workers=2, seed=5,"
    )
    written = note[note.index("TestFlow(") : note.index(". A run with these")]
    with eval(written, {"flow": counting(), **vars(testing)}) as again:
        fed(again).run()
        assert again.sim.actions == steps


@pytest.mark.parametrize("seed", range(5))
def test_no_more_is_read_before_a_fault_than_it_waits_for(seed: int) -> None:
    faults = [At(Crash(0), records=7)]
    with fed(TestFlow(counting(), seed=seed, faults=faults)) as run:
        with pytest.raises(MeanderError):
            run.run()
        assert run.counters["read"] == 7


# -- what each does


def test_a_paused_worker_answers_nothing_until_its_pause_is_over() -> None:
    with fed(TestFlow(counting())) as run:
        run.inject(Pause(worker=1, steps=2000))
        while run.sim.actions < 2000:
            run.act()
        assert 1 not in {result.worker for result in run.results("out")}
        run.run()
        assert {result.worker for result in run.results("out")} == {0, 1}
        expect_counts(run)


def test_while_the_coordinator_pauses_no_command_is_obeyed() -> None:
    with fed(TestFlow(counting())) as run:
        run.run_until_idle()
        run.inject(Pause(worker=-1, steps=3000))
        begun = run.sim.actions
        run.inject(ALL_TO_1)
        while run.sim.actions < begun + 3000:
            run.act()
        assert cast(Any, run.answer("m")).state == "accepted"
        run.run()
        assert cast(Any, run.answer("m")).state == "completed"


def test_nothing_arrives_on_a_slow_link_until_it_is_over() -> None:
    with fed(TestFlow(counting())) as run:
        run.inject(Slow(sender=0, receiver=1, steps=2000))
        while run.sim.actions < 2000:
            run.act()
        assert 1 not in {result.worker for result in run.results("out")}
        run.run()
        expect_counts(run)


@pytest.mark.parametrize("checkpoints", [ON_COMMAND, Checkpointing(interval=0.01)])
def test_a_crash_ends_the_run_and_names_what_to_do_instead(
    checkpoints: Checkpointing,
) -> None:
    sentence = (
        r"worker 1: its process was killed, or crashed; a TestFlow does not recover: check its"
        r" results so far, or start another TestFlow, which starts from scratch\."
    )
    flow = counting()
    flow.checkpoints = checkpoints
    with fed(TestFlow(flow, faults=[At(Crash(1), records=20)])) as run:
        with pytest.raises(WorkerLost, match=sentence):
            run.run()
        assert run.counters["read"] == 20
        results = run.results("out")
        for step in (run.run, run.run_until_idle, lambda: run.advance(1)):
            with pytest.raises(WorkerLost, match=sentence):
                step()
        assert run.results("out") == results


def _pass(context: Any, state: int, value: Any) -> int:
    context.emit(value)
    return state + 1


def _ring(context: Any, state: int) -> int:
    context.emit("rang")
    return state


def _later(context: Any, state: int, value: Any) -> int:
    context.timer(context.time_ms + 1)
    return state + 1


def _notice(context: Any, state: int, value: Any) -> int:
    context.notify()
    return state + 1


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "map": lambda s: s.map(str),
    "filter": lambda s: s.filter(bool),
    "flat_map": lambda s: s.flat_map(lambda v: [v]),
    "inspect": lambda s: s.inspect(str),
    "key_by": lambda s: s.key_by(str),
    "split": lambda s: s.split(lambda v: "all", "all")[0],
    "fold": lambda s: s.key_by(str).fold("fold", lambda: 0, lambda n, v: (n + 1, v)),
    "columns": lambda s: s.key_by(str).fold("columns", columns.count()),
    "process": lambda s: s.key_by(str).process("process", lambda: 0, _pass),
    "timer": lambda s: s.key_by(str).process("timer", lambda: 0, _later, _ring),
    "notice": lambda s: s.key_by(str).process("notice", lambda: 0, _notice, on_notify=_ring),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("operator", FUNCTIONS)
def test_a_function_raises_at_its_fault_and_its_record_is_a_dead_letter(
    operator: str, seed: int
) -> None:
    """I5: one of the records, and nothing else, also where many are asked for at once."""
    flow = Flow("f", bins=BINS)
    FUNCTIONS[operator](flow.source(KafkaSource("in", value="str"))).sink(KafkaSink("out"))
    with TestFlow(flow, seed=seed, faults=[At(Raise(operator, calls=1), step=1)]) as run:
        for n in range(5):
            run.feed("in", *KEYS, ms=1000 + 10 * n)
        run.run()
        (letter,) = run.dead_letters
        assert (letter.operator, letter.reason) == (
            operator, f"Planted: a fault makes a call of {operator!r} raise"
        )  # fmt: skip
        assert len(run.values("out")) == 5 * len(KEYS) - 1
        assert run.counters["dead_letters"] == 1


def test_the_users_own_flow_stays_as_it_is() -> None:
    flow = counting()
    before = list(flow.nodes)
    assert course(0, At(Raise("n", 0), step=1))
    with fed(TestFlow(flow, faults=[At(Raise("n"), step=1)])) as run:
        run.run()
        assert len(run.dead_letters) == 1
    assert flow.nodes == before


def test_a_record_is_of_the_future_by_a_wall_clock_that_jumps() -> None:
    """Such a record asks for no time of its own."""
    with TestFlow(counting()) as run:
        now = run.sim.clock.now_ms()
        run.inject(Jump(-3600))
        run.feed("in", "k0", ms=now)
        run.run_until_idle()
        assert run.counters["future_ignored"] == 1
        run.inject(Jump(3600))
        run.feed("in", "k0", ms=now)
        run.run()
        assert run.counters["future_ignored"] == 1
        assert [result.time > 0 for result in run.results("out")] == [False, True]


def test_what_comes_late_on_an_idle_partition_is_adjusted_and_still_counted() -> None:
    with fed(TestFlow(counting(), faults=[At(Idle("in", 1, 3000), step=0)])) as run:
        while run.sim.actions < 3000:
            run.act()
        assert {result.partition for result in run.results("out")} == {0}
        run.run()
        assert run.counters["late_adjusted"] > 0
        counted = Counter(cast(list[str], value)[0] for value in run.values("out"))
        assert counted == dict.fromkeys(KEYS, 5)


def test_a_record_that_cannot_be_read_is_set_aside_as_its_bytes() -> None:
    with fed(TestFlow(counting(), faults=[At(Feed("in", b"\xff"), records=40)])) as run:
        run.run()
        (letter,) = run.dead_letters
        assert (letter.operator, letter.value, letter.offset) == ("source in", b"\xff", 20)
        assert letter.reason.startswith("its value cannot be read: UnicodeDecodeError")
        assert run.counters["unreadable"] == 1
        expect_counts(run)


def test_workers_join_and_leave_and_partitions_change_hands() -> None:
    """I2: state is where its bin is, and the leaver keeps none."""
    faults = [
        At(Join(), records=5),
        At(Control({"type": "migrate", "id": "m", "bins": "all", "worker": 2}), records=10),
        At(MovePartition("h", "source", 0, 2), records=20),
        At(Leave("l", 0), records=30),
    ]
    with fed(TestFlow(counting(), faults=faults)) as run:
        run.run()
        expect_counts(run)
        happened = {event["type"] for event in run.events}
        assert happened >= {"joined", "completed", "partition_moved", "left"}
        assert {run.owner(key) for key in KEYS} == {2}
        assert [worker.me for worker in run.workers] == [1, 2]
        assert run.states("n") == dict.fromkeys(KEYS, 5)


# -- what is said of commands


def test_commands_are_answered_as_on_the_control_topic() -> None:
    bins = 1 << BINS
    with fed(TestFlow(counting())) as run:
        assert run.answer("m") is None
        run.inject(ALL_TO_1)
        run.control(b"no JSON")
        run.control({"type": "migrate", "id": "w", "bins": [0], "worker": 2000})
        run.control({"type": "migrate", "id": "b", "bins": [bins], "worker": 0})
        run.control({"type": "migrate", "id": "t", "bins": [0], "worker": 0, "time": 0})
        run.control(cast(dict[str, object], ALL_TO_1.command))
        run.run()
        moved = sum(BinSpace(BINS).first_owner(b, 2) == 0 for b in range(bins))  # type: ignore[arg-type]
        assert cast(Any, run.answer("m")).moved == moved
        reasons = [str(event["reason"]) for event in run.events if event["type"] == "rejected"]
        assert "it is not JSON" in reasons[0]
        assert "worker 2000 is unknown: name one of 0 to 1" in reasons[1]
        assert "there is no bin 16; name bins from 0 to 15" in reasons[2]
        assert "time 0 ms is closed" in reasons[3]
        assert "id 'm' was used before" in reasons[4]
        assert cast(Any, run.answer("t")).state == "rejected"


# -- mistakes in a list of faults


def test_a_fault_that_never_strikes_fails_the_run() -> None:
    faults = [At(Pause(1, 10), records=41)]
    with (
        fed(TestFlow(counting(), faults=faults)) as run,
        pytest.raises(AssertionError, match="is never due, as only 40 records have been"),
    ):
        run.run()


def test_a_fault_of_a_late_time_or_step_strikes_before_the_end() -> None:
    faults = [At(ALL_TO_1, seconds=3600), At(Raise("n"), step=6_000)]
    with fed(TestFlow(counting(), faults=faults)) as run:
        run.run_until_idle()
        run.feed("in", "k0", ms=5000)
        run.run()
        assert cast(Any, run.answer("m")).state == "completed"
        assert run.sim.clock.monotonic() > 3600 and run.sim.actions > 6_000


@pytest.mark.parametrize("times", [{}, {"step": 1, "records": 1}])
def test_a_fault_has_one_time(times: dict[str, int]) -> None:
    with pytest.raises(SetupError, match="it has not exactly one time to strike"):
        At(Pause(1, 10), **times)


def wrong(**parts: object) -> Feed:
    """A record as no type checker would have it."""
    return Feed("in", "x", **cast(dict[str, Any], parts))


UNKNOWN: dict[str, Fault | AddPartition] = {
    "worker 5: it is no worker of the flow; name one of 0, 1": Pause(5, 1),
    "worker -2: it is no worker of the flow; name one of 0, 1": Slow(0, -2, 1),
    "operator 'm': the flow has no such function; name one of key_by, n": Raise("m"),
    "topic 'i': the flow does not use it; name one of in, out": Idle("i", 0, 1),
    "topic 'in': it has no partition 2; name one of 0 to 1, or add": Feed("in", "x", partition=2),
    "topic 'out': the flow does not read it; name one of in": Feed("out", "x"),
    "topic 'source': the flow does not read it; name one of in": Feed("source", "x"),
    "source 'in': the flow has none of that name; name one of source": AddPartition("in"),
    "topic 'in': 5 is no value that its source reads as 'str'": Feed("in", 5),
    "topic 'in': 7 is no key that its source reads as 'str'": Feed("in", "x", key=7),
    "topic 'in': ms='noon' is no time of a record; pass whole milli": wrong(ms="noon"),
    "topic 'in': ms=1.5 is no time of a record": wrong(ms=1.5),
    "topic 'in': it has no partition '1'; name one of 0 to 1": wrong(partition="1"),
    r"topic 'in': \('time', 5\) is no header of a record; pass pairs": wrong(headers=[("time", 5)]),
    "topic 'in': {'time': '5'} is no header of a record": wrong(headers={"time": "5"}),
    r"command \{'bins': \{1\}\}: it cannot be written as JSON": Control({"bins": {1}}),
}


@pytest.mark.parametrize("says", UNKNOWN)
def test_a_fault_of_what_the_flow_does_not_have_is_named(says: str) -> None:
    with TestFlow(counting()) as run, pytest.raises(SetupError, match=says):
        run.inject(UNKNOWN[says])


def test_what_is_fed_after_the_end_is_refused() -> None:
    with fed(TestFlow(counting())) as run:
        run.run()
        with pytest.raises(SetupError, match="topic 'in': the run has ended; feed before"):
            run.feed("in", "k0")


ELSEWHERE = {"offset": 0, "ms": 0.0, "counters": {}, "id": ""}
"""What events have on the status topic only."""


def test_a_worker_that_a_migration_names_joins_whatever_its_id() -> None:
    with fed(TestFlow(counting())) as run:
        run.control({"type": "migrate", "id": "m", "bins": "all", "worker": 7})
        run.run()
        assert run.answer("m") == Answer("completed", moved=1 << BINS)
        assert run.sim.coordinator.workers.active == [0, 1, 7]
        expect_counts(run)


def test_workers_come_and_go_by_a_command() -> None:
    with fed(TestFlow(counting(), workers=1)) as run:
        run.control({"type": "rescale", "id": "up", "workers": 3})
        assert run.answer("up") == Answer("rescaling")
        run.run_until_idle()
        assert run.answer("up") == Answer("rescaled", moved=10)
        assert run.answer("up/bins") == Answer("completed", moved=10)
        run.control({"type": "rescale", "id": "up", "workers": 1})
        assert "id 'up' was used before" in str(run.events[-1]["reason"])
        run.control({"type": "rescale", "id": "down", "workers": 1})
        assert run.answer("down") == Answer("rescaling")
        run.run()
        assert run.answer("down") == Answer("rescaled", moved=10)
        for event in run.events:
            parse_event(json.dumps(ELSEWHERE | event).encode())
        left = {event["worker"] for event in run.events if event["type"] == "left"}
        assert left == {1, 2} and run.sim.coordinator.workers.active == [0]
        expect_counts(run)
