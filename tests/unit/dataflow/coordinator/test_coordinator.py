"""The coordinator's part: which commands are taken, when they take effect, and what is said of
them (I2)."""

from __future__ import annotations

import itertools
import re

import pytest

from meander import Flow
from meander.dataflow.control.command import MoveBins
from meander.dataflow.control.reports import WorkerReport
from meander.dataflow.simulation.in_memory import ListSink
from meander.schemas.control import CommandError
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis, to_millis
from tests.support.sim.commanded_flow import CommandedFlow
from tests.support.sim.manual_flow import ManualSource, until
from tests.support.sim.start import Start


@pytest.fixture
def flow(start: Start) -> CommandedFlow:
    commanded = CommandedFlow(start)
    commanded.read(1000)
    return commanded


# -- what is refused, each with what would be right


def test_an_id_is_used_once(flow: CommandedFlow) -> None:
    flow.submit("m", (0,), 1, 2000)
    with pytest.raises(
        CommandError, match="id 'm' was used before: give each command an id of its own"
    ):
        flow.submit("m", (1,), 1, 3000)


def test_the_id_of_a_refused_command_is_not_used_up(flow: CommandedFlow) -> None:
    with pytest.raises(CommandError):
        flow.submit("m", (0,), 7, 2000)
    flow.submit("m", (0,), 1, 2000)
    assert flow.run.said("m") == ["accepted"]


@pytest.mark.parametrize("worker", [2, 99, -1])
def test_an_unknown_worker_is_refused(flow: CommandedFlow, worker: int) -> None:
    with pytest.raises(CommandError, match=f"worker {worker} is unknown: name one of 0 to 1"):
        flow.submit("m", (0,), worker)


@pytest.mark.parametrize("bins", [(4,), (0, 1, 4), (-1,)])
def test_a_bin_out_of_range_is_refused(flow: CommandedFlow, bins: tuple[int, ...]) -> None:
    with pytest.raises(CommandError, match=f"bin {bins[-1]} is out of range: name bins of 0 to 3"):
        flow.submit("m", bins, 1)


def test_a_command_without_bins_is_refused(flow: CommandedFlow) -> None:
    with pytest.raises(CommandError, match="no bins are named: name some of 0 to 3"):
        flow.submit("m", (), 1)


def test_a_forsworn_time_is_refused_with_the_earliest_that_is_possible(flow: CommandedFlow) -> None:
    """I2: records of that time may have been routed already. And the earliest is possible."""
    with pytest.raises(CommandError) as refused:
        flow.submit("m", (0,), 1, 900)
    said = str(refused.value)
    assert said.startswith("time 900 ms is closed: the earliest possible is ")
    assert "leave the time out for as soon as possible" in said
    (earliest,) = re.findall(r"possible is (\d+) ms", said)
    with pytest.raises(CommandError, match="is closed"):
        flow.submit("m", (0,), 1, int(earliest) - 1)
    flow.submit("m", (0,), 1, int(earliest))
    assert flow.run.said("m") == ["accepted"]


def test_a_bin_cannot_move_twice_at_one_time(flow: CommandedFlow) -> None:
    """I2: it would have two owners."""
    flow.submit("m1", (0, 1), 1, 2000)
    with pytest.raises(CommandError, match="bin 1 already moves at 2000 ms: name another time"):
        flow.submit("m2", (2, 1), 0, 2000)
    flow.submit("m3", (2, 3), 0, 2000)
    flow.submit("m4", (1,), 0, 2001)
    flow.read(3000)
    assert flow.owners() == [1, 0, 0, 0]


def test_a_flow_without_state_has_nothing_to_move(start: Start) -> None:
    flow = Flow("f")
    source = ManualSource()
    flow.source(source).key_by(lambda v: v).sink(ListSink())
    run = start(flow)
    run.run_until_idle()
    with pytest.raises(CommandError, match="no stateful operator, so there is nothing to move"):
        run.sim.coordinator.submit(MoveBins("m", (Bin(0),), WorkerId(1)))


def test_after_the_sources_end_there_is_no_time_left(flow: CommandedFlow) -> None:
    flow.run.finish(flow.source)
    assert flow.run.forsworn is None
    with pytest.raises(CommandError, match="sources have ended: send commands before that"):
        flow.submit("m", (0,), 1)


def test_a_refusal_is_an_event_and_changes_nothing(flow: CommandedFlow) -> None:
    before = flow.run.forsworn
    flow.run.sim.submit(MoveBins("m", (Bin(9),), WorkerId(1)))
    flow.run.run_until_idle()
    (event,) = [e for e in flow.run.events if e["id"] == "m"]
    assert event["type"] == "rejected" and "bin 9" in str(event["reason"])
    assert (flow.run.forsworn, flow.owners()) == (before, [0, 0, 1, 1])


# -- what is carried out


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_future_commands_stand_at_once_in_any_order_of_arrival(
    start: Start, order: tuple[int, ...]
) -> None:
    """I2: each takes effect at its time, on what the earlier ones have left."""
    flow = CommandedFlow(start, workers=3)
    flow.read(1000)
    commands = [((0, 1, 2), 2, 2000), ((1, 2), 0, 3000), ((2, 3), 1, 4000)]
    for n in order:
        bins, worker, ms = commands[n]
        flow.submit(f"m{n}", bins, worker, ms)
    expected = {1000: [0, 0, 1, 2], 2500: [2, 2, 2, 2], 3500: [2, 0, 0, 2], 4500: [2, 0, 1, 1]}
    for ms in (2500, 3500, 4500):
        flow.read(ms)
        assert flow.owners() == expected[ms]
    for result in flow.sink.results:
        assert result.key is not None
        bin = flow.run.workers[0].parts.operators.routing.space.bin_of(result.key)
        assert result.worker == expected[to_millis(result.time)][bin]
    for n in order:
        assert flow.run.said(f"m{n}")[-1] == "completed"


def test_all_at_once_moves_all_bins_of_all_operators_at_one_time(flow: CommandedFlow) -> None:
    flow.submit("m", (0, 1), 1, 2000)
    flow.read(3000)
    moved = flow.events("bin_moved")
    assert sorted(int(str(e["bin"])) for e in moved) == [0, 1], "once for both operators"
    assert {e["at"] for e in moved} == {from_millis(2000)}
    (completed,) = flow.events("completed")
    assert completed["bins"] == 2
    assert completed["bytes"] == sum(int(str(e["bytes"])) for e in moved)
    assert sum(int(str(e["keys"])) for e in moved) > 0
    assert completed["unmoved"] == []


def test_fluid_completes_each_bin_before_it_begins_the_next(flow: CommandedFlow) -> None:
    """Which keeps every moment of unavailability as short as one bin's move."""
    flow.submit("m", (1, 0), 1, 2000, "fluid")
    under_way: list[int] = []

    def tick() -> None:
        flow.run.sim.clock.advance(0.001)
        flow.run.turn()
        departing = {
            d.transfer.bin
            for worker in flow.run.workers
            for outlet in worker.parts.operators.outgoing
            for d in outlet.leaving
        }
        arriving = {
            bin
            for worker in flow.run.workers
            for outlet in worker.parts.operators.outgoing
            for bin in outlet.keyed.incoming._awaited
        }
        under_way.append(len(departing | arriving))

    flow.source.give(0, *((3000, key) for key in range(20)))
    until(lambda: flow.run.said("m")[-1] == "completed", tick)
    assert max(under_way) == 1
    moved = flow.events("bin_moved")
    assert [event["bin"] for event in moved] == [1, 0]
    first, second = (int(str(event["at"])) for event in moved)
    assert first == from_millis(2000) < second
    assert flow.owners() == [1, 1, 1, 1]


def test_a_fluid_command_is_carried_through_though_the_sources_end(flow: CommandedFlow) -> None:
    """I7."""
    flow.submit("m", (0, 1, 2, 3), 1, None, "fluid")
    flow.run.finish(flow.source)
    (completed,) = flow.events("completed")
    assert (completed["bins"], completed["unmoved"]) == (2, [])
    assert set(flow.run.workers[0].state()["a"]) == set()


def test_a_command_that_changes_nothing_is_completed_without_a_move(flow: CommandedFlow) -> None:
    flow.submit("m", (0, 1, 1, 0), 0)
    flow.run.wait(0.01)
    assert flow.run.said("m") == ["accepted", "completed"]
    assert flow.events("accepted")[0]["bins"] == [0, 1]
    assert flow.events("completed")[0]["bins"] == 0


def test_a_command_without_a_time_gets_the_least_that_is_not_forsworn(flow: CommandedFlow) -> None:
    t = flow.run.forsworn
    flow.submit("m", (0,), 1)
    (accepted,) = flow.events("accepted")
    assert accepted["at"] == t
    assert accepted["strategy"] == "all-at-once"


def test_two_commands_without_a_time_for_one_bin_follow_each_other(flow: CommandedFlow) -> None:
    """I2."""
    for name, worker in (("m1", 1), ("m2", 0)):
        move = MoveBins(name, (Bin(0),), WorkerId(worker))
        flow.run.sim.coordinator.submit(move)
    flow.run.wait(0.04)
    first, second = (e["at"] for e in flow.events("bin_moved"))
    assert int(str(first)) < int(str(second))
    assert flow.owners()[0] == 0
    assert flow.run.said("m1") == ["accepted", "bin_moved", "completed"]
    assert flow.run.said("m2") == ["queued", "accepted", "bin_moved", "completed"]


def test_a_bin_has_moved_and_a_command_is_completed_when_every_operator_has_reported(
    flow: CommandedFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's word may come long after the frontier has passed the move."""
    coordinator = flow.run.sim.coordinator
    late: list[tuple[WorkerId, WorkerReport]] = []
    with monkeypatch.context() as patched:
        patched.setattr(coordinator, "report", lambda *report: late.append(report))
        flow.submit("m", (0,), 1)
        flow.run.wait(0.02)
    assert flow.run.said("m") == ["accepted"] and len(late) == 2
    for n, report in enumerate(late):
        coordinator.report(*report)
        flow.run.run_until_idle()
        assert flow.run.said("m")[1:] == [[], ["bin_moved", "completed"]][n]


def test_a_command_before_the_first_record_holds_from_the_beginning(start: Start) -> None:
    flow = CommandedFlow(start)
    flow.submit("m", (0, 1, 2, 3), 1, 0)
    flow.read(1000)
    assert {result.worker for result in flow.sink.results} == {1}
    assert len(flow.sink.results) == 20


def test_a_command_is_complete_when_all_its_moves_are_reported(flow: CommandedFlow) -> None:
    coordinator = flow.run.sim.coordinator
    states = [(coordinator.done, coordinator.busy)]
    flow.submit("m", (0,), 1, 5000)
    states.append((coordinator.done, coordinator.busy))
    coordinator.submit(MoveBins("n", (Bin(1),), WorkerId(1), precopy=False))
    states.append((coordinator.done, coordinator.busy))
    flow.run.finish(flow.source)
    states.append((coordinator.done, coordinator.busy))
    assert flow.run.said("m")[-1] == flow.run.said("n")[-1] == "completed"
    assert states == [(False, False), (False, False), (False, True), (True, False)]
