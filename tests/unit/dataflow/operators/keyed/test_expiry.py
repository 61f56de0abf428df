"""A key lives as long as its operator's time to live says, by logical time alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from meander import Flow, KafkaSink, KafkaSource, columns
from meander.dataflow.operators.keyed.expiry import Refresh
from meander.schemas.errors import SetupError
from meander.state.times.time import from_millis
from meander.testing import TestFlow

Record = Sequence[Any]
"""A key, milliseconds, and what the function reads."""
TTL = 10


def record_ms(record: Any) -> int:
    return int(record[1])


def records(flow: Flow) -> Any:
    source = KafkaSource("in", time=record_ms)
    return flow.source(source).key_by(lambda record: record[0])


def counting(ttl: float | None = TTL, refresh: Refresh = "write") -> Flow:
    flow = Flow("counts", bins=2)
    counts = records(flow).fold(
        "count", int, lambda n, r: (n + 1, [*r, n + 1]), ttl=ttl, refresh=refresh
    )
    counts.sink(KafkaSink("out"))
    return flow


def counting_columns() -> Flow:
    flow = Flow("counts", bins=2)
    records(flow).fold("count", columns.count(), ttl=TTL).sink(KafkaSink("out"))
    return flow


def run_of(flow: Flow, *fed: Record, workers: int = 1, seed: int = 0) -> TestFlow:
    run = TestFlow(flow, workers=workers, seed=seed)
    run.feed("in", *map(list, fed))
    run.run()
    return run


def counts(run: TestFlow) -> list[int]:
    values: list[Any] = [*run.values("out")]
    return [value[-1] if isinstance(value, list) else value for value in values]


@pytest.mark.parametrize("flow", [counting(), counting_columns()])
def test_a_key_lives_until_its_time_to_live_has_passed_since_its_last_record(flow: Flow) -> None:
    with run_of(flow, ["a", 0], ["a", 9_999], ["a", 19_998], ["a", 29_998]) as run:
        assert counts(run) == [1, 2, 3, 1]


def test_a_key_that_nothing_renews_expires_after_its_first_record() -> None:
    with run_of(counting(refresh="create"), ["a", 0], ["a", 9_999], ["a", 10_000]) as run:
        assert counts(run) == [1, 2, 1]


@pytest.mark.parametrize("flow", [counting(), counting_columns()])
def test_an_expired_key_is_no_state(flow: Flow) -> None:
    with run_of(flow, ["a", 0], ["b", 5_000], ["b", 10_000]) as run:
        assert run.states("count") == {"b": 2}


def test_without_a_time_to_live_no_key_expires() -> None:
    with run_of(counting(ttl=None), ["a", 0], ["a", 1 << 40]) as run:
        assert counts(run) == [1, 2]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_expired_keys_leave_the_store_once_the_frontier_has_passed_their_time(workers: int) -> None:
    fed = [[f"k{n}", n * 100] for n in range(1000)]
    with TestFlow(counting(), workers=workers) as run:
        run.feed("in", *fed)
        run.run_until_idle()
        run.feed("in", *(["last", 200_000 + n] for n in range(100)))
        run.run_until_idle()
        held = sum(len(worker.state().get("count", ())) for worker in run.workers)
        assert held == 1


def reference(fed: Sequence[Record], refresh: Refresh) -> list[int]:
    """Counts of records with a state and a due time per key. A record with a third item of 0 keeps
    the state as it is."""
    states: dict[str, tuple[int, int]] = {}
    found = []
    for key, ms, step in fed:
        n, due = states.get(key, (0, 0))
        if due <= ms:
            n, due = 0, 0
        renew = due == 0 or refresh == "read" or (refresh == "write" and step != 0)
        states[key] = n + step, ms + TTL * 1000 if renew else due
        found.append(n + step)
    return found


@pytest.mark.parametrize("refresh", ["write", "read", "create"])
@pytest.mark.parametrize("seed", range(4))
def test_results_follow_logical_time_for_any_workers_and_schedule(
    refresh: Refresh, seed: int
) -> None:
    rng, now, fed = random.Random(seed), 0, []
    for _ in range(400):
        now += rng.choice([0, 1, 500, 3000])
        fed.append([f"k{rng.randrange(6)}", now, rng.randrange(2)])

    def step(context: Any, n: int, record: Record) -> int:
        context.emit([context.time_ms, n + int(record[2])])
        return n + int(record[2])

    flow = Flow("steps", bins=3)
    records(flow).process("step", int, step, ttl=TTL, refresh=refresh).sink(KafkaSink("out"))
    expected = sorted(zip((r[1] for r in fed), reference(fed, refresh), strict=True))
    with run_of(flow, *fed, workers=1 + seed, seed=seed) as run:
        values: list[Any] = [*run.values("out")]
        assert sorted((ms, count) for ms, count in values) == expected


def test_a_state_of_a_mutable_type_renews_its_key_where_it_changes() -> None:
    def step(context: Any, seen: list[int], record: Record) -> list[int]:
        if record[2] not in seen:
            seen.append(record[2])
        context.emit(len(seen))
        return seen

    flow = Flow("distinct")
    records(flow).process("seen", list, step, ttl=TTL).sink(KafkaSink("out"))
    fed = ["a", 0, 1], ["a", 6_000, 2], ["a", 12_000, 2], ["a", 15_999, 2], ["a", 16_000, 2]
    with run_of(flow, *fed) as run:
        assert run.values("out") == [1, 2, 2, 2, 1]


def test_a_timer_of_an_expired_key_meets_a_new_state() -> None:
    def step(context: Any, n: int, record: Record) -> int:
        context.timer(record[1] + 20_000)
        return n + 1

    def on_timer(context: Any, n: int) -> int:
        context.emit(n)
        context.forget()
        return n

    flow = Flow("timers")
    records(flow).process("step", int, step, on_timer, ttl=TTL).sink(KafkaSink("out"))
    with run_of(flow, ["a", 0], ["b", 25_000]) as run:
        assert run.values("out")[0] == 0
        assert run.states("step") == {}


def test_first_passes_a_record_again_once_the_time_since_the_last_one_that_passed_is_over() -> None:
    flow = Flow("orders")
    unique = records(flow).first("seen", within=TTL)
    unique.map(lambda record: record[1]).sink(KafkaSink("out"))
    with run_of(flow, *(["a", ms] for ms in range(0, 30_000, 4_000)), workers=2) as run:
        assert run.values("out") == [0, 12_000, 24_000]


def test_first_without_a_time_passes_one_record_of_each_key() -> None:
    flow = Flow("orders")
    records(flow).first("seen").sink(KafkaSink("out"))
    with run_of(flow, ["a", 0], ["b", 0], ["a", 1 << 40]) as run:
        values: list[Any] = [*run.values("out")]
        assert sorted(values) == [["a", 0], ["b", 0]]


@pytest.mark.parametrize("ttl", [0, -1, "1h", True, float("nan")])
def test_a_time_to_live_is_a_number_of_seconds(ttl: Any) -> None:
    with pytest.raises(SetupError, match="operator 'count': its ttl is .*give seconds"):
        counting(ttl)


def test_an_unknown_refresh_is_refused() -> None:
    with pytest.raises(SetupError, match="its refresh is 'always'; give 'write', 'read' or"):
        counting(refresh="always")  # type: ignore[arg-type]


@pytest.mark.parametrize("refresh", ["read", "create"])
def test_a_refresh_without_a_time_to_live_is_refused(refresh: Any) -> None:
    with pytest.raises(SetupError, match=f"it has refresh='{refresh}' and no ttl; give ttl"):
        counting(None, refresh)


def test_initial_states_of_expiring_keys_get_a_due_time_with_their_next_record() -> None:
    with TestFlow(counting(), states={"count": {"a": 5, "b": 7}}) as run:
        run.feed("in", ["a", 0], ["a", 10_000], ["c", 10_000])
        run.run()
        assert counts(run) == [6, 1, 1]
        assert run.states("count") == {"a": 1, "b": 7, "c": 1}


def test_an_infinite_time_to_live_is_no_end() -> None:
    with run_of(counting(ttl=float("inf")), ["a", 0], ["a", 1 << 42]) as run:
        assert counts(run) == [1, 2]
        assert from_millis(1 << 42) > 0
