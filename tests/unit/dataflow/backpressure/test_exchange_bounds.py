"""I6 between operators: what functions make of their input is bounded at exchanges and links."""

from __future__ import annotations

import re
from typing import Any

import pytest

from meander import Flow
from meander.dataflow.backpressure.credit import Credit
from meander.dataflow.graph.graph import EdgeId
from meander.dataflow.operators.keyed import operator
from meander.dataflow.simulation.in_memory import ListSink
from meander.schemas.errors import MeanderError, SetupError
from meander.state.keys.ids import WorkerId
from tests.support.sim.manual_flow import (
    ManualFlow,
    ManualSink,
    ManualSource,
    buffered_bytes,
    keyed,
    turn_without,
    until,
)
from tests.support.sim.start import Start

KIB = 1 << 10
WAITING = 64 * KIB
CREDIT = 16 * KIB
MESSAGE = 8 * KIB
"""What one record becomes, and more than the half of it that goes to one worker."""


class Multiplied:
    """Each record becomes eight of a KiB, one per key, so that both workers get some."""

    def __init__(self, start: Start, waiting: int = WAITING, spill: int = 1 << 30) -> None:
        self.source, self.sink = ManualSource(), ListSink()
        flow = Flow("f", bins=3, max_waiting=waiting, max_spill=spill, link_credit=CREDIT)
        many = flow.source(self.source).flat_map(lambda v: [(n, "x" * KIB) for n in range(8)])
        many.key_by(lambda v: v[0]).fold("n", lambda: 0, _count).sink(self.sink)
        self.run: ManualFlow = start(flow, workers=2)

    def give(self, ms: int, count: int) -> None:
        for n in range(count):
            self.source.give(0, (ms + n, n))


def _count(n: int, value: object) -> tuple[int, int]:
    return n + 1, n + 1


def test_what_an_exchange_may_not_route_yet_goes_to_disk_beyond_its_bound(start: Start) -> None:
    """I6; and comes back (I3)."""
    flow = Multiplied(start)
    flow.run.run_until_idle()
    for n in range(4):
        flow.give(1_000_000 + 10 * n, 7)
    flow.run.run_until_idle(coordinator=False)
    first = flow.run.workers[0].parts.operators
    router, disk = first.exchanges[0], first.disk
    assert router.stash.size <= WAITING < 3 * 56 * KIB < disk.used + router.stash.size
    assert [worker.spilled for worker in flow.run.workers] == [disk.used, 0]
    flow.run.finish(flow.source)
    assert sorted(flow.sink.values) == sorted([*range(1, 29)] * 8)  # type: ignore[type-var]
    assert disk.used == 0


def test_an_exchange_that_may_not_route_yet_ends_the_flow_when_the_disk_is_spent(
    start: Start,
) -> None:
    flow = Multiplied(start, spill=WAITING)
    flow.run.run_until_idle()
    flow.give(1_000_000, 7)
    flow.run.run_until_idle(coordinator=False)
    flow.give(1_000_010, 14)
    with pytest.raises(MeanderError) as raised:
        flow.run.run_until_idle(coordinator=False)
    said = str(raised.value)
    assert re.match(
        r"operator 'key_by exchange': \d\d,\d{3} bytes of this worker's records wait on disk", said
    )
    assert "more than its bound of 65,536; raise the flow's max_spill" in said


def test_what_an_exchange_has_routed_counts_no_longer(start: Start) -> None:
    flow = Multiplied(start)
    for n in range(20):
        flow.give(1_000 + 10 * n, 7)
        flow.run.run_until_idle()
    flow.run.finish(flow.source)
    assert len(flow.sink.results) == 20 * 7 * 8


def test_a_worker_that_takes_nothing_stops_its_sender_within_its_credit(start: Start) -> None:
    """I6; and once it takes again, all goes on (I7)."""
    flow = Multiplied(start, waiting=100 * WAITING)
    sender = flow.run.workers[0]
    flow.run.run_until_idle()
    flow.give(1_000, 1)
    flow.run.run_until_idle()
    for n in range(40):
        flow.give(1_001 + n, 1)
    until(
        lambda: sender.links()[0][WorkerId(1)] >= CREDIT,
        lambda: turn_without(flow.run, WorkerId(1)),
    )
    for _ in range(200):
        turn_without(flow.run, WorkerId(1))
        assert CREDIT <= sender.links()[0][WorkerId(1)] <= CREDIT + MESSAGE
    assert sender.starved() == [("key_by exchange", "n", WorkerId(1))]
    assert len(flow.sink.results) < 20 * 8
    flow.run.finish(flow.source)
    assert sender.starved() == []
    assert len(flow.sink.results) == 41 * 8


def test_a_message_larger_than_the_whole_credit_passes(start: Start) -> None:
    """I7."""
    source, sink = ManualSource(), ListSink()
    flow = Flow("f", bins=3, link_credit=1)
    many = flow.source(source).flat_map(lambda v: [(n, "x" * KIB) for n in range(8)])
    many.key_by(lambda v: v[0]).fold("n", lambda: 0, _count).sink(sink)
    run = start(flow, workers=3)
    source.give(0, *((1000 + n, n) for n in range(50)))
    run.finish(source)
    assert len(sink.results) == 50 * 8


def test_a_sink_that_takes_nothing_stops_all_that_is_behind_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6, I7: waiting follows the dataflow to the source, through folds and exchanges."""
    credit, message = 2 * KIB, 20 * KIB
    monkeypatch.setattr(operator, "SLICE", 8)
    source, sink = ManualSource(record_size=KIB), ManualSink()
    sink.takes = False
    flow = Flow("f", bins=3, max_inflight=1 << 30, link_credit=credit)
    first = flow.source(source).key_by(lambda v: v % 7).fold("a", lambda: 0, _text)
    second = first.flat_map(lambda v: [v, v]).key_by(lambda v: v[0] % 5)
    second.fold("b", lambda: 0, _count).map(lambda v: v).sink(sink)
    run = start(flow, workers=2)
    for n in range(60):
        source.give(0, *((1_000 + 5 * n + m, n + m) for m in range(5)))
        run.wait(0.003)
    waits = sum(message.payload.times.size for message in _at_the_source(run))
    assert waits > 150, "at the source, where max_inflight bounds it"
    for worker in run.workers:
        assert all(sent <= 2 * (credit + message) for sent in worker.links()[0].values())
        for router in worker.parts.operators.exchanges:
            assert buffered_bytes(router) <= 2 * (credit + message)
        for name in ("a", "b"):
            assert buffered_bytes(keyed(worker, name)) <= 2 * (credit + message)
    sink.takes = True
    run.finish(source)
    assert len(sink.results) == 600


def _text(n: int, value: int) -> tuple[int, tuple[int, str]]:
    return n + 1, (value, "x" * KIB)


def _at_the_source(run: ManualFlow) -> list[Any]:
    """What the source has sent and nobody has taken."""
    plan, inputs = run.sim.plan, run.workers[0].parts.operators.inputs
    (edge,) = (e for e in plan.graph.edges if e.source == plan.source_locations[0])
    return inputs[edge.target].waiting


def test_more_acknowledged_than_was_sent_is_a_fault_of_the_peer() -> None:
    credit, edge = Credit(100), EdgeId(3)
    credit.use(edge, WorkerId(1), 10)
    with pytest.raises(MeanderError, match="worker 1: it acknowledged more data than it was sent"):
        credit.restore(edge, WorkerId(1), 11)


@pytest.mark.parametrize("bound", ["max_inflight", "max_waiting", "max_spill", "link_credit"])
def test_a_bound_that_lets_nothing_pass_is_refused(bound: str) -> None:
    with pytest.raises(SetupError, match=f"flow 'f': its {bound} is 0; give bytes from 1 on"):
        Flow("f", **{bound: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 2])
def test_one_object_given_out_twice_arrives_as_two(start: Start, workers: int) -> None:
    """I3: what a function changes in place must not depend on who owns the bin."""
    source, sink = ManualSource(), ListSink()
    flow = Flow("f", bins=4)

    def step(n: int, value: dict[str, int]) -> tuple[int, int]:
        value["seen"] += 1
        return n + 1, value["seen"]

    twice = flow.source(source).flat_map(lambda v: [v, v])
    twice.key_by(lambda v: v["key"]).fold("n", lambda: 0, step).sink(sink)
    run = start(flow, workers)
    source.give(0, *((n, {"key": n, "seen": 0}) for n in range(20)))
    run.finish(source)
    assert [result.value for result in sink.results] == [1] * 40
