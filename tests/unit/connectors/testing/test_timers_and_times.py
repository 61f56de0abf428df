"""Times to live, named timers, alarms, own times and the clock in one operator (I2, I5)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from meander import Checkpointing, Context, Flow, KafkaSink, KafkaSource, columns
from meander.dataflow.control.command import MoveBins
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import NOW_MS, TakeCheckpoint
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis
from meander.testing import At, Control, TestFlow

TTL, LATER, BINS = 400, 301, 4
"""Milliseconds of a key's life, and until a timer. Records have even times, timers odd ones."""
Word = tuple[str, str, int]
"""A key, what it asks for, and its number."""
Record = tuple[int, Word]
"""Its own milliseconds, and its word."""


def _count(context: Context[str], n: int, word: Word) -> int:
    context.emit([context.key, word[2], n + 1, context.event_ms, context.time_ms])
    if word[1] == "cancel":
        context.cancel("idle")
    else:
        context.timer(context.time_ms + LATER, name="idle")
    if word[1] == "forget":
        context.forget()
    return n + 1


def _ring(context: Context[str], n: int) -> int:
    context.emit([context.key, context.timer_name, n, context.event_ms, context.time_ms])
    return n


def _words(seed: int, count: int = 1200) -> list[Record]:
    rng, now, words = random.Random(seed), 0, list[Record]()
    for number in range(count):
        now += rng.choice([0, 2, 2, 2, 20])
        own = now - 2 * rng.randrange(min(now, 200) // 2 + 1) if rng.random() < 0.3 else now
        asked = rng.choice(["set", "set", "cancel", "forget"])
        words.append((own, (f"k{rng.randrange(40)}", asked, number)))
    return words


def _expected(words: list[Record], times: list[int], *, fires_all: bool) -> list[object]:
    """Return the results that a program without a dataflow computes, given the logical times."""
    results = list[object]()
    states, timers = dict[str, tuple[int, int]](), dict[str, int]()

    def alive(key: str, ms: int) -> tuple[int, int] | None:
        found = states.get(key)
        return found if found is not None and ms < found[1] else None

    def fire(until: int | None) -> None:
        due = [key for key, ms in timers.items() if until is None or ms < until]
        for key in due:
            ms = timers.pop(key)
            states[key] = alive(key, ms) or (0, ms + TTL)
            results.append([key, "idle", states[key][0], ms, ms])

    for (own, (key, asked, number)), now in zip(words, times, strict=True):
        fire(now)
        n = (alive(key, now) or (0, 0))[0] + 1
        states[key] = n, now + TTL
        results.append([key, number, n, own, now])
        timers[key] = now + LATER
        if asked == "cancel":
            del timers[key]
        if asked == "forget":
            del states[key]
    if fires_all:
        fire(None)
    return results


def _times(results: list[Any]) -> list[int]:
    """Return the logical time of each record, in their order."""
    return [time for _, time in sorted((one[1], one[4]) for one in results if one[1] != "idle")]


def _move(ms: int, worker: int) -> MoveBins:
    bins = tuple(map(Bin, range(BINS)))
    return MoveBins(f"m{ms}", bins, WorkerId(worker), from_millis(ms), "fluid")


@pytest.mark.parametrize(("seed", "fires_all"), [(0, True), (1, False), (2, True), (3, False)])
@pytest.mark.parametrize("policy", ["aligned", "unaligned"])
def test_an_operator_with_all_of_them_gives_the_same_results_across_moves_and_a_restart(
    seed: int, policy: Any, fires_all: bool
) -> None:
    """I2 and I5: a late record keeps its own time in a checkpoint, too."""
    words, sink = _words(seed), ListSink()
    flow = Flow("f", bins=BINS, delivery="exactly_once", checkpoints=Checkpointing(0.05, policy))
    keyed = flow.source(ListSource([words])).key_by(lambda word: word[0])
    counted = keyed.process("p", int, _count, _ring, uses=["event_ms"], ttl=TTL / 1000)
    counted.sink(sink)
    moves = [_move(ms, n % 2) for n, ms in enumerate(range(120, 2000, 280), start=1)]
    with TestFlow(flow, 2, seed, commands=moves) as run:
        while len(run.world.checkpoints) < 3:
            run.act()
        world, before = run.world, len(sink.values)
    more = [_move(ms, 2 - n % 2) for n, ms in enumerate(range(2120, 5200, 360))]
    with TestFlow(flow, 3, seed, world=world, commands=more) as run:
        run.run(fire_timers=fires_all)
    times = _times(sink.values)
    assert times == sorted(times)
    assert any(time > own for time, (own, _) in zip(times, words, strict=True))
    expected = _expected(words, times, fires_all=fires_all)
    assert 0 < before < len(expected)
    assert sorted(map(repr, sink.values)) == sorted(map(repr, expected))


def _ask(context: Context[str], n: int, word: Any) -> int:
    """Set a timer or an alarm of a name so many milliseconds later, or cancel it."""
    kind, name, later = word[1:]
    if kind == "timer":
        context.timer(context.time_ms + later, name=name)
    elif kind == "alarm":
        context.alarm(later / 1000, name=name)
    else:
        context.cancel(name)
    return n + 1


def _show(context: Context[str], n: int) -> int:
    context.emit([context.key, context.timer_name, context.event_ms - context.time_ms])
    return n


def _asking(source: Any, sink: Any) -> Flow:
    flow = Flow("f", bins=2)
    keyed = flow.source(source).key_by(lambda word: word[0])
    shown = keyed.process("p", int, _ask, _show, on_alarm=_show, uses=["event_ms"])
    shown.sink(sink)
    return flow


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("partitions", [1, 3])
def test_the_end_leaves_later_timers_and_alarms_and_fires_the_last_of_a_name(
    workers: int, partitions: int
) -> None:
    """I7: the flow waits for no alarm either."""
    flow = _asking(KafkaSource("in"), KafkaSink("out"))
    with TestFlow(flow, workers, partitions=partitions) as run:
        for ms, word in (
            (1000, ["a", "timer", "x", 100]), (1010, ["b", "alarm", "x", 100_000]),
            (1020, ["c", "timer", "x", 100]), (1030, ["d", "alarm", "x", 100_000]),
            (1040, ["b", "timer", "x", 50]), (1050, ["c", "cancel", "x", 0]),
            (1060, ["e", "timer", "x", 5000]), (1200, ["f", "timer", "x", 10]),
        ):  # fmt: skip
            run.feed("in", word, ms=ms)
        run.run(fire_timers=False)
        assert run.values("out") == [["b", "x", 0], ["a", "x", 0]]


def _two_runs(seed: int, second: list[Record], order: Any) -> list[object]:
    """Return the results of a run that leaves a timer of each key, and of the next run."""
    sink = ListSink()
    first: list[Any] = [(1000 + n, (f"k{n}", "timer", "x", 500)) for n in range(6)]
    source = ListSource([first])
    checkpoints = Checkpointing(interval=0.03 if order == "processing" else None)

    def flow() -> Flow:
        made = Flow("f", bins=BINS, delivery="exactly_once", checkpoints=checkpoints)
        keyed = made.source(source).key_by(lambda word: word[0])
        keyed.process("p", int, _ask, _show, uses=["event_ms"], order=order).sink(sink)
        return made

    with TestFlow(flow(), 2, seed, commands=[TakeCheckpoint()]) as run:
        run.run(fire_timers=False)
        world = run.world
    assert sink.values == []
    source.partitions[0] = [*first, *second]
    with TestFlow(flow(), 3, seed, world=world) as run:
        run.run(fire_timers=False)
    return sorted(sink.values, key=str)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("order", ["event", "processing"])
def test_the_next_run_cancels_and_replaces_timers_that_the_end_has_left(
    seed: int, order: Any
) -> None:
    second: list[Any] = [
        (1100, ("k0", "cancel", "x", 0)), (1110, ("k1", "timer", "x", 4000)),
        (1120, ("k2", "timer", "x", 20)), (3000, ("k3", "cancel", "other", 0)),
    ]  # fmt: skip
    assert _two_runs(seed, second, order) == [[f"k{n}", "x", 0] for n in (2, 3, 4, 5)]


@pytest.mark.parametrize("seed", range(3))
def test_timers_fire_at_a_worker_that_joins_a_run_that_leaves_later_ones(seed: int) -> None:
    flow = _asking(KafkaSource("in"), KafkaSink("out"))
    rescale = At(Control({"type": "rescale", "id": "up", "workers": 3}), records=20)
    with TestFlow(flow, 1, seed, partitions=2, faults=[rescale]) as run:
        for n in range(100):
            run.feed("in", [f"k{n}", "timer", "x", 200], ms=1000 + n, partition=n % 2)
        run.feed("in", ["last", "cancel", "x", 0], ms=1250)
        run.run(fire_timers=False)
        fired: list[Any] = run.values("out")
        assert [key for key, *_ in fired] == [f"k{n}" for n in range(51)]


def _follows(on_timer: Any, on_alarm: Any) -> Flow:
    flow = Flow("f", bins=2)
    keyed = flow.source(KafkaSource("in", idle="advance")).key_by(lambda word: word[0])

    def step(context: Context[str], n: int, word: Any) -> int:
        context.timer(context.time_ms + word[1], name="timer")
        context.alarm(word[2] / 1000, name="alarm")
        return n + 1

    shown = keyed.process("p", int, step, on_timer, on_alarm=on_alarm, uses=["event_ms"], ttl=60)
    shown.sink(KafkaSink("out"))
    return flow


def _cancelling(name: str) -> Any:
    def call(context: Context[str], n: int) -> int:
        context.cancel(name)
        return _show(context, n)

    return call


@pytest.mark.parametrize("workers", [1, 3])
def test_in_a_silence_a_timer_cancels_a_later_alarm_and_an_alarm_a_later_timer(
    workers: int,
) -> None:
    flow = _follows(_cancelling("alarm"), _cancelling("timer"))
    with TestFlow(flow, workers, partitions=2) as run:
        now = run.sim.clock.now_ms()
        run.feed("in", ["a", 1000, 30_000], ["b", 20_000, 2000], ms=now)
        for _ in range(20):
            run.advance(3)
        assert run.values("out") == [["b", "alarm", 0], ["a", "timer", 0]]


def test_a_key_dies_in_a_silence_and_leaves_the_store() -> None:
    """Its timer and its alarm have called before, so nothing renews it."""
    with TestFlow(_follows(_show, _show), 2) as run:
        run.feed("in", ["a", 1000, 2000], ms=run.sim.clock.now_ms())
        run.advance(10)
        assert sum(worker.state_sizes()["p"].keys for worker in run.workers) == 1
        for _ in range(20):
            run.advance(10)
        assert sum(worker.state_sizes()["p"].keys for worker in run.workers) == 0


@pytest.mark.parametrize(("seconds", "counts"), [(9, [6]), (10, [1])])
def test_a_time_to_live_of_initial_states_begins_with_the_bootstrap(
    seconds: int, counts: list[int]
) -> None:
    """A key that no record touches ends, too."""
    flow = Flow("f")
    keyed = flow.source(KafkaSource("in", value="str")).key_by(lambda word: word)
    keyed.fold("n", columns.count(), ttl=10).sink(KafkaSink("out"))
    with TestFlow(flow, states={"n": {"a": 5, "b": 5}}) as run:
        run.advance(60)
        run.feed("in", "a", ms=NOW_MS + 1000 * seconds)
        run.run()
        assert run.values("out") == counts
        assert run.states("n").keys() == ({"a", "b"} if seconds < 10 else {"a"})
