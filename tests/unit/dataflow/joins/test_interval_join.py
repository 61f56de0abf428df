"""Two streams join by own times: pairs, late records, records alone, errors, and nothing left."""

from __future__ import annotations

from typing import Any

import pytest

from meander import Flow, KafkaSink, KafkaSource, KeyedStream, Retry, SetupError, field
from meander.dataflow.api.plan import Plan
from meander.dataflow.simulation.in_memory import ListSource
from meander.testing import TestFlow
from tests.support.property.case_run import keyed_operators


def keyed(flow: Flow, topic: str) -> KeyedStream[Any, Any]:
    source = flow.source(KafkaSource(topic, time=field("at")), topic)
    return source.key_by(lambda record: record.get("k", 0), name=f"{topic} key")


def at(value: Any) -> Any:
    return value and value["at"]


def own_times(left: Any, right: Any) -> list[Any]:
    return [at(left), at(right)]


def flow_of(**options: Any) -> Flow:
    """A flow that gives the own times of pairs, and those of late records."""
    flow = Flow("joins", bins=2)
    options = {"step": own_times, **options}
    pairs = keyed(flow, "left").join(keyed(flow, "right"), **options)
    pairs.sink(KafkaSink("out"), "write")
    pairs.side("late").map(at).sink(KafkaSink("late"), "write late")
    return flow


def fed(run: TestFlow, left: list[int], right: list[int]) -> None:
    """Run with records of one key, each side in one partition."""
    run.feed("left", *({"at": at} for at in left))
    run.feed("right", *({"at": at} for at in right))
    run.run()


def ran(left: list[int], right: list[int], **options: Any) -> tuple[list[Any], list[Any]]:
    with TestFlow(flow_of(**options), partitions=1) as run:
        fed(run, left, right)
        assert run.states("join") == {}, "nothing remains of a key whose time is over"
        assert run.counters["join_late"] == len(run.values("late"))
        return run.values("out"), run.values("late")


@pytest.mark.parametrize(
    ("within", "pairs"),
    [
        # Both ends count.
        ((0, 0.01), [[100, 100], [100, 110]]),
        ((-0.01, 0), [[100, 90], [100, 100]]),
        ((-0.01, 0.01), [[100, 90], [100, 100], [100, 110]]),
        ((0, 0), [[100, 100]]),
        ((0.01, 0.011), [[100, 110], [100, 111]]),
        ((-0.011, -0.01), [[100, 89], [100, 90]]),
        ((1, 2), []),
    ],
)
def test_records_pair_within_the_interval(within: Any, pairs: list[Any]) -> None:
    found, late = ran([100], [89, 90, 100, 110, 111], within=within)
    assert (sorted(found), late) == (pairs, [])


def test_equal_records_pair_each_with_each() -> None:
    found, _ = ran([100, 100], [100, 100], within=(0, 0))
    assert found == [[100, 100]] * 4


@pytest.mark.parametrize(
    ("late", "paired", "sent"),
    [
        # In order no record is late, and a millisecond behind one is without `late`.
        (0, [200], [199, 100]),
        (0.001, [199, 200], [100]),
        # At its close, a millisecond behind its own time and `late`, a record is late.
        (0.1, [100, 199, 200], []),
        (0.099, [199, 200], [100]),
    ],
)
def test_a_record_is_late_at_the_close_of_its_own_time(
    late: float, paired: list[int], sent: list[int]
) -> None:
    found, given = ran([100], [200, 199, 100], within=(0, 1), late=late)
    assert (sorted(right for _, right in found), given) == (paired, sent)


def test_a_record_alone_gives_a_result_once_at_its_close() -> None:
    options = {"within": (0, 0.05), "late": 0.01, "how": "outer"}
    with TestFlow(flow_of(**options), partitions=1) as run:
        fed(run, [100, 300], [120, 99])
        found = [(one.time >> 20, one.value) for one in run.results("out")]
    # 99 is late at 110, and came at 120.
    assert found == [(120, [100, 120]), (360, [300, None])]
    assert ran([100, 300], [120, 111], **options)[0] == [
        [100, 120], [100, 111], [300, None],
    ]  # fmt: skip


def test_a_record_whose_partners_are_late_gives_its_result_at_once() -> None:
    """No left record may come that pairs with one of the future of its partners."""
    options = {"within": (-1, -0.5), "late": 0, "how": "left"}
    with TestFlow(flow_of(**options), partitions=1) as run:
        fed(run, [1000, 2000], [1000])
        found = [(one.time >> 20, one.value) for one in run.results("out")]
    assert found == [(1000, [1000, None]), (2000, [2000, 1000])]


def test_left_gives_no_right_record_alone() -> None:
    assert ran([100], [500], within=(0, 0.1), how="left")[0] == [[100, None]]
    assert ran([100], [500], within=(0, 0.1))[0] == []


def test_a_pair_has_the_later_own_time() -> None:
    """So a join behind it does not depend on the order of arrival."""
    for left, right in ([100, 200], [150]), ([150], [200, 100]):
        flow = Flow("twice", bins=2)
        step = own_times
        first = keyed(flow, "left").join(keyed(flow, "right"), within=(-1, 1), late=1, step=step)
        ends = first.join(keyed(flow, "ends"), within=(0, 0), late=1, step=lambda a, b: a, name="n")
        ends.sink(KafkaSink("out"), "write")
        with TestFlow(flow, partitions=1) as run:
            run.feed("ends", {"at": 150})
            fed(run, left, right)
            found: list[Any] = run.values("out")
        assert [sorted(pair) for pair in found] == [[100, 150]]


@pytest.mark.parametrize("late", [0, 0.01])
@pytest.mark.parametrize(
    ("within", "own"),
    [((0, 0.05), [150, 100]), ((-0.05, 0), [100, 150]), ((-0.05, -0.02), [100, 150])],
)
def test_a_record_alone_has_the_own_time_of_its_last_partner(
    within: Any, own: list[int], late: float
) -> None:
    flow = Flow("twice", bins=2)
    left, right = keyed(flow, "left"), keyed(flow, "right")
    first = left.join(right, within=within, late=late, how="outer", step=own_times)
    ends = first.join(
        keyed(flow, "ends"), within=(0, 0), late=late, name="n",
        step=lambda alone, end: [alone, end["at"]],
    )  # fmt: skip
    ends.sink(KafkaSink("out"), "write")
    with TestFlow(flow, partitions=1) as run:
        run.feed("left", {"at": 100, "k": 1})
        run.feed("right", {"at": 100, "k": 2})
        run.feed("ends", *({"at": at, "k": k} for at in range(90, 160) for k in (1, 2)))
        fed(run, [], [])
        found: list[Any] = run.values("out")
    assert sorted(found, key=str) == [[[100, None], own[0]], [[None, 100], own[1]]]


def test_a_stream_joins_itself() -> None:
    flow = Flow("self", bins=2)
    left = keyed(flow, "left")
    pairs = left.join(left, within=(-0.01, 0.01), step=own_times)
    pairs.sink(KafkaSink("out"), "write")
    with TestFlow(flow, partitions=1) as run:
        run.feed("left", {"at": 100}, {"at": 105}, {"at": 200})
        run.run()
        found: list[Any] = run.values("out")
    assert sorted(found) == [[100, 100], [100, 105], [105, 100], [105, 105], [200, 200]]


def only_even(left: Any, right: Any) -> list[Any]:
    if right is None or right["at"] % 2:
        raise ValueError("odd")
    return [at(left), at(right)]


def test_a_pair_that_fails_is_a_dead_letter_and_no_other_pair_is() -> None:
    flow = flow_of(within=(0, 0.05), how="left", step=only_even)
    with TestFlow(flow, partitions=1, dead_letters="allow") as run:
        fed(run, [100, 400], [101, 102])
        assert run.values("out") == [[100, 102]]
        letters = [(one.operator, one.key, one.value) for one in run.dead_letters]
        assert run.states("join") == {}
    pairs: list[Any] = [{"left": {"at": 100}, "right": {"at": 101}},
                        {"left": {"at": 400}, "right": None}]  # fmt: skip
    assert [(operator, value) for operator, _, value in letters] == [("join", p) for p in pairs]
    assert all(key == letters[0][1] for _, key, _ in letters)


def test_a_retry_calls_the_function_again_and_no_pair_comes_twice() -> None:
    calls = list[Any]()

    def fails_once(left: Any, right: Any) -> list[Any]:
        calls.append((at(left), at(right)))
        if len(calls) == 2:
            raise ValueError
        return [at(left), at(right)]

    options = {"within": (0, 0.05), "on_error": Retry(times=2, wait=0), "how": "outer"}
    found, _ = ran([100, 101], [110], step=fails_once, **options)
    assert found == [[100, 110], [101, 110]]
    assert calls == [(100, 110), (101, 110)] * 2


def test_a_function_may_change_its_values() -> None:
    def change(left: Any, right: Any) -> list[Any]:
        found = [left.pop("at"), right.pop("at")]
        left["at"] = right["at"] = -1
        return found

    found, _ = ran([100, 101], [110, 111], within=(0, 1), step=change)
    assert found == [[100, 110], [101, 110], [100, 111], [101, 111]]


def test_the_pairs_are_the_results_without_a_function() -> None:
    assert ran([100], [100], within=(0, 0), step=None)[0] == [[{"at": 100}, {"at": 100}]]


def test_a_record_that_cannot_wait_is_a_dead_letter() -> None:
    flow = flow_of(within=(0, 1))
    with TestFlow(flow, partitions=1, dead_letters="allow") as run:
        run.feed("left", {"at": 100, "text": "x" * 9_000_000}, {"at": 101})
        fed(run, [], [110])
        assert run.values("out") == [[101, 110]]
        (letter,) = run.dead_letters
        assert "takes 9,000,0" in letter.reason


def test_all_records_of_a_hot_key_leave_at_their_times() -> None:
    with TestFlow(flow_of(within=(0, 0.01)), partitions=1) as run:
        run.feed("left", *({"at": 1000 + n // 100} for n in range(2000)))
        fed(run, [], [1005])
        assert len(run.values("out")) == 600
        for worker in run.workers:
            for operator in keyed_operators(worker):
                assert operator.store.keys == 0
                assert all(not operator.store.count(bin) for bin in operator.store.bins())


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"within": 600}, "its within is 600"),
        ({"within": (0, "x")}, "its within is 'x'"),
        ({"within": (5, 0)}, "holds no time"),
        ({"within": (0, float("nan"))}, "its within is nan"),
        ({"within": (0, 1), "late": -1}, "its late is -1"),
        ({"within": (0, 1), "how": "right"}, "its how is 'right'"),
        ({"within": (0, 1), "step": 7}, "its step is 7"),
        ({"within": (0, 1), "on": at}, "an option of another join"),
        ({}, "its within is None"),
    ],
)
def test_an_option_that_cannot_work_is_refused(options: dict[str, Any], cause: str) -> None:
    with pytest.raises(SetupError, match=f"operator 'join'.*{cause}"):
        flow_of(**options)


def test_streams_that_cannot_join_are_refused() -> None:
    flow, other = Flow("a"), Flow("b")
    left, alone = keyed(flow, "left"), flow.source(ListSource([[]]), "alone")
    with pytest.raises(SetupError, match="it is to join.*key_by"):
        left.join(alone, within=(0, 1))  # type: ignore[call-overload]
    with pytest.raises(SetupError, match="without keys"):
        alone.join(left, within=(0, 1))
    with pytest.raises(SetupError, match="belongs to flow 'b'"):
        left.join(keyed(other, "left"), within=(0, 1))


def test_a_join_has_no_place_in_a_loop() -> None:
    flow = Flow("loops")
    left = keyed(flow, "left")

    def body(inner: Any) -> Any:
        return inner, inner.join(inner, within=(0, 1), name="inside")

    with pytest.raises(SetupError, match="sets timers in scope"):
        left.iterate("loop", body)


def test_a_join_reads_the_own_times_of_its_records() -> None:
    plan = Plan(flow_of(within=(0, 1)))
    (node,) = [one for one in plan.keyed if one.name == "join"]
    assert node.logic.uses == ("event_ms",)  # type: ignore[union-attr]
