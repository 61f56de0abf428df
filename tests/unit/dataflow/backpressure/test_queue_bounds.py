"""I6: every queue has a bound, what is behind a full one waits, and nothing waits for ever (I7)."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from meander import Flow
from meander.dataflow.backpressure.inflight import InFlightBytes, SentBatch
from meander.dataflow.control.command import MoveBins
from meander.dataflow.interfaces import Partition, SourceOptions
from meander.dataflow.metrics.histogram import Histogram
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.antichain import Antichain
from meander.state.times.time import from_millis
from tests.support.sim.manual_flow import (
    ManualFlow,
    ManualReader,
    ManualSink,
    ManualSource,
    keyed,
)
from tests.support.sim.start import Start

MIB = 1 << 20
RECORD = 100
"""Bytes of a record on its topic."""
CHUNK = 5
"""Records of a chunk."""
BOUND = 20 * RECORD


# -- a slow sink


class Slow:
    """A flow whose sink delivers only when told, and which has far more to read than its bound."""

    def __init__(self, start: Start, partitions: int = 1, workers: int = 1) -> None:
        self.source, self.sink = ManualSource(partitions, record_size=RECORD), ManualSink()
        flow = Flow("f", bins=1, max_inflight=BOUND)
        stream = flow.source(self.source)
        stream.key_by(lambda v: v % 2).fold("n", lambda: 0, _pass_on).sink(self.sink)
        self.run: ManualFlow = start(flow, workers)
        self.sink.delivers = False
        self.most = 0

    def fill(self, partition: int, first_ms: int, step_ms: int, chunks: int = 40) -> None:
        for chunk in range(chunks):
            ms = [first_ms + step_ms * (chunk * CHUNK + i) for i in range(CHUNK)]
            self.source.give(partition, *((m, m) for m in ms))

    def wait(self, turns: int = 200) -> None:
        for _ in range(turns):
            self.run.sim.clock.advance(0.001)
            self.run.turn()
            self.most = max(self.most, *(worker.inflight for worker in self.run.workers))

    @property
    def left(self) -> list[int]:
        """Chunks that nobody has read, per partition."""
        return [len(feed.chunks) for feed in self.source.feeds]


def _pass_on(n: int, value: int) -> tuple[int, int]:
    return n + 1, value


def test_a_source_stops_reading_while_the_sink_does_not_deliver(start: Start) -> None:
    slow = Slow(start)
    slow.fill(0, 10, 1)
    slow.wait()
    read = (40 - slow.left[0]) * CHUNK * RECORD
    assert BOUND <= read == slow.most <= BOUND + CHUNK * RECORD
    stands = slow.left
    slow.wait()
    assert slow.left == stands
    slow.sink.delivers = True
    slow.run.finish(slow.source)
    assert len(slow.sink.results) == 40 * CHUNK
    assert all(worker.inflight == 0 for worker in slow.run.workers)


def test_it_goes_on_with_as_much_as_has_been_delivered(start: Start) -> None:
    slow = Slow(start)
    slow.fill(0, 10, 1)
    slow.wait()
    for _ in range(5):
        before = slow.left[0]
        slow.sink.delivers = True
        until_less(slow, before)
        slow.sink.delivers = False
        slow.wait(50)
        assert slow.most <= BOUND + CHUNK * RECORD


def until_less(slow: Slow, before: int) -> None:
    for _ in range(200):
        slow.wait(1)
        if slow.left[0] < before:
            return
    raise AssertionError("reading is not resumed")


def test_the_partition_that_holds_the_others_back_may_read_on_up_to_twice_the_bound(
    start: Start,
) -> None:
    """I7: without it nothing that was read could ever be passed."""
    slow = Slow(start, partitions=2)
    slow.sink.delivers = True
    slow.source.feeds[1].busy = True
    slow.fill(0, 1000, 1)
    slow.wait()
    assert slow.left[0] > 0, "the first partition is stopped: the second holds the frontier at 0"
    slow.fill(1, 10, 1)
    slow.wait()
    assert slow.left[1] == 0
    assert BOUND < slow.most <= 2 * BOUND + CHUNK * RECORD
    slow.source.feeds[1].busy = False
    slow.run.finish(slow.source)
    assert len(slow.sink.results) == 80 * CHUNK


def test_records_of_one_time_beyond_twice_the_bound_go_on_at_the_next_sequence(
    start: Start,
) -> None:
    """I7: a partition whose own time is what its records wait for moves on."""
    slow = Slow(start)
    slow.sink.delivers = True
    slow.source.feeds[0].busy = True
    slow.fill(0, 10, 0)
    slow.wait(400)
    assert slow.left == [0]
    assert slow.most <= 2 * BOUND + CHUNK * RECORD
    slow.run.finish(slow.source)
    assert len(slow.sink.results) == 40 * CHUNK
    assert len({result.time for result in slow.sink.results}) > 1


def test_a_full_source_calls_on_idle_partitions_where_nothing_else_waits(start: Start) -> None:
    """I7: all is delivered, and only a partition without data holds it in flight."""
    source, sink = ManualSource(partitions=2, record_size=RECORD), ManualSink()
    flow = Flow("f", max_inflight=BOUND)
    flow.source(source).sink(sink)
    run = start(flow, workers=2)
    for ms in range(100):
        source.give(0, (ms, ms))
    run.wait(0.1)
    assert len(sink.results) == 100


@pytest.mark.parametrize("workers", [1, 3])
def test_each_worker_has_a_bound_of_its_own(start: Start, workers: int) -> None:
    slow = Slow(start, partitions=3, workers=workers)
    for partition in range(3):
        slow.fill(partition, 10, 1)
    slow.wait()
    chunk = CHUNK * RECORD * (3 // workers)
    assert BOUND <= slow.most <= 2 * BOUND + chunk
    assert all(left > 0 for left in slow.left)
    slow.sink.delivers = True
    slow.run.finish(slow.source)
    assert len(slow.sink.results) == 120 * CHUNK


# -- tiny bounds end every run

Data = list[list[tuple[int, int]]]


def equal(chance: random.Random) -> Data:
    return [[(7, i) for i in range(30)] for _ in range(3)]


def skewed(chance: random.Random) -> Data:
    return [[(p * 100_000 + i, i) for i in range(20)] for p in range(3)]


def one_empty(chance: random.Random) -> Data:
    return [[], [(i, i) for i in range(40)]]


def opposed(chance: random.Random) -> Data:
    """One partition runs far ahead first, then stands still at one time."""
    return [[(1, i) for i in range(25)] + [(50_000, 0)], [(50_000, i) for i in range(25)]]


def mixed(chance: random.Random) -> Data:
    return [
        [(chance.choice([5, 5, 9, 3000]), i) for i in range(chance.randrange(30))] for _ in range(5)
    ]


@pytest.mark.parametrize("data", [equal, skewed, one_empty, opposed, mixed])
@pytest.mark.parametrize("bound", [1, 3 * RECORD])
@pytest.mark.parametrize("workers", [1, 3])
def test_tiny_bounds_slow_a_flow_down_and_never_stop_it(
    start: Start, data: Any, bound: int, workers: int
) -> None:
    """I7; and what is in flight stays within twice the bound and a chunk of each partition."""
    partitions: Sequence[Sequence[tuple[int, object]]] = data(random.Random(bound))
    sink = ListSink()
    flow = Flow("f", bins=2, max_inflight=bound)
    options = SourceOptions(max_skew=0.5)
    stream = flow.source(ListSource(partitions, options, RECORD))
    keyed = stream.key_by(lambda v: v % 5).fold("n", lambda: 0, _pass_on)
    keyed.map(int).key_by(lambda v: v % 3).fold("m", lambda: 0, _pass_on).sink(sink)
    everything = tuple(map(Bin, range(4)))
    moves = [
        MoveBins("at once", everything, WorkerId(workers - 1), None, "all-at-once"),
        MoveBins("later", everything, WorkerId(0), from_millis(3000), "fluid"),
    ]
    run = start(flow, workers, moves)
    largest = 8 * RECORD * -(-len(partitions) // workers)
    while not run.sim.done:
        run.sim.act()
        assert all(worker.inflight <= 2 * bound + largest for worker in run.workers)
    assert len(sink.results) == sum(map(len, partitions))


# -- what cannot be held back


class Held:
    """Records that wait at "both", because the other source is busy before their time."""

    def __init__(self, start: Start, stage: Any, spill: int = 1 << 30) -> None:
        patient = SourceOptions(max_skew=100.0)
        self.first, other = ManualSource(options=patient), ManualSource(options=patient)
        self.first.feeds[0].busy = other.feeds[0].busy = True
        flow = Flow("f", bins=0, max_waiting=5 * MIB // 2, max_spill=spill)
        left = stage(flow.source(self.first, "first").key_by(lambda v: 0))
        right = flow.source(other, "other").key_by(lambda v: 0)
        self.other, self.sink = other, ListSink()
        left.connect(right, "both", lambda: 0, _count, _count).sink(self.sink)
        self.run: ManualFlow = start(flow, workers=1)

    def give(self, *values: object) -> None:
        for value in values:
            self.first.give(0, (1000, value))
            self.run.run_until_idle()
        self.first.give(0, (2000, ""))
        self.run.run_until_idle()


def _count(context: Any, state: int, value: str) -> int:
    context.emit(len(value))
    return state + 1


def _big(context: Any, state: int, value: str) -> int:
    for _ in range(len(value)):
        context.emit("x" * MIB)
    return state


STAGES = {
    "as they are": lambda stream: stream,
    "after a fold": lambda stream: stream.fold("a", lambda: 0, lambda n, v: (n, v * MIB)),
    "after a process": lambda stream: stream.process("a", lambda: 0, _big),
    "after a map": lambda stream: stream.map(lambda v: v * MIB),
    "after a flat_map": lambda stream: stream.flat_map(lambda v: ["x" * MIB] * len(v)),
}


@pytest.mark.parametrize("stage", STAGES)
def test_more_than_may_wait_ends_the_flow_with_operator_bound_and_remedy(
    start: Start, stage: str
) -> None:
    """I6: what waits for time holds back no source, so it is an error and not a full disk."""
    value = "x" * MIB if stage == "as they are" else "x"
    Held(start, STAGES[stage], spill=2 * MIB).give(value, value, value)
    too_much = Held(start, STAGES[stage], spill=2 * MIB)
    with pytest.raises(MeanderError) as raised:
        too_much.give(*[value] * 5)
    said = str(raised.value)
    assert re.match(
        r"operator 'both': [23],[01]\d\d,\d{3} bytes of this worker's records wait", said
    )
    assert "wait on disk, more than its bound of 2,097,152; raise the flow's max_spill" in said


@pytest.mark.parametrize("stage", STAGES)
def test_more_than_memory_holds_waits_on_disk_and_comes_back(start: Start, stage: str) -> None:
    """I6, I7."""
    value = "x" * MIB if stage == "as they are" else "x"
    held = Held(start, STAGES[stage])
    held.give(*[value] * 9)
    disk, both = held.run.workers[0].parts.operators.disk, keyed(held.run.workers[0], "both")
    assert both._waiting.size <= 5 * MIB // 2
    assert disk.used > 6 * MIB
    held.other.end()
    held.run.finish(held.first)
    assert (disk.used, held.sink.values.count(MIB)) == (0, 9)


def test_what_has_been_applied_counts_no_longer(start: Start) -> None:
    """I6."""
    source = ManualSource()
    flow = Flow("f", bins=0, max_waiting=5 * MIB // 2)
    flow.source(source).key_by(lambda v: 0).fold("n", lambda: 0, _pass_on).sink(ListSink())
    run = start(flow, workers=1)
    for n in range(8):
        source.give(0, (1000 + n, "x" * MIB))
        run.wait(0.005)
    run.finish(source)
    assert run.counters["written"] == 8


# -- the account


def test_what_is_in_flight_is_freed_in_order_when_the_sinks_have_passed_it() -> None:
    source = ManualSource(partitions=2)
    reader = ManualReader(source, [Partition(0), Partition(1)], random.Random(0))
    read_at, delays = list[float](), Histogram()
    inflight = InFlightBytes(bound=100, report_passed=read_at.append)
    for time, partition, next_offset in ((5, 0, 10), (7, 0, 20), (6, 1, 3)):
        inflight.read(60)
        sent = SentBatch(
            time, 60, 1, reader, Partition(partition), next_offset, float(time), delays
        )
        inflight.sent(sent)
    assert (inflight.bytes, inflight.full, inflight.overfull) == (180, True, False)
    inflight.read(20)
    assert inflight.overfull
    inflight.free_passed(Antichain.of(6), now=5.5)
    assert (inflight.bytes, [feed.passed for feed in source.feeds]) == (140, [10, 0])
    inflight.free_passed(Antichain(), now=10.0)
    assert (inflight.bytes, [feed.passed for feed in source.feeds]) == (20, [20, 3])
    assert not inflight.full
    assert delays.seconds == 0.5 + 3.0 + 4.0
    assert read_at == [5, 7, 6]


@pytest.mark.parametrize(
    ("idle", "least", "most"), [(0.0, 95_000, 105_000), (1.0, 95_000, 105_000), (4.0, 8000, 8000)]
)
def test_where_no_bound_is_asked_for_what_is_sent_follows_what_the_sinks_pass(
    idle: float, least: int, most: int
) -> None:
    """It is half a second's, and a quarter of a MiB at least; what stands still for a moment is not
    slow."""
    source = ManualSource(partitions=2)
    place, other = Partition(0), Partition(1)
    reader = ManualReader(source, [place, other], random.Random(0))
    bounded, free = (
        InFlightBytes(1 << 30, lambda _: None, adapts=adapts) for adapts in (False, True)
    )
    now, time = 0.0, 0

    def send(rows: int) -> None:
        nonlocal time
        time += 1
        for inflight in (bounded, free):
            inflight.read(rows)
            inflight.sent(SentBatch(time, rows, rows, reader, place, time, now, None))

    def pass_on(rate: int, seconds: float) -> None:
        nonlocal now
        for _ in range(round(seconds / 0.05)):
            now += 0.05
            send(rate // 20)
            free.free_passed(Antichain.of(time + 1), now)

    pass_on(200_000, seconds=1.0)
    pass_on(0, seconds=idle)
    sent = 0
    while not free.is_saturated(reader, place):
        send(1000)
        sent += 1000
    assert least <= sent <= most
    assert not free.is_saturated(reader, other), "each partition has a bound of its own"
    assert not bounded.is_saturated(reader, place), "who asks for a bound gets that one alone"
