"""The asynchronous map: results at the times of their records, bounded, in order or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from meander import Checkpointing, Flow, KafkaSink, KafkaSource, Retry, SetupError
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
    calls = list[int]()

    async def ask(value: int) -> int:
        calls.append(value)
        if value == 0 and calls.count(0) < 3:
            raise ConnectionError
        return value

    with TestFlow(_flow(ask, on_error=Retry(times=2, wait=1.0)), workers=1) as run:
        run.feed("numbers", 0, 1, 2)
        run.run()
    assert calls == [0, 1, 2, 0, 0]
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
