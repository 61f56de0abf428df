"""A partition that comes to a topic while a flow runs is read by one worker (I2), from a time that
was written before anybody heard of it (I5), and each of its records counts once (I3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
from msgspec import structs

from meander import Flow, KafkaSink, KafkaSource
from meander import testing as topics
from meander.app.driver import wait_reasons
from meander.app.recovery.decision_log import written
from meander.dataflow.control.decisions import Decision
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.reports import PartitionsRead
from meander.dataflow.control.timestamp_overrides import OverrideHistory
from meander.dataflow.interfaces import Partition
from meander.dataflow.simulation.faults import Pause
from meander.dataflow.simulation.in_memory import ListReader, ListSink, ListSource
from meander.dataflow.simulation.simulator import AddPartition, Join, Leave, MovePartition
from meander.schemas.control import CommandError
from meander.schemas.errors import SetupError
from meander.state.keys.ids import WorkerId
from meander.state.times.time import MIN_TIME, from_millis, to_millis
from meander.testing import TestFlow
from tests.support.sim.manual_flow import lane_times, replace_decision_writer, until

RECORDS, PARTITIONS = 500, 3
ZERO, ONE, TWO = map(WorkerId, range(3))
LATE = AddPartition("source", [(ms, (PARTITIONS, ms)) for ms in range(60)])
"""One whose records are as old as the flow's first."""


class Growing:
    """A flow of two workers, whose decisions become durable when a test says so."""

    def __init__(self, order: Literal["event", "processing"]) -> None:
        self.sink, self.raw = ListSink(), ListSink()
        records = [[(ms, (p, ms)) for ms in range(RECORDS)] for p in range(PARTITIONS)]
        flow = Flow("f", bins=2)
        source = flow.source(ListSource(records))
        source.sink(self.raw)
        keyed = source.key_by(lambda v: v[0])
        keyed.fold("n", lambda: 0, lambda n, v: (n + 1, (*v, n)), order=order).sink(self.sink)
        self.run = TestFlow(flow, 2, seed=5)
        self.written: list[Decision] = []
        self.durable = True
        self.coordinator = self.run.sim.coordinator
        replace_decision_writer(self.coordinator, self._write)

    def _write(self, decision: Decision) -> Callable[[], bool]:
        self.written.append(decision)
        return lambda: self.durable

    def until(self, holds: Callable[[], bool]) -> None:
        until(holds, self.run.act, 100_000)

    def said(self, event: str) -> list[dict[str, object]]:
        return [one for one in self.run.events if one["type"] == event]

    def waits(self) -> list[str]:
        """What partitions wait for, in words."""
        reading, staying = self.coordinator.assignment, self.coordinator.workers.active
        unsent, unread = self.coordinator.decisions.unsent, reading.unassigned(staying)
        found = wait_reasons.partitions(reading.under_way, ["in"], unsent, unread)
        return [f"{wait.line('waiting')}: {wait.until}" for wait in found.values()]

    def readers(self) -> dict[int, int]:
        """Who reads which partition."""
        found = [
            (int(standing.partition), int(worker.me))
            for worker in self.run.workers
            for standing in worker.standing()["source"]
        ]
        assert len(dict(found)) == len(found), "by one worker at any moment (I2)"
        return dict(found)

    def check(self, partitions: int) -> None:
        """Each record of each partition has counted once, those of a partition in order."""
        self.run.run()
        counts = Counter(result.partition for result in self.raw.results)
        late = dict.fromkeys(range(PARTITIONS, partitions), len(LATE.records))
        assert counts == dict.fromkeys(range(PARTITIONS), RECORDS) | late
        seen = [value for value in self.sink.values if isinstance(value, tuple)]
        assert all(ms == n for _, ms, n in seen)
        assert len(seen) == counts.total()


@pytest.fixture(params=["event", "processing"])
def flow(request: pytest.FixtureRequest) -> Iterator[Growing]:
    growing = Growing(request.param)
    with growing.run:
        growing.until(lambda: growing.coordinator.ready)
        yield growing


def test_all_that_notice_it_bring_about_one_decision(flow: Growing) -> None:
    """For the worker that reads the fewest; older records of it get that decision's time."""
    assert flow.readers() == {0: 0, 2: 0, 1: 1}
    flow.run.inject(LATE)
    flow.until(lambda: bool(flow.said("partition_added")))
    flow.until(lambda: {w._totals["source"] for w in flow.run.workers} == {PARTITIONS + 1})
    (order,) = flow.written
    assert isinstance(order, ReassignPartition)
    assert (order.partition, order.target, order.offset) == (PARTITIONS, ONE, 0)
    (event,) = flow.said("partition_added")
    assert event == {
        "type": "partition_added", "source": "source", "partition": PARTITIONS, "worker": 1,
        "time": to_millis(order.time), "at": order.time,
    }  # fmt: skip
    assert flow.readers()[PARTITIONS] == 1
    flow.check(PARTITIONS + 1)
    times = [r.time for r in flow.raw.results if r.partition == PARTITIONS]
    assert min(times) >= max(order.time, 1), "nothing comes before its decision (I1)"


def test_it_waits_until_its_reader_knows_of_it(flow: Growing) -> None:
    """Else the flow's frontier would stand while that one's client finds out."""
    flow.run.inject(Pause(worker=1, steps=3000))
    flow.run.inject(LATE)
    begun = flow.run.sim.actions
    flow.until(lambda: bool(flow.waits()))
    (wait,) = flow.waits()
    assert wait == (
        "waiting for=new_partition source=in partition=3:"
        " the Kafka client of worker 1 has noticed it, too"
    )
    flow.until(lambda: bool(flow.written))
    assert flow.run.sim.actions > begun + 3000
    assert not any("has noticed it" in wait for wait in flow.waits())
    flow.check(PARTITIONS + 1)


def test_a_joined_worker_notices_it_too(flow: Growing) -> None:
    flow.durable = False
    flow.run.inject(LATE)
    flow.until(lambda: bool(flow.written))
    flow.durable = True
    flow.run.inject(Join())
    flow.until(lambda: bool(flow.said("partition_added")))
    assert [type(decision) for decision in flow.written].count(ReassignPartition) == 1
    flow.check(PARTITIONS + 1)


def test_no_worker_reads_it_until_the_decision_is_durable(flow: Growing) -> None:
    flow.durable = False
    flow.run.inject(LATE)
    flow.until(lambda: bool(flow.written))
    for _ in range(500):
        flow.run.act()
    assert flow.readers().keys() == set(range(PARTITIONS))
    assert flow.coordinator.closed_before == flow.written[0].time, (
        "its time is not forsworn meanwhile"
    )
    decided = "waiting for=decision source=in partition=3: the broker confirms the decision"
    assert flow.waits() == [decided]
    under_way = flow.coordinator.assignment.under_way
    (wait,) = wait_reasons.partitions(under_way, ["in"], [], {}).values()
    assert (wait.what, wait.until) == ("new_partition", "worker 1 reads it")
    flow.durable = True
    flow.check(PARTITIONS + 1)


def test_no_partition_is_new_before_all_workers_have_reported_theirs(flow: Growing) -> None:
    """I2: who has not spoken may read it from the start on."""
    told = PartitionsRead("source", [], PARTITIONS + 1)
    flow.coordinator.assignment._unreported[0].add(ZERO)
    flow.coordinator.report(ONE, told)
    flow.coordinator.step()
    assert not flow.written
    flow.coordinator.report(ZERO, structs.replace(told, partitions=[PARTITIONS]))
    flow.coordinator.step()
    assert not flow.written


def test_where_none_may_be_added_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded run reads what there was at its start."""
    none = property(lambda _: None, lambda _, __: None)
    monkeypatch.setattr(ListReader, "total", none, raising=False)
    growing = Growing("event")
    with growing.run:
        growing.run.inject(LATE)
        growing.check(PARTITIONS)
        assert not growing.written


def test_it_does_not_change_hands_before_it_is_read(flow: Growing) -> None:
    flow.durable = False
    flow.run.inject(LATE)
    flow.until(lambda: bool(flow.written))
    with pytest.raises(CommandError, match="partition 3 is on its way to worker 1: wait for that"):
        flow.coordinator.move_partition("h", "source", PARTITIONS, ZERO)
    with pytest.raises(
        CommandError, match="worker 1 gets a partition: wait until that is complete"
    ):
        flow.coordinator.leave("l", [ONE])
    flow.durable = True
    flow.until(lambda: bool(flow.said("partition_added")))
    flow.run.inject(MovePartition("h", "source", PARTITIONS, 0))
    flow.until(lambda: bool(flow.said("partition_moved")))
    assert (0, PARTITIONS) in flow.coordinator.assignment.read_by(ZERO)
    flow.check(PARTITIONS + 1)


def test_joining_workers_may_get_it_and_leaving_workers_may_not(flow: Growing) -> None:
    flow.run.inject(Leave("l", 1))
    flow.run.inject(LATE)
    flow.until(lambda: bool(flow.said("partition_added")))
    flow.until(lambda: len(flow.coordinator.assignment.read_by(ZERO)) == PARTITIONS + 1)
    flow.run.inject(Join())
    flow.coordinator.share("s", [TWO])
    flow.until(lambda: len(flow.coordinator.assignment.read_by(TWO)) == 2)
    assert (0, PARTITIONS) in flow.coordinator.assignment.read_by(TWO)
    flow.check(PARTITIONS + 1)


def test_several_go_to_several(flow: Growing) -> None:
    for n in range(3):
        flow.run.inject(AddPartition("source", [(ms, (PARTITIONS + n, ms)) for ms in range(60)]))
    flow.until(lambda: len(flow.said("partition_added")) == 3)
    shares = [len(flow.coordinator.assignment.read_by(worker)) for worker in (ZERO, ONE)]
    assert shares == [3, 3]
    flow.check(PARTITIONS + 3)


def test_what_comes_after_the_sources_have_ended_is_left(flow: Growing) -> None:
    flow.run.run()
    flow.run.inject(LATE)
    for _ in range(300):
        flow.run.act()
    assert not flow.written


def test_it_may_come_before_anything_has_been_read() -> None:
    """I7: at the least of all times nothing has been sent that its reader could wait for."""
    growing = Growing("processing")
    with growing.run:
        growing.run.inject(Pause(worker=-1, steps=300))
        growing.run.sim.submit(
            AddPartition("source", [(ms + 5, (PARTITIONS, ms)) for ms in range(60)])
        )
        growing.check(PARTITIONS + 1)
        assert [decision.time for decision in growing.written] == [MIN_TIME]


def test_on_replay_one_that_was_not_known_before_the_mark_begins_behind_it() -> None:
    """I5: what was out by then stays as it was."""
    mark, sink, flow = from_millis(200), ListSink(), Flow("f", bins=2)
    records = [[(ms, (p, ms)) for ms in range(RECORDS)] for p in range(PARTITIONS)]
    flow.source(ListSource(records)).sink(sink)
    with TestFlow(flow, 2, seed=5, past=OverrideHistory(mark)) as run:
        run.inject(LATE)
        run.run()
    late = [result for result in sink.results if result.partition == PARTITIONS]
    assert len(late) == 60
    assert min(result.time for result in late) > mark


def test_a_decision_says_where_it_begins() -> None:
    order = ReassignPartition(0, Partition(PARTITIONS), 7, ONE, 0)
    assert written(order) == {
        "type": "reassign_partition", "source": 0, "partition": PARTITIONS, "worker": 1,
        "offset": 0,
    }  # fmt: skip


# -- topics in memory


def test_a_topic_in_memory_grows() -> None:
    flow = Flow("counts", bins=2)
    counts = flow.source(KafkaSource("in")).key_by(lambda v: v)
    counts.fold("n", lambda: 0, lambda n, v: (n + 1, [v, n])).sink(KafkaSink("out"))
    grow = topics.AddPartition("source", [(5, "a"), (6, "b")])
    with topics.TestFlow(flow, faults=[topics.At(grow, records=2)]) as run:
        run.feed("in", "a", "b", "a", ms=7)
        run.run_until_idle()
        run.feed("in", "a", partition=2, ms=8)
        run.run()
        assert run.states("n") == {"a": 4, "b": 2}
        assert [event["partition"] for event in run.events] == [2]


def test_one_that_is_empty_stands_where_the_idle_others_do() -> None:
    """Or it would be said to hold them back, though nobody waits."""
    flow = Flow("counts", bins=2)
    counts = flow.source(KafkaSource("in")).key_by(lambda v: v)
    counts.fold("n", lambda: 0, lambda n, v: (n + 1, [v, n])).sink(KafkaSink("out"))
    with topics.TestFlow(flow) as run:
        run.feed("in", "a", "b", "a", ms=7)
        run.advance(1.0)
        run.inject(AddPartition("source"))
        run.advance(1.0)
        assert [event["partition"] for event in run.events] == [2]
        assert len(lanes := lane_times(run)) == 3
        assert len({*lanes.values()}) == 1


def test_a_source_that_the_flow_does_not_have_does_not_grow() -> None:
    flow = Flow("copies")
    flow.source(KafkaSource("in")).sink(KafkaSink("out"))
    with (
        topics.TestFlow(flow) as run,
        pytest.raises(SetupError, match="source 'in': the flow has none of .*; name one of source"),
    ):
        run.inject(AddPartition("in"))
