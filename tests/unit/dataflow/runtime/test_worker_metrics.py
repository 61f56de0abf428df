"""What workers count of their own work, and what they say of their partitions."""

from __future__ import annotations

from collections import Counter
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander import Flow
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.metrics.histogram import BOUNDS, Histogram
from meander.dataflow.simulation.in_memory import ListSink
from meander.state.keys.ids import WorkerId
from tests.support.sim.manual_flow import ManualFlow, ManualSink, ManualSource, until
from tests.support.sim.start import Start

ZERO, ONE = WorkerId(0), WorkerId(1)


def flow_of(source: ManualSource, sink: ListSink) -> Flow:
    """Two records for each that is read, keyed, counted, and written to a sink and another."""
    flow = Flow("f")
    doubled = flow.source(source).flat_map(lambda value: [value, value])
    counted = doubled.key_by(lambda value: value).fold("n", lambda: 0, lambda n, _: (n + 1, n + 1))
    counted.sink(sink)
    counted.sink(ListSink(), name="other")
    return flow


def total(run: ManualFlow, name: str) -> tuple[int, int]:
    """Records that have come to an operator and left it, on all workers."""
    work = [worker.work()[name] for worker in run.workers]
    return sum(one.received for one in work), sum(one.sent for one in work)


def test_records_count_where_they_come_and_leave_on_whatever_worker(start: Start) -> None:
    source, sink = ManualSource(partitions=2), ManualSink()
    run = start(flow_of(source, sink))
    source.give(0, *((1000 + n, n) for n in range(5)))
    source.give(1, *((1000 + n, n) for n in range(3)))
    run.finish(source)

    names = list(run.workers[0].work())
    source_name = next(name for name in names if name in run.workers[0].parts.operators.sources)
    assert total(run, source_name) == (0, 8)
    assert total(run, "n") == (16, 16), "to two sinks each record leaves once"
    assert total(run, "other") == (16, 0)
    assert run.counters["written"] == 32
    assert names[0] == "migrator"


def test_bytes_on_the_way_are_those_sent_and_not_taken(start: Start) -> None:
    source = ManualSource(partitions=2)
    run = start(flow_of(source, ListSink()))
    first, second = run.workers
    run.run_until_idle()
    assert (first.links(), second.links()) == (({ONE: 0}, {ONE: 0}), ({ZERO: 0}, {ZERO: 0}))
    source.give(0, *((1000 + n, n) for n in range(50)))
    source.give(1, *((1000 + n, n) for n in range(50)))
    until(lambda: first.links()[0][ONE] > 0, run.turn)
    before = second.links()[1][ZERO]
    run.finish(source)

    assert before == 0, "the second had not taken it when the first had sent it"
    assert first.links()[0][ONE] == second.links()[1][ZERO] > 0, "all has been taken"
    assert second.links()[0][ZERO] == first.links()[1][ONE] > 0


def test_a_partition_says_how_far_it_is_and_what_it_waits_for(start: Start) -> None:
    # Two records are more than what may be far ahead of the other partition.
    idle = SourceOptions(idle_after=3600.0)
    source = ManualSource(partitions=2, options=idle, record_size=200 << 10)
    flow = Flow("f")
    flow.source(source, name="in").sink(ListSink())
    run = start(flow, workers=1)
    (worker,) = run.workers
    source.feeds[1].busy = True
    source.give(0, (1000, "a"))
    run.run_until_idle()
    source.give(0, (9000, "far ahead of the other"))
    run.run_until_idle()

    zero, one = worker.standing()["in"]
    assert (zero.partition, zero.state, zero.time >> 20) == (0, "sending", 9000)
    assert (one.partition, one.state, one.time) == (1, "reading", 0)
    source.feeds[1].busy = False
    assert worker.standing()["in"][1].state == "idle"


def test_a_chunk_takes_from_its_reading_to_its_delivery(start: Start) -> None:
    """The clock stands while the flow works, so only the sink takes time here."""
    source, sink = ManualSource(), ManualSink()
    flow = Flow("f")
    flow.source(source, name="in").sink(sink)
    run = start(flow, workers=1)
    sink.delivers = False
    source.give(0, (1000, "a"), (1001, "b"))
    run.wait(0.25)
    (worker,) = run.workers
    assert sum(worker.delays()["in"].counts) == 0
    sink.delivers = True
    run.finish(source)
    delays = worker.delays()["in"]
    assert sum(delays.counts) == 1, "one chunk"
    assert delays.seconds == pytest.approx(0.25, abs=0.02)


def test_an_operator_is_busy_in_turns_in_which_it_does_something(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ManualSource()
    flow = Flow("f")
    flow.source(source, name="in").sink(ListSink(), name="out")
    run = start(flow, workers=1)
    (worker,) = run.workers
    run.run_until_idle()
    ticks = (n / 1e6 for n in count(1))
    monkeypatch.setattr(run.sim.clock, "monotonic", lambda: next(ticks))
    before = worker.work()["out"].busy
    run.run_until_idle()
    assert worker.work()["out"].busy == before
    source.give(0, (1000, "a"))
    run.run_until_idle()
    assert worker.work()["out"].busy > before


def test_a_length_falls_into_the_first_bucket_that_holds_it() -> None:
    seen = Histogram()
    for seconds in (*BOUNDS, BOUNDS[-1] + 1):
        seen.observe(seconds)
    assert seen.counts == [1] * (len(BOUNDS) + 1)
    assert Counter(Histogram().counts) == {0: len(BOUNDS) + 1}


@given(st.lists(st.sampled_from(BOUNDS) | st.floats(0, 100)))
def test_many_lengths_count_as_each_of_them_would(lengths: list[float]) -> None:
    one, all_at_once = Histogram(), Histogram()
    for seconds in lengths:
        one.observe(seconds)
    all_at_once.observe_each(np.array(lengths))
    assert all_at_once.counts == one.counts
    assert all_at_once.seconds == pytest.approx(one.seconds)
