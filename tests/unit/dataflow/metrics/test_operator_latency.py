"""How long records are in an operator: whatever they wait for there counts, and nothing else.

The clock stands while a flow works, so only the time that a test lets pass is measured.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from meander import Flow, Stream
from meander.app.worker.process import heartbeat_of
from meander.app.worker.turn_times import TurnTimes
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.metrics.histogram import BOUNDS, Histogram
from meander.dataflow.operators.keyed.operator import Order
from meander.dataflow.simulation.in_memory import ListSink
from meander.dataflow.simulation.simulator import SimTopic
from meander.state.keys.ids import WorkerId
from tests.support.sim.manual_flow import (
    ManualFlow,
    ManualSink,
    ManualSource,
    keyed,
    turn_without,
    until,
)
from tests.support.sim.start import Start

PATIENT = SourceOptions(idle_after=3600.0, max_skew=3600.0)
"""A partition without records holds back the others until it gets some."""
WAITS, LONG = 20.0, 30.0
"""Seconds that a test lets pass, and the bound of the bucket that they fall into."""


def counted(
    source: ManualSource, sink: ListSink, order: Order = "event", max_waiting: int = 1 << 20
) -> Flow:
    flow = Flow("f", bins=4, max_waiting=max_waiting)
    stream = flow.source(source, "in").key_by(lambda value: value)
    stream.fold("n", int, lambda n, value: (n + 1, n + 1), order=order).sink(sink, name="out")
    return flow


def took(run: ManualFlow, name: str) -> Histogram:
    """Of an operator on all workers."""
    found = [worker.work()[name].durations for worker in run.workers]
    counts = np.sum([one.counts for one in found], axis=0).tolist()
    return Histogram(counts, sum(one.seconds for one in found))


def lengths(seen: Histogram) -> dict[float, int]:
    """How many were in an operator for no longer than what."""
    bounds = (*BOUNDS, inf)
    return {bound: n for bound, n in zip(bounds, seen.counts, strict=True) if n}


AT_ONCE = BOUNDS[0]


def let_pass(run: ManualFlow, seconds: float = WAITS) -> None:
    run.sim.clock.advance(seconds)
    run.run_until_idle()


def test_a_record_waits_in_a_stateful_operator_until_the_frontier_has_passed_it(
    start: Start,
) -> None:
    source = ManualSource(2, PATIENT)
    run = start(counted(source, ListSink()), workers=1)
    source.feeds[1].busy = True
    source.give(0, (5, "a"), (5, "b"), (9, "c"))
    run.run_until_idle()
    let_pass(run)
    assert lengths(took(run, "n")) == {}, "nothing is through yet"
    source.give(1, (5, "d"), (8, "e"))
    run.run_until_idle()
    assert lengths(took(run, "n")) == {AT_ONCE: 1, LONG: 2}, "of time 5; the others wait on"
    let_pass(run)
    run.finish(source)
    assert sum(took(run, "n").counts) == 5
    assert took(run, "n").seconds == pytest.approx(20 + 20 + 40 + 0 + 20, abs=0.1)
    assert lengths(took(run, "out")) == {AT_ONCE: 5}, "the wait was not there"
    assert lengths(took(run, "key_by exchange")) == {AT_ONCE: 5}


def test_what_is_applied_as_it_arrives_waits_for_no_frontier(start: Start) -> None:
    source = ManualSource(2, PATIENT)
    run = start(counted(source, ListSink(), "processing"), workers=1)
    source.feeds[1].busy = True
    source.give(0, (5, "a"), (9, "b"))
    run.run_until_idle()
    assert lengths(took(run, "n")) == {AT_ONCE: 2}
    let_pass(run)
    assert took(run, "n").seconds == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("place", ["n", "key_by exchange"])
def test_records_that_wait_on_disk_know_when_they_came(start: Start, place: str) -> None:
    """At a stateful operator, or, where commands of their time are not ruled out, before it."""
    source = ManualSource(2, PATIENT)
    run = start(counted(source, ListSink(), max_waiting=2000), workers=1)
    (worker,) = run.workers
    source.feeds[1].busy = True
    run.run_until_idle()
    for ms in (5, 6):
        source.give(0, *((ms, f"{ms}.{n}") for n in range(100)))
        run.run_until_idle(coordinator=place == "n")
        run.sim.clock.advance(WAITS)
    assert worker.spilled > 0
    source.give(1, (9, "last"))
    run.finish(source)
    assert worker.spilled == 0
    waited, other = ("n", "key_by exchange")[:: 1 if place == "n" else -1]
    assert lengths(took(run, waited)) == {AT_ONCE: 1, LONG: 100, inf: 100}
    assert took(run, waited).seconds == pytest.approx(100 * 20 + 100 * 40, abs=2)
    assert lengths(took(run, other)) == {AT_ONCE: 201}


def test_a_record_waits_for_its_bin_at_the_new_owner_and_no_other_does(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ManualSource()
    run = start(counted(source, ListSink()))
    source.give(0, *((5, n) for n in range(100)))
    run.wait(0.01)
    here = {n for n in range(100) if run.owner(n) == 0}
    before = took(run, "n").counts
    with monkeypatch.context() as lost:
        lost.setattr(SimTopic, "fetched", lambda topic, ticket: None)
        run.control(
            {
                "type": "migrate",
                "id": "m",
                "bins": "all",
                "worker": 1,
                "strategy": "all-at-once",
                "precopy": False,
            }
        )
        until(keyed(run.workers[1], "n").incoming.busy, lambda: run.wait(0.001))
        source.give(0, *((1000, n) for n in range(100)))
        run.wait(0.01)
        assert 0 < len(here) < 100
        let_pass(run)
    assert sum(took(run, "n").counts) == sum(before) + 100 - len(here), "their bins were there"
    run.finish(source)
    n = took(run, "n")
    assert (sum(n.counts), n.counts[BOUNDS.index(LONG)]) == (200, len(here))
    assert run.answer("m") is not None


def test_what_has_no_credit_waits_at_its_exchange(start: Start) -> None:
    flow, source = Flow("f", bins=4, link_credit=1000), ManualSource()
    stream = flow.source(source, "in").key_by(lambda value: value)
    stream.fold("n", int, lambda n, value: (n + 1, n)).sink(ListSink())
    run = start(flow)
    run.run_until_idle()
    source.give(0, (4, 0))
    run.run_until_idle()
    for n in range(1, 40):
        source.give(0, (5 + n, n))
    until(lambda: bool(run.workers[0].starved()), lambda: turn_without(run, WorkerId(1)))
    for _ in range(60):
        turn_without(run, WorkerId(1))
    late = {n for n in range(40) if run.owner(n) == 1}
    run.sim.clock.advance(WAITS)
    run.finish(source)
    seen = lengths(took(run, "key_by exchange"))
    assert sum(seen.values()) == 40
    assert 0 < seen[LONG] < len(late), "some had credit"


def test_what_a_sink_has_written_is_in_it_until_it_is_delivered(start: Start) -> None:
    source, sink = ManualSource(), ManualSink()
    run = start(counted(source, sink), workers=1)
    sink.delivers = False
    source.give(0, (5, "a"), (6, "b"))
    run.wait(0.01)
    source.give(0, (7, "c"))
    run.wait(0.01)
    assert len(sink.results) >= 2
    assert lengths(took(run, "out")) == {}
    let_pass(run, 10)
    sink.delivers = True
    run.finish(source)
    assert took(run, "out").seconds == pytest.approx(30, abs=0.1)
    assert lengths(took(run, "n")).keys() <= {0.01, 0.003, AT_ONCE}


def test_a_stateless_operator_that_may_not_send_keeps_records_waiting(start: Start) -> None:
    source, sink = ManualSource(), ManualSink()
    flow = Flow("f")
    flow.source(source, "in").map(str).sink(sink, name="out")
    run = start(flow, workers=1)
    sink.takes = False
    for ms in range(3):
        source.give(0, (ms, ms))
        run.run_until_idle()
    let_pass(run)
    assert lengths(took(run, "map")) == {AT_ONCE: 1}, "the sink has not taken it"
    sink.takes = True
    run.finish(source)
    assert lengths(took(run, "map")) == {AT_ONCE: 1, LONG: 2}
    assert lengths(took(run, "out")) == {AT_ONCE: 2, LONG: 1}


def test_in_a_loop_each_round_counts_and_waits_for_its_own_frontier(start: Start) -> None:
    source = ManualSource(2, PATIENT)
    flow = Flow("f", bins=2)

    def body(stream: Stream[Any]) -> Any:
        less = stream.key_by(lambda value: 0).fold("n", int, lambda n, value: (n, value - 1))
        return less.split(lambda value: "again" if value else "leave", "again", "leave")

    flow.source(source, "in").iterate("loop", body).sink(ListSink(), name="out")
    run = start(flow, workers=1)
    source.feeds[1].busy = True
    source.give(0, (5, 3), (9, 1))
    run.run_until_idle()
    let_pass(run)
    assert lengths(took(run, "n")) == {}
    source.give(1, (9, 1))
    run.run_until_idle()
    assert lengths(took(run, "n")) == {AT_ONCE: 2, LONG: 1}, "rounds 1 and 2 had not come before"
    assert lengths(took(run, "out")) == {AT_ONCE: 1}
    run.finish(source)
    assert sum(took(run, "n").counts) == 5


def test_whatever_has_come_to_an_operator_is_timed_once(start: Start) -> None:
    source, sink = ManualSource(2), ListSink()
    run = start(counted(source, sink))
    source.give(0, *((ms, ms % 7) for ms in range(200)))
    source.give(1, *((ms, ms % 5) for ms in range(300)))
    run.control({"type": "migrate", "id": "m", "bins": "all", "worker": 1})
    run.finish(source)
    for name in ("key_by", "key_by exchange", "n", "out"):
        received = sum(worker.work()[name].received for worker in run.workers)
        assert sum(took(run, name).counts) == received == 500
    assert sum(took(run, "in").counts) == 0, "to a source nothing comes"


def test_a_beat_says_it(start: Start) -> None:
    source = ManualSource()
    run = start(counted(source, ListSink()), workers=1)
    source.give(0, (5, "a"))
    run.finish(source)
    (worker,) = run.workers
    said, known = heartbeat_of(worker, TurnTimes()).operators["n"], worker.work()["n"]
    assert (said.durations.counts, said.durations.seconds) == (
        known.durations.counts,
        known.durations.seconds,
    )
    assert sum(said.durations.counts) == 1
