"""Who comes gets a share, who leaves gives all away (I2), and nobody hears of either before it is
durable (I5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from meander import Flow
from meander.dataflow.control.decisions import JoinDecision, LeaveDecision
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.coordinator.pool import RescalablePool
from meander.dataflow.coordinator.rescaler import Rescaler
from meander.dataflow.simulation.faults import At, Control
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import Join
from meander.schemas.control import CommandError, Rescale
from meander.schemas.status import Rescaling
from meander.state.keys.ids import WorkerId
from meander.testing import Answer, TestFlow
from tests.support.sim.changing_flow import KEYS, ONE, PARTITIONS, RECORDS, TWO, ZERO, ChangingFlow
from tests.support.sim.manual_flow import until


@pytest.fixture
def flow() -> Iterator[ChangingFlow]:
    changing = ChangingFlow()
    with changing.run:
        yield changing


def test_joining_workers_get_a_share_and_leaving_workers_give_all_away(flow: ChangingFlow) -> None:
    flow.join()
    assert flow.bins() == {0: 16}
    moves = flow.sim.coordinator.share("s", [ONE, TWO])
    flow.until(lambda: flow.reads() == {0: 2, 1: 2, 2: 2})
    flow.until(lambda: flow.bins() == {0: 6, 1: 5, 2: 5})
    flow.until(lambda: moves == flow.done())
    flow.sim.coordinator.leave("l", [ONE, TWO])
    flow.until(lambda: flow.reads()[0] == PARTITIONS)
    flow.until(lambda: {event["worker"] for event in flow.said("left")} == {1, 2})
    assert flow.bins() == {0: 16}
    flow.run.run()
    counted = Counter(value[0] for value in flow.sink.values if isinstance(value, tuple))
    assert counted == dict.fromkeys(range(KEYS), RECORDS * PARTITIONS // KEYS)
    assert set(flow.sink.values) == {(k, n + 1) for k, most in counted.items() for n in range(most)}


def test_a_flow_without_state_hands_its_partitions_over() -> None:
    sink, flow = ListSink(), Flow("f")
    records = [[(ms, (p, ms)) for ms in range(RECORDS)] for p in range(PARTITIONS)]
    flow.source(ListSource(records)).sink(sink)
    with TestFlow(flow, workers=2, seed=3) as run:
        until(lambda: run.sim.coordinator.ready, run.sim.act)
        run.sim.coordinator.leave("l", [ONE])
        run.run()
        assert [event["worker"] for event in run.events if event["type"] == "left"] == [1]
        assert {result.worker for result in sink.results if result.offset > RECORDS // 2} == {0}
    assert sorted(map(str, sink.values)) == sorted(str(v) for part in records for _, v in part)


def test_a_leaving_worker_gives_away_keys_without_a_state() -> None:
    """Or what is sent to it once it has left is lost."""
    flow, sink = Flow("f", bins=3), ListSink()
    lists = [[(n, n % 7) for n in range(1500)] for _ in range(2)]
    flow.source(ListSource(lists)).key_by(lambda n: n).sink(sink)
    leave = {"type": "rescale", "id": "r", "workers": 2}
    with TestFlow(flow, workers=3, faults=[At(Control(leave), records=1)]) as run:
        run.run()
        assert run.answer("r") == Answer("rescaled")
    assert len(sink.results) == 3000


def test_a_leaving_worker_gives_all_away_however_late_it_reports_its_partitions() -> None:
    leave = At(Control({"type": "rescale", "id": "down", "workers": 1}), step=0)
    for seed in range(2):
        flow = Flow("f")
        records = [[(ms, ms) for ms in range(RECORDS)] for _ in range(PARTITIONS)]
        flow.source(ListSource(records)).sink(ListSink())
        with TestFlow(flow, workers=3, seed=seed, faults=[leave]) as run:
            run.run()
            given = [event for event in run.events if event["type"] == "partition_moved"]
            assert len(given) == 4, f"seed {seed}"


def test_a_rescale_starts_when_all_workers_have_reported_their_partitions() -> None:
    """A worker may be heard of before its first report."""
    flow = Flow("f")
    flow.source(ListSource([[], []])).sink(ListSink())
    with TestFlow(flow, workers=2) as run:
        none = SimpleNamespace(ready=[], dropped=list, launch=lambda workers: None)
        crew = SimpleNamespace(handles=[ZERO, ONE], working=True, removed=list, joining=none)
        rescaler = Rescaler(run.sim.coordinator, cast(RescalablePool, crew), run.sim.clock, None)
        rescaler.enqueue(Rescale(type="rescale", id="down", workers=1), 0)
        assert [*rescaler.step()] == []
        until(lambda: run.sim.coordinator.ready, run.act)
        (begun,) = rescaler.step()
        assert isinstance(begun, Rescaling) and begun.leaving == [1]


def test_a_worker_that_gets_something_does_not_leave_meanwhile(flow: ChangingFlow) -> None:
    flow.join()
    flow.sim.coordinator.share("s", [ONE])
    before = len(flow.written)
    with pytest.raises(
        CommandError, match="worker 1 gets bins by command 's/bins': wait until that"
    ):
        flow.sim.coordinator.leave("l", [TWO, ONE])
    assert len(flow.written) == before, "worker 2 has been told nothing either"


def test_the_last_does_not_leave(flow: ChangingFlow) -> None:
    flow.join()
    with pytest.raises(CommandError, match="worker 0 is the last: end the flow instead"):
        flow.sim.coordinator.leave("l", [ONE, TWO, ZERO])
    with pytest.raises(CommandError, match="worker 3 is unknown: name one of 0, 1, 2"):
        flow.sim.coordinator.leave("l", [WorkerId(3)])


# -- written before it is sent


def test_a_joining_worker_receives_no_frame_before_a_durable_decision(flow: ChangingFlow) -> None:
    flow.held = JoinDecision
    flow.sim.submit(Join())
    with pytest.raises(CommandError, match="worker 1 is already a worker"):
        flow.sim.coordinator.join(ONE)
    flow.acted()
    newcomer = flow.run.workers[1]
    assert not newcomer.parts.progress.welcome and not flow.said("joined")
    with pytest.raises(CommandError, match="worker 1 is unknown"):
        flow.sim.coordinator.move_partition("h", "source", 0, ONE)
    flow.held = None
    flow.until(lambda: newcomer.parts.progress.welcome)
    assert flow.written == [JoinDecision(ONE, flow.written[0].time)]


def test_a_partition_stays_where_it_is_until_the_order_is_durable(flow: ChangingFlow) -> None:
    flow.join()
    flow.held = ReassignPartition
    flow.sim.coordinator.share("s", [ONE, TWO])
    flow.acted()
    assert flow.reads() == {0: PARTITIONS, 1: 0, 2: 0}
    assert flow.sim.coordinator.closed_before == next(
        order.time for order in flow.written if isinstance(order, ReassignPartition)
    ), "its time is not forsworn meanwhile"
    flow.held = None
    flow.until(lambda: flow.reads() == {0: 2, 1: 2, 2: 2})


def test_a_leaving_worker_continues_until_its_leave_is_durable(flow: ChangingFlow) -> None:
    flow.join()
    flow.held = LeaveDecision
    flow.sim.coordinator.leave("l", [ONE, TWO])
    flow.until(lambda: flow.written[-1:] != [] and isinstance(flow.written[-1], LeaveDecision))
    flow.acted()
    assert all(worker.parts.progress._leave_at is None for worker in flow.run.workers)
    flow.held = None
    flow.until(lambda: len(flow.said("left")) == 2)
