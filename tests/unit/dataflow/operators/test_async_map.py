"""The asynchronous map: results at the times of their records, bounded, in order or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from meander import (
    Checkpointing,
    Context,
    Flow,
    KafkaSink,
    KafkaSource,
    Record,
    Retry,
    SetupError,
)
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.testing import At, Raise, TestFlow

Function = Callable[[Any], Coroutine[Any, Any, object]]


async def doubled(value: int) -> int:
    await asyncio.sleep(0.05 * (value % 3))
    return 2 * value


def _flow(function: Function, **options: Any) -> Flow:
    flow = Flow("asked")
    numbers = flow.source(KafkaSource("numbers"))
    numbers.map_async("ask", function, **options).sink(KafkaSink("out"))
    return flow


def test_results_have_the_order_and_the_times_of_their_records() -> None:
    with TestFlow(_flow(doubled), workers=1) as run:
        run.feed("numbers", *range(20), ms=1000)
        run.run()
    assert [record.value for record in run.records("out")] == [
        str(2 * n).encode() for n in range(20)
    ]


def test_results_of_any_order_leave_as_calls_end() -> None:
    async def ask(value: int) -> int:
        await asyncio.sleep(5.0 if value == 0 else 0.0)
        return value

    with TestFlow(_flow(ask, order="any", timeout=9), workers=1) as run:
        run.feed("numbers", *range(10))
        run.run()
    arrived = [int(record.value or b"") for record in run.records("out")]
    assert arrived[-1] == 0
    assert sorted(arrived) == [*range(10)]


def test_no_more_calls_run_than_the_concurrency() -> None:
    running, most = set[int](), list[int]()

    async def ask(value: int) -> int:
        running.add(value)
        most.append(len(running))
        await asyncio.sleep(0.01)
        running.discard(value)
        return value

    with TestFlow(_flow(ask, concurrency=3), workers=1) as run:
        run.feed("numbers", *range(30))
        run.run()
    assert max(most) == 3
    assert len(run.values("out")) == 30


def test_call_beyond_the_timeout_fails() -> None:
    async def ask(value: int) -> int:
        await asyncio.sleep(60.0 if value == 1 else 0.0)
        return value

    with TestFlow(_flow(ask, timeout=2), workers=1) as run:
        run.feed("numbers", 0, 1, 2)
        run.run()
        (letter,) = run.dead_letters
    assert (letter.operator, letter.value, letter.reason) == ("ask", 1, "TimeoutError")
    assert run.values("out") == [0, 2]


def test_call_that_fails_is_made_again_while_others_run() -> None:
    calls, seconds = list[int](), list[float]()

    async def ask(value: int) -> int:
        calls.append(value)
        if value == 0:
            seconds.append(asyncio.get_running_loop().time())
            if len(seconds) < 3:
                raise ConnectionError
        return value

    with TestFlow(_flow(ask, on_error=Retry(times=2, wait=1.0)), workers=1) as run:
        run.feed("numbers", 0, 1, 2)
        run.run()
    assert calls == [0, 1, 2, 0, 0]
    assert all(then >= now + 1.0 for now, then in pairwise(seconds))
    assert run.values("out") == [0, 1, 2]
    assert run.counters["retries"] == 2


def test_calls_that_all_fail_get_the_fallback() -> None:
    with TestFlow(
        _flow(doubled, on_error=Retry(times=1, wait=0.1, then="skip")),
        workers=1,
        faults=[At(Raise("ask", calls=2), records=1)],
    ) as run:
        run.feed("numbers", 3)
        run.run()
    assert run.counters["skipped"] == 1
    assert run.values("out") == []


def test_function_may_change_its_value_in_place() -> None:
    seen = list[object]()

    async def ask(value: dict[str, int]) -> int:
        seen.append(dict(value))
        del value["n"]
        if len(seen) == 1:
            raise ConnectionError
        return 1

    with TestFlow(_flow(ask, on_error=Retry(times=1, wait=0.0)), workers=1) as run:
        run.feed("numbers", {"n": 1})
        run.run()
    assert seen == [{"n": 1}, {"n": 1}]


def test_frontier_waits_for_the_calls_before_it() -> None:
    async def ask(value: int) -> int:
        await asyncio.sleep(3.0)
        return value

    flow = Flow("asked")
    numbers = flow.source(KafkaSource("numbers")).map_async("ask", ask)
    numbers.probe("asked").sink(KafkaSink("out"))
    with TestFlow(flow, workers=1) as run:
        run.feed("numbers", 1, ms=5000)
        for _ in range(300):
            run.act()
        assert run.frontier("asked") is not None
        assert (run.frontier("asked") or 0) <= 5000
        run.run()
        assert run.frontier("asked") is None
    assert [result.time >> 20 for result in run.results("out")] == [5000]


def test_keys_stay_and_a_plain_function_is_refused() -> None:
    flow = Flow("keyed")
    numbers = flow.source(KafkaSource("numbers")).key_by(lambda n: n % 2)
    sums = numbers.map_async("double", doubled).fold("sum", int, lambda s, n: (s + n, s + n))
    sums.sink(KafkaSink("out"))
    with TestFlow(flow, workers=2) as run:
        run.feed("numbers", 1, 2, 3, 4)
        run.run()
        assert run.states("sum") == {0: 12, 1: 8}
    refused: Any = lambda value: value  # noqa: E731
    with pytest.raises(SetupError, match="no coroutine function"):
        _flow(refused)
    with pytest.raises(SetupError, match="its concurrency is 0"):
        _flow(doubled, concurrency=0)
    with pytest.raises(SetupError, match="its timeout is 0"):
        _flow(doubled, timeout=0)
    with pytest.raises(SetupError, match="its timeout is '5s'; give seconds"):
        _flow(doubled, timeout="5s")


def test_exactly_once_needs_checkpoints_as_behind_other_nondeterministic_functions() -> None:
    flow = Flow("once", delivery="exactly_once")
    flow.source(KafkaSource("numbers")).map_async("ask", doubled).sink(KafkaSink("out"))
    with pytest.raises(SetupError, match="results wait for checkpoints"), TestFlow(flow):
        pass
    flow = Flow("once", delivery="exactly_once", checkpoints=Checkpointing(interval=0.05))
    flow.source(KafkaSource("numbers")).map_async("ask", doubled).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("numbers", 1, 2, 3)
        run.run()
    assert sorted(map(int, map(str, run.values("out")))) == [2, 4, 6]


@pytest.mark.parametrize("seed", range(6))
def test_moves_of_bins_and_partitions_lose_no_call(seed: int) -> None:
    from meander.testing import MovePartition

    sink, records = ListSink(), [[(1000 + n, n) for n in range(p, 60, 2)] for p in (0, 1)]
    flow = Flow("moved", bins=2)
    asked = flow.source(ListSource(records)).map_async("ask", doubled, concurrency=4, order="any")
    sums = asked.key_by(lambda n: n % 4).map_async("again", doubled, concurrency=3)
    sums.fold("sum", int, lambda s, n: (s + n, n)).sink(sink)
    moves = [MovePartition("p", "source", 0, 1), MovePartition("q", "source", 1, 0)]
    with TestFlow(flow, workers=2, seed=seed, commands=moves) as run:
        run.control({"type": "migrate", "id": "m", "bins": "all", "worker": 1})
        run.run()
        total = sum(int(str(one)) for one in run.states("sum").values())
    assert sorted(int(str(value)) for value in sink.values) == [4 * n for n in range(60)]
    assert total == sum(4 * n for n in range(60))


def test_flow_runs_where_an_event_loop_runs_already() -> None:
    async def notebook() -> list[object]:
        with TestFlow(_flow(doubled), workers=1) as run:
            run.feed("numbers", 1, 2)
            run.run()
        return run.values("out")

    assert asyncio.run(notebook()) == [2, 4]


async def slowly(value: Any) -> Any:
    await asyncio.sleep(0.05)
    return value


def _own_times(context: Context[int], n: int, value: int) -> int:
    context.emit([value, context.event_ms, context.time_ms])
    return n


@pytest.mark.parametrize("order", ["kept", "any"])
def test_records_keep_their_own_times(order: Any) -> None:
    flow = Flow("late", bins=2)
    asked = flow.source(KafkaSource("in")).map_async("ask", doubled, concurrency=3, order=order)
    asked.key_by(lambda v: v % 3).process("p", int, _own_times, uses=["event_ms"]).sink(
        KafkaSink("out")
    )
    with TestFlow(flow, workers=2, partitions=1) as run:
        for n, ms in enumerate((500, 300, 700, 650, 900)):
            run.feed("in", n, ms=ms)
        run.run()
    assert sorted(map(str, run.values("out"))) == sorted(map(str, [
        [0, 500, 500], [2, 300, 500], [4, 700, 700], [6, 650, 700], [8, 900, 900],
    ]))  # fmt: skip


@pytest.mark.parametrize("policy", ["aligned", "unaligned"])
@pytest.mark.parametrize("seed", range(3))
def test_own_times_of_records_whose_calls_a_restart_repeats_are_as_before(
    policy: Any, seed: int
) -> None:
    """I5: the records are in flight in the checkpoint."""
    records = [(1000 + 10 * n - 15 * (n % 4), n) for n in range(400)]
    flow = Flow("late", bins=2, checkpoints=Checkpointing(0.05, policy), delivery="exactly_once")
    sink = ListSink()
    asked = flow.source(ListSource([records])).map_async("ask", slowly, concurrency=30)
    keyed = asked.key_by(lambda v: v % 3)
    keyed.process("p", int, _own_times, uses=["event_ms"]).sink(sink)
    with TestFlow(flow, workers=2, seed=seed) as run:
        while len(run.world.checkpoints) < 3:
            run.act()
        world, before = run.world, len(sink.values)
    with TestFlow(flow, workers=3, seed=seed, world=world) as run:
        run.run()
    assert before < len(sink.values) == 400
    found: Any = sink.values
    assert {(n, own) for n, own, _ in found} == {(n, ms) for ms, n in records}
    assert any(own < time for _, own, time in found)


def test_a_coroutine_gets_and_gives_the_metadata_of_a_record() -> None:
    """Its value may change in place, and a failed call sees it whole again."""
    seen = list[object]()

    async def ask(record: Record[dict[str, int]]) -> Record[dict[str, int]]:
        seen.append(record.value.pop("n"))
        if len(seen) == 1:
            raise ConnectionError
        return record

    flow = Flow("asked", bins=1)
    source = KafkaSource[Record[dict[str, int]]]("in", metadata=True)
    asked = flow.source(source).map_async("ask", ask, on_error=Retry(times=1, wait=0.1))
    copied = asked.map(lambda r: [r.value, r.key, r.offset, r.timestamp_ms, [*r.headers]])
    copied.sink(KafkaSink("out", headers=lambda v: [("n", str(v[2]).encode())]))
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", {"n": 7}, key="a", ms=1000, headers=[("trace", None)])
        run.feed("in", {"n": 8}, key="b", ms=900)
        run.run()
        assert run.values("out") == [[{}, "a", 0, 1000, [["trace", None]]], [{}, "b", 1, 900, []]]
        assert [record.headers[0] for record in run.records("out")] == [("n", b"0"), ("n", b"1")]
    assert seen in ([7, 7, 8], [7, 8, 7])
