"""What holds a frontier back is named, at the source as in the midst of the flow."""

from __future__ import annotations

from meander import Flow
from meander.dataflow.coordinator.frontier_blockers import FrontierBlocker
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.simulation.faults import At
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import MovePartition
from meander.state.keys.ids import WorkerId
from meander.state.times.time import from_millis
from meander.testing import TestFlow
from tests.support.sim.manual_flow import ManualFlow, ManualSink, ManualSource
from tests.support.sim.start import Start

NEVER = SourceOptions(idle_after=3600.0, max_skew=3600.0)


def held(run: ManualFlow, name: str = "out") -> FrontierBlocker:
    return run.sim.coordinator.frontier_blockers()[name]


def test_the_source_whose_partition_stands_holds_back_what_others_have_read(start: Start) -> None:
    quick, slow = ManualSource(options=NEVER), ManualSource(options=NEVER)
    flow = Flow("f")
    left, right = flow.source(quick, name="quick"), flow.source(slow, name="slow")
    left.sink(ListSink(), name="out")
    right.sink(ListSink(), name="other")
    left.key_by(lambda v: v).connect(
        right.key_by(lambda v: v),
        "both",
        init=lambda: None,
        left=lambda _context, state, _value: state,
        right=lambda _context, state, _value: state,
    ).probe("joined")
    run = start(flow)
    quick.give(0, (1000, "a"), (5000, "b"))
    run.run_until_idle()

    assert held(run, "out") == FrontierBlocker("source", "quick", from_millis(5000))
    assert held(run, "other") == FrontierBlocker("source", "slow", 0)
    assert held(run, "joined") == FrontierBlocker("source", "slow", 0)
    slow.give(0, (9000, "c"))
    run.run_until_idle()
    assert held(run, "joined").name == "quick"


def test_a_sink_that_does_not_deliver_is_named(start: Start) -> None:
    source, sink = ManualSource(options=NEVER), ManualSink()
    flow = Flow("f")
    flow.source(source).sink(sink, name="out")
    run = start(flow)
    sink.delivers = False
    source.give(0, (1000, "a"), (5000, "b"))
    run.run_until_idle()
    assert held(run) == FrontierBlocker("sink", "out", from_millis(1000))
    sink.delivers = True
    run.run_until_idle()
    assert held(run) == FrontierBlocker("source", "source", from_millis(5000))


def test_an_untaken_message_is_on_its_way(start: Start) -> None:
    """The owner of the record's bin has taken no turn since the record was sent to it."""
    source = ManualSource(options=NEVER)
    flow = Flow("f")
    flow.source(source).key_by(lambda v: v).fold("n", lambda: 0, lambda n, _: (n, n)).sink(
        ListSink(), name="out"
    )
    run = start(flow)
    run.run_until_idle()
    source.give(0, *((1000, n) for n in range(100)), (5000, "last"))
    for _ in range(10):
        run.workers[0].step()
        for lane in run.sim.network.busy():
            run.sim.network.deliver(lane, 1 << 30)
        run.sim.coordinator.step()
    assert held(run) == FrontierBlocker("input", "n", from_millis(1000))


def test_commands_that_are_not_ruled_out_hold_back_records_that_have_come(start: Start) -> None:
    source = ManualSource(options=NEVER)
    flow = Flow("f")
    flow.source(source).key_by(lambda v: v).fold("n", lambda: 0, lambda n, _: (n, n)).sink(
        ListSink(), name="out"
    )
    run = start(flow)
    run.run_until_idle(coordinator=False)
    source.give(0, (1000, "a"), (5000, "b"))
    run.run_until_idle(coordinator=False)
    coordinator = run.sim.coordinator
    for lane in run.sim.network.busy():
        run.sim.network.deliver(lane, 1 << 30)
    for sender, frame in coordinator._links.receive():
        coordinator.receive(sender, frame)
    coordinator.progress.flush()
    assert held(run) == FrontierBlocker("commands", "", 0)


def test_what_comes_first_is_named_where_several_places_hold_one_time(start: Start) -> None:
    """The operator waits for the source's partition to pass the time, not the other way round."""
    source = ManualSource(partitions=2, options=NEVER)
    flow = Flow("f")
    flow.source(source).key_by(lambda v: v).fold("n", lambda: 0, lambda n, _: (n, n)).sink(
        ListSink(), name="out"
    )
    run = start(flow)
    source.give(0, (1000, "a"))
    source.give(1, (1000, "b"))
    run.run_until_idle()
    assert held(run) == FrontierBlocker("source", "source", from_millis(1000))


def test_a_partition_on_its_way_to_another_worker_is_named() -> None:
    """As an order that its reader has not taken, and as what the new reader has not taken over."""
    found: set[FrontierBlocker] = set()
    for seed in range(50):
        flow, move_partition = Flow("f", bins=1), MovePartition("h", "source", 0, WorkerId(1))
        source = flow.source(ListSource([[(ms, ms) for ms in range(20)]] * 2))
        counts = source.key_by(lambda v: v).fold("n", lambda: 0, lambda n, _: (n, n))
        counts.sink(ListSink(), name="out")
        with TestFlow(flow, seed=seed, faults=[At(move_partition, records=5)]) as run:
            while not run.sim.done:
                run.act()
                found.update(run.sim.coordinator.frontier_blockers().values())
    names = {holding.name for holding in found if holding.kind == "partition_move"}
    assert names == {"", "source"}


def test_nothing_holds_back_a_flow_that_is_over(start: Start) -> None:
    source = ManualSource()
    flow = Flow("f")
    flow.source(source).sink(ListSink(), name="out")
    run = start(flow)
    source.give(0, (1000, "a"))
    run.finish(source)
    assert run.sim.coordinator.frontier_blockers() == {}


def test_no_blocker_is_named_before_all_members_have_opened(start: Start) -> None:
    flow = Flow("f")
    flow.source(ManualSource()).sink(ListSink(), name="out")
    assert start(flow).sim.coordinator.frontier_blockers() == {}
