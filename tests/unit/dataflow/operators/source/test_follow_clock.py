"""Logical time follows the wall clock while all sources are silent, where a source asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from meander import Flow, KafkaSink, KafkaSource, SourceOptions
from meander.dataflow.control.timestamp_overrides import OverrideHistory
from meander.dataflow.operators.source.operator import SourceOperator
from meander.dataflow.operators.source.partitions import SourcePartition
from meander.dataflow.simulation.in_memory import ListSink
from meander.dataflow.simulation.simulator import NOW_MS
from meander.schemas.errors import SetupError
from meander.state.times.time import to_millis
from meander.testing import TestFlow
from tests.support.sim.manual_flow import ManualSource, lane_times
from tests.support.sim.start import Start
from tests.support.sim.timed_flow import TimedFlow, at

FOLLOWING = SourceOptions(advance_after=2.0)


def remind(context: Any, state: int, value: object) -> int:
    context.timer(context.time_ms + 1000)
    return state + 1


def ring(context: Any, state: int) -> int:
    context.emit([state, context.time_ms])
    return 0


def windows(**source: Any) -> Flow:
    flow = Flow("windows", bins=2)
    stream = flow.source(KafkaSource("in", **source)).key_by(lambda v: 0)
    stream.process("p", lambda: 0, remind, ring).sink(KafkaSink("out"))
    return flow


def test_a_timer_fires_after_the_silence_of_all_sources() -> None:
    with TestFlow(windows(idle="advance"), workers=2) as run:
        now = run.sim.clock.now_ms()
        run.feed("in", 1, ms=now)
        run.advance(4.0)
        assert run.values("out") == []
        run.advance(3.0)
        assert run.values("out") == [[1, now + 1000]]
        assert run.counters["clock_advances"] > 0


def test_a_timer_waits_for_records_by_default() -> None:
    with TestFlow(windows(), workers=2) as run:
        run.feed("in", 1)
        run.advance(100.0)
        assert run.values("out") == []
        assert run.counters["clock_advances"] == 0


def test_time_follows_as_many_seconds_behind_the_clock(start: Start) -> None:
    flow = TimedFlow(start, partitions=2, workers=2, options=FOLLOWING)
    flow.idle(0, 1)
    flow.give(0, (1000, "a"))
    flow.run.wait(10.0)
    now = flow.run.sim.clock.now_ms()
    assert all(now - 2300 <= to_millis(time) <= now - 2000 for time in flow.lanes.values())


def test_a_record_within_the_silence_is_not_late_and_an_older_one_is(start: Start) -> None:
    flow = TimedFlow(start, options=FOLLOWING)
    flow.idle(0)
    flow.run.wait(10.0)
    now = flow.run.sim.clock.now_ms()
    flow.give(0, (now - 1500, "in time"), (now - 8000, "late"))
    assert flow.run.counters["late_adjusted"] == 1
    assert [to_millis(time) for time in flow.times()] == [now - 1500] * 2


def test_a_partition_with_records_holds_all_others_back(start: Start) -> None:
    flow = TimedFlow(start, partitions=3, workers=2, options=FOLLOWING)
    flow.idle(0, 1)
    flow.give(0, (1000, "a"))
    flow.run.wait(6.0)
    assert {to_millis(time) for time in flow.lanes.values()} <= {0, 1000}
    flow.idle(2)
    flow.run.wait(6.0)
    assert all(to_millis(time) > NOW_MS for time in flow.lanes.values())


def test_a_source_that_does_not_follow_has_to_be_silent_too(start: Start) -> None:
    first, second, sink = ManualSource(1, FOLLOWING), ManualSource(), ListSink()
    flow = Flow("f", bins=1)
    left = flow.source(first, "first").key_by(lambda v: 0)
    right = flow.source(second, "second").key_by(lambda v: 0)
    left.connect(right, "both", lambda: 0, remind, remind, ring).sink(sink)
    run = start(flow, workers=2)
    for source in (first, second):
        source.give(0, (1000, "a"))
    second.feeds[0].busy = True
    run.wait(6.0)
    assert sink.values == []
    second.feeds[0].busy = False
    run.wait(6.0)
    assert len(sink.values) == 1


def advances(flow: TimedFlow) -> OverrideHistory:
    """The decisions of a run, as the next execution reads them."""
    return OverrideHistory(at(NOW_MS + 100_000), flow.rulings)


def replayed(start: Start) -> tuple[list[int], list[int]]:
    """The times of the records of a run with a silence, and those of its replay."""
    flow = TimedFlow(start, options=FOLLOWING)
    flow.give(0, (1000, "a"))
    flow.idle(0)
    flow.run.wait(6.0)
    flow.give(0, (2000, "b"))
    again = TimedFlow(start, options=FOLLOWING, past=advances(flow))
    again.give(0, (1000, "a"), (2000, "b"))
    return flow.times(), again.times()


def test_a_replay_gives_records_behind_a_silence_the_times_that_they_had(start: Start) -> None:
    """I5: the advance is a decision, which travels with the frontier that it moves."""
    times, again = replayed(start)
    assert again == times
    assert to_millis(times[1]) > NOW_MS


def test_an_advance_that_is_not_recorded_is_found(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def advance(self: SourceOperator, partition: SourcePartition, time: int) -> None:
        self._advance(partition, time)

    monkeypatch.setattr(SourceOperator, "_override", advance)
    times, again = replayed(start)
    assert again != times


def test_a_flow_that_follows_the_clock_still_ends(start: Start) -> None:
    flow = TimedFlow(start, partitions=3, workers=2, options=FOLLOWING)
    flow.idle(0, 1, 2)
    flow.give(1, (1000, "a"))
    flow.run.wait(10.0)
    flow.run.finish(flow.source)
    assert flow.folded.values == ["a"]
    assert lane_times(flow.run) == {}


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"idle": "leap"}, "its idle is 'leap'"),
        ({"options": FOLLOWING}, "it has advance_after=2.0 without idle='advance'"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: Any, cause: str) -> None:
    with pytest.raises(SetupError, match=cause):
        KafkaSource("in", **options)


@pytest.mark.parametrize("given", ["2s", -1.0, float("nan"), True])
@pytest.mark.parametrize("option", ["idle_after", "max_future", "max_skew", "advance_after"])
def test_an_option_that_is_no_seconds_is_refused(option: str, given: Any) -> None:
    with pytest.raises(SetupError, match=f"SourceOptions: its {option} is .*; give seconds"):
        SourceOptions(**{option: given})


@pytest.mark.parametrize("start", ["noon", -5, True, 1.5, "2013-01-01", "9" * 14, "9" * 5000])
def test_a_start_that_is_no_position_is_refused_at_the_definition(start: Any) -> None:
    with pytest.raises(SetupError, match="source topic 'in', start .*give earliest, latest"):
        KafkaSource("in", start=start)


@pytest.mark.parametrize("start", ["earliest", "latest", 0, 5, "5", "2013-01-01T10:00:00+02:00"])
def test_a_start_is_an_end_of_the_log_or_a_time(start: Any) -> None:
    assert KafkaSource("in", start=start).start == start
