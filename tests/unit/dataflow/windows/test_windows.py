"""A window holds its records, closes at its time, tells late ones apart, and leaves no state."""

from __future__ import annotations

from typing import Any

import pytest

from meander import (
    Flow,
    KafkaSink,
    KafkaSource,
    SetupError,
    WindowContext,
    count,
    field,
    hopping,
    nondeterministic,
    session,
    sliding,
    tumbling,
)
from meander.dataflow.api.plan import Plan
from meander.dataflow.api.windowed import Emit
from meander.dataflow.windows.window import Windows
from meander.testing import TestFlow
from tests.support.property.case_run import keyed_operators

Results = list[tuple[int, int, Any]]


def append(times: list[int], record: Any) -> list[int]:
    return [*times, record["at"]]


def both(earlier: list[int], later: list[int]) -> list[int]:
    return earlier + later


def flow_of(windows: Windows, emit: Emit = "closed") -> Flow:
    """A flow that lists the own times of each window's records, in their order."""
    flow = Flow("windows", bins=2)
    records = flow.source(KafkaSource("in", time=field("at")))
    windowed = records.key_by(lambda record: record.get("k", 0)).window("w", windows)
    lists = windowed.fold(list, append, merge=both, emit=emit)
    lists.sink(KafkaSink("out"), "write")
    lists.side("late").sink(KafkaSink("late"), "write late")
    return flow


def ran(windows: Windows, *times: int, emit: Emit = "closed") -> tuple[Results, list[int]]:
    """Return what windows give of one key's records in the order of a partition, and the own times
    of the late ones."""
    with TestFlow(flow_of(windows, emit), partitions=1) as run:
        run.feed("in", *({"at": at} for at in times))
        run.run()
        results: list[Any] = run.values("out")
        late: list[Any] = run.values("late")
        assert run.counters["window_late"] == len(late)
    lists = [(one["start"], one["end"], one["value"]) for one in results]
    return lists, [one["at"] for one in late]


@pytest.mark.parametrize(
    ("windows", "times", "results", "late"),
    [
        # A record is late at the end, and a millisecond before it is not.
        (tumbling(0.1), [10, 99, 20, 100, 30], [(0, 100, [10, 99, 20]), (100, 200, [100])], [30]),
        (tumbling(0.1, late=0.05), [10, 149, 20], [(0, 100, [10, 20]), (100, 200, [149])], []),
        (tumbling(0.1, late=0.05), [10, 150, 20], [(0, 100, [10]), (100, 200, [150])], [20]),
        # A late record may open a window, and one may be late for some of its windows alone.
        (tumbling(0.1, late=0.05), [149, 20], [(0, 100, [20]), (100, 200, [149])], []),
        (
            hopping(0.1, every=0.05), [60, 120, 70, 210, 90],
            [(0, 100, [60]), (50, 150, [60, 120, 70]), (100, 200, [120]), (150, 250, [210]),
             (200, 300, [210])],
            [90],
        ),
        (session(0.03), [0, 29, 59, 60], [(0, 59, [0, 29]), (59, 90, [59, 60])], []),
        (session(0.03), [0, 40, 20], [(0, 30, [0]), (20, 70, [40, 20])], []),
        (session(0.03), [0, 40, 10, 9], [(0, 30, [0]), (40, 70, [40])], [10, 9]),
        (session(0.03, late=0.02), [0, 40, 20], [(0, 70, [0, 40, 20])], []),
        (session(0.03, longest=0.05), [0, 20, 40, 49, 50], [(0, 50, [0, 20, 40, 49]),
                                                            (50, 80, [50])], []),
        (sliding(0.03), [0, 20, 29, 30], [(-29, 1, [0]), (-9, 21, [0, 20]), (0, 30, [0, 20, 29]),
                                          (1, 31, [20, 29, 30])], []),
        (sliding(0.03), [0, 20, 10], [(-29, 1, [0]), (-9, 21, [0, 20, 10])], []),
        (sliding(0.03), [0, 40, 10], [(-29, 1, [0]), (11, 41, [40])], [10]),
        # One that is late for its own window, and for that of 20, counts in the one of 22.
        (sliding(0.03), [20, 21, 10, 22], [(-9, 21, [20]), (-8, 22, [20, 21, 10]),
                                           (-7, 23, [20, 21, 10, 22])], []),
        (count(2), [5, 1, 9], [(1, 6, [5, 1])], []),
    ],
)  # fmt: skip
def test_windows_hold_the_records_that_are_not_late(
    windows: Windows, times: list[int], results: Results, late: list[int]
) -> None:
    assert ran(windows, *times) == (results, late)


@pytest.mark.parametrize(
    ("windows", "emit", "times", "results"),
    [
        (tumbling(0.1), "each", [10, 99, 100], [(0, 100, 1), (0, 100, 2), (100, 200, 1)]),
        (count(2), "each", [5, 1, 9], [(5, 6, 1), (1, 6, 2), (9, 10, 1)]),
        (sliding(0.03, late=0.01), "each", [0, 8, 4], [(-29, 1, 1), (-21, 9, 2), (-25, 5, 2),
                                                      (-21, 9, 3)]),
        # Once before 40, as nothing has changed until 80.
        (tumbling(0.1), 0.04, [10, 20, 85], [(0, 100, 2), (0, 100, 3)]),
        (tumbling(0.1), 0.04, [10, 40, 85], [(0, 100, 1), (0, 100, 2), (0, 100, 3)]),
        (tumbling(0.1), 0.2, [10, 20], [(0, 100, 2)]),
        (session(0.03), 0.02, [5, 30, 45], [(5, 35, 1), (5, 60, 2), (5, 75, 3), (5, 75, 3)]),
    ],
)  # fmt: skip
def test_windows_give_results_before_they_close(
    windows: Windows, emit: Emit, times: list[int], results: Results
) -> None:
    found, _ = ran(windows, *times, emit=emit)
    assert [(start, end, len(value)) for start, end, value in found] == results


def test_a_fold_that_changes_its_state_in_place_leaves_results_as_they_are() -> None:
    def add(times: list[int], record: Any) -> list[int]:
        times.append(record["at"])
        return times

    flow = Flow("windows")
    records = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: "key")
    lists = records.window("w", tumbling(0.1)).fold(list, add, emit=0.04)
    lists.sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", {"at": 10}, {"at": 40})
        run.run()
    results: list[Any] = run.values("out")
    assert [one["value"] for one in results] == [[10], [10, 40], [10, 40]]


def test_a_result_has_the_last_time_before_its_close() -> None:
    with TestFlow(flow_of(tumbling(0.1, late=0.05)), partitions=1) as run:
        run.feed("in", {"at": 10}, {"at": 400})
        run.run()
        assert [one.ms for one in run.records("out")] == [149, 549]


@pytest.mark.parametrize(
    "windows", [tumbling(0.1), hopping(0.1, every=0.03), session(0.03), sliding(0.03), count(1)]
)
def test_a_key_without_open_windows_has_no_state(windows: Windows) -> None:
    with TestFlow(flow_of(windows), partitions=1) as run:
        run.feed("in", {"at": 0, "k": "a"}, {"at": 1000, "k": "b"}, {"at": 20, "k": "c"})
        run.run(fire_timers=False)
        assert run.states("w").keys() <= {"b"}, "neither a closed window nor a late record leaves"


def timers_of(run: TestFlow) -> int:
    keyed = (one for worker in run.workers for one in keyed_operators(worker))
    return sum(len(one.timers.near(bin)) for one in keyed for bin in one.timers.bins)


@pytest.mark.parametrize(
    ("windows", "times", "timers"),
    [
        (tumbling(0.1), [10, 20, 30], 1),
        (hopping(0.1, every=0.05), [60, 70], 2),
        (session(0.03, late=0.1), [0, 20, 40, 60], 1),
        (session(0.03, late=0.1), [0, 40, 80], 3),
        (session(0.03, late=0.1), [0, 40, 20, 80, 60], 1),
        (count(5), [0, 1], 0),
    ],
)
def test_an_open_window_has_one_timer(windows: Windows, times: list[int], timers: int) -> None:
    with TestFlow(flow_of(windows), partitions=1) as run:
        run.feed("in", *({"at": at} for at in times))
        run.run(fire_timers=False)
        assert timers_of(run) == timers


def test_functions_of_a_process_see_the_window_and_its_close() -> None:
    flow = Flow("windows")
    records = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: "key")

    def seen(context: WindowContext[str], n: int, record: Any) -> int:
        if record["at"] % 2:
            context.emit((*context.window, context.event_ms, context.time_ms), to="odd")
        return n + 1

    def closed(context: WindowContext[str], n: int) -> None:
        context.emit((context.key, *context.window, n, context.event_ms, context.time_ms))

    found = records.window("w", tumbling(0.1, late=0.01)).process(int, seen, closed, side=["odd"])
    found.sink(KafkaSink("out"), "write")
    found.side("odd").sink(KafkaSink("odd"), "write odd")
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", {"at": 10}, {"at": 104}, {"at": 51})
        run.run()
    assert run.values("out") == [["key", 0, 100, 2, 99, 109], ["key", 100, 200, 1, 199, 209]]
    assert run.values("odd") == [[0, 100, 51, 104]]


def test_a_window_whose_close_fails_leaves_no_state_and_keeps_no_other_open() -> None:
    flow = Flow("windows")
    records = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: "key")

    def closed(context: WindowContext[str], n: int) -> None:
        if context.window.start != 100:
            raise RuntimeError
        context.emit(context.window.start)

    counts = records.window("w", tumbling(0.1)).process(int, lambda c, n, r: n + 1, closed)
    counts.sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", *({"at": at} for at in (10, 110, 250)))
        run.run()
        assert len(run.dead_letters) == 2
        assert run.values("out") == [100]
        assert run.states("w") == {}


def test_a_sliding_window_whose_fold_fails_is_lost_alone() -> None:
    flow = Flow("windows")
    records = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: "key")

    def step(times: list[int], record: Any) -> list[int]:
        if [*times, record["at"]] == [0, 20]:
            raise RuntimeError
        return append(times, record)

    records.window("w", sliding(0.03)).fold(list, step).sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", *({"at": at} for at in (0, 20, 40)))
        run.run()
        assert [(one.operator, one.value) for one in run.dead_letters] == [("w", None)]
        results: list[Any] = run.values("out")
        assert [one["value"] for one in results] == [[0], [20, 40]]
        assert run.states("w") == {}


def test_a_reduction_of_a_sliding_window_may_change_its_first_value() -> None:
    def add(total: Any, record: Any) -> Any:
        total["n"] += record["n"]
        return total

    flow = Flow("windows")
    records = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: "key")
    records.window("w", sliding(0.1)).reduce(add).sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", *({"at": at, "n": 1} for at in (10, 20, 30)))
        run.run()
    results: list[Any] = run.values("out")
    assert [one["value"]["n"] for one in results] == [1, 2, 3]


def test_a_record_that_fails_changes_none_of_its_windows() -> None:
    flow = Flow("windows")
    records = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: "key")
    calls = list[int]()

    def step(times: list[int], record: Any) -> list[int]:
        calls.append(record["at"])
        if calls.count(70) == 2:
            raise RuntimeError
        return append(times, record)

    records.window("w", hopping(0.1, every=0.05)).fold(list, step).sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", *({"at": at} for at in (60, 70)))
        run.run()
        assert len(run.dead_letters) == 1
    results: list[Any] = run.values("out")
    assert [one["value"] for one in results] == [[60], [60]]


def test_a_reduction_merges_sessions() -> None:
    flow = Flow("windows")
    records = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: "key")
    least = records.map(lambda record: record["at"]).window("w", session(0.03, late=0.1))
    least.reduce(lambda a, b: max(a, b)).sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", *({"at": at} for at in (0, 40, 20)))
        run.run()
    assert run.values("out") == [{"key": "key", "start": 0, "end": 70, "value": 40}]


def defined(windows: Any, emit: Any = "closed", **options: Any) -> object:
    stream = Flow("windows").source(KafkaSource("in")).key_by(lambda record: "key")
    return stream.window("w", windows).fold(list, append, emit=emit, **options)


@pytest.mark.parametrize(
    ("windows", "options", "cause"),
    [
        (60, {}, "operator 'w': its windows are 60; give it such as tumbling"),
        (session(30), {}, "operator 'w': a record may merge its sessions.* give it merge="),
        (tumbling(60), {"emit": "every"}, "operator 'w': its emit is 'every'"),
        (tumbling(60), {"emit": 0}, "operator 'w': its emit is 0"),
        (count(9), {"emit": 5}, "operator 'w': its windows end with records.* give it emit="),
        (tumbling(60), {"merge": 5}, "operator 'w': its merge is 5; give it a function"),
    ],
)
def test_windows_that_cannot_work_are_refused(
    windows: Any, options: dict[str, Any], cause: str
) -> None:
    with pytest.raises(SetupError, match=cause):
        defined(windows, **options)


def test_a_process_of_sliding_windows_is_refused() -> None:
    stream = Flow("windows").source(KafkaSource("in")).key_by(lambda record: "key")
    with pytest.raises(SetupError, match="its windows slide"):
        stream.window("w", sliding(60)).process(int, lambda c, n, r: n, lambda c, n: None)
    with pytest.raises(SetupError, match=r"its side outputs are \['late'\]"):
        stream.window("w", tumbling(60)).process(
            int, lambda c, n, r: n, lambda c, n: None, side=["late"]
        )


def test_a_nondeterministic_function_of_windows_counts_as_one() -> None:
    @nondeterministic
    def step(times: list[int], record: Any) -> list[int]:
        return times

    flow = Flow("windows", delivery="exactly_once")
    stream = flow.source(KafkaSource("in")).key_by(lambda record: "key")
    stream.window("w", tumbling(60)).fold(list, step).sink(KafkaSink("out"))
    with pytest.raises(SetupError, match="the flow takes none by itself"):
        Plan(flow)
