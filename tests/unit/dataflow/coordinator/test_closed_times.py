"""Decisions are durable before anyone hears of them (I5), and T, the least time not forsworn, waits
for them (I2) and follows the data's time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from meander.dataflow.control.decisions import Decision
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.coordinator.time_rate import TimeRate
from meander.dataflow.simulation.simulator import SimClock
from meander.dataflow.wire import PROGRESS
from meander.state.keys.ids import COORDINATOR
from meander.state.times.time import from_millis, to_millis
from tests.support.sim.commanded_flow import CommandedFlow
from tests.support.sim.manual_flow import replace_decision_writer
from tests.support.sim.start import Start


@pytest.fixture
def flow(start: Start) -> CommandedFlow:
    commanded = CommandedFlow(start)
    commanded.read(1000)
    return commanded


# -- decisions are durable before they are known


@dataclass
class ManualJournal:
    """Writes a decision when a test says so."""

    written: list[Decision] = field(default_factory=list)
    durable: bool = False

    def __call__(self, decision: Decision) -> Callable[[], bool]:
        self.written.append(decision)
        return lambda: self.durable

    @property
    def moves(self) -> list[Moves]:
        return [decision for decision in self.written if isinstance(decision, Moves)]


@pytest.fixture
def journal(flow: CommandedFlow) -> ManualJournal:
    journal = ManualJournal()
    replace_decision_writer(flow.run.sim.coordinator, journal)
    return journal


def told(flow: CommandedFlow) -> bool:
    """Whether any worker has heard of a command, or will from what is under way."""
    under_way = [
        frame
        for lane, frames in flow.run.sim.network.frames.items()
        for frame in frames
        if lane[0] == COORDINATOR and frame[0][:1] != PROGRESS
    ]
    known = [worker.parts.operators.routing._changes for worker in flow.run.workers]
    return bool(under_way) or any(known)


def test_no_worker_hears_of_a_decision_before_it_is_durable(
    flow: CommandedFlow, journal: ManualJournal
) -> None:
    """I5: otherwise a crash could forget what results rest on."""
    flow.submit("m", (0,), 1, 2000)
    assert [moves.command for moves in journal.moves] == ["m"]
    flow.run.wait(0.05)
    assert not told(flow)
    journal.durable = True
    flow.run.run_until_idle()
    assert told(flow)


def test_t_never_passes_a_command_that_is_not_yet_durable(
    flow: CommandedFlow, journal: ManualJournal
) -> None:
    """I2: records from its time on are stashed, however far the data has come."""
    flow.submit("m", (0,), 1, 2000)
    flow.read(1999)
    flow.read(5000)
    assert flow.run.forsworn == from_millis(2000)
    assert {to_millis(result.time) for result in flow.sink.results} == {1000, 1999}
    assert flow.run.said("m") == ["accepted"]
    journal.durable = True
    flow.run.wait(0.02)
    assert flow.run.said("m")[-1] == "completed"
    assert len(flow.sink.results) == 60


def test_the_next_bin_of_a_fluid_command_is_a_decision_of_its_own(
    flow: CommandedFlow, journal: ManualJournal
) -> None:
    journal.durable = True
    flow.submit("m", (0, 1), 1, None, "fluid")
    flow.run.wait(0.02)
    assert [(moves.command, moves.bins) for moves in journal.moves] == [("m", (0,)), ("m", (1,))]


def test_a_flow_does_not_end_before_its_decisions_are_durable(
    flow: CommandedFlow, journal: ManualJournal
) -> None:
    """I7, I5."""
    flow.submit("m", (0,), 1, 2000)
    flow.source.end()
    flow.run.wait(0.05)
    assert not flow.run.sim.done
    journal.durable = True
    flow.run.finish(flow.source)
    assert flow.run.said("m")[-1] == "completed"


# -- how far T is ahead


def test_t_is_just_past_the_furthest_read_where_no_lead_is_asked_for(flow: CommandedFlow) -> None:
    """A command comes into effect at once, also while the flow lags far behind."""
    for ms in (2000, 2001, 90_000):
        flow.source.give(0, (ms, 1))
        flow.run.run_until_idle()
        assert flow.run.forsworn == from_millis(ms) + 1


LEAD = 0.25


def pace(start: Start, logical_per_second: float, seconds: float = 4.0) -> CommandedFlow:
    """Data whose time runs at so many times the speed of the wall clock."""
    flow = CommandedFlow(start, workers=1, control_lead=LEAD)
    step = 0.1
    for n in range(1, round(seconds / step) + 1):
        flow.run.sim.clock.advance(step)
        flow.source.give(0, (round(n * step * logical_per_second * 1000), n))
        flow.run.run_until_idle()
        assert flow.run.forsworn is not None
        ahead = to_millis(flow.run.forsworn) - round(n * step * logical_per_second * 1000)
        assert 0 <= ahead <= LEAD * 1000
    return flow


@pytest.mark.parametrize(
    ("speed", "least", "most"), [(0.1, 10, 25), (1.0, 120, 250), (100.0, 120, 250), (0.0, 0, 0)]
)
def test_the_lead_follows_the_speed_of_logical_time_and_never_exceeds_its_bound(
    start: Start, speed: float, least: int, most: int
) -> None:
    """So that F hardly ever stashes at live speed, and a command waits no longer than the lead."""
    flow = pace(start, speed)
    furthest = flow.run.sim.coordinator.furthest()
    assert furthest is not None and flow.run.forsworn is not None
    assert least <= to_millis(flow.run.forsworn - furthest) <= most


def test_t_stands_still_when_the_data_does(start: Start) -> None:
    """It follows the data's time and not the wall clock."""
    flow = pace(start, 1.0, seconds=2.0)
    before = flow.run.forsworn
    for _ in range(100):
        flow.run.sim.clock.advance(0.1)
        flow.run.run_until_idle()
    assert flow.run.forsworn == before


def test_the_time_rate_is_measured_every_second() -> None:
    clock = SimClock()
    speed = TimeRate(clock)
    assert speed.lead(from_millis(1000), LEAD) == 0
    clock.advance(1.0)
    assert speed.lead(from_millis(1500), LEAD) == from_millis(125)
    clock.advance(0.5)
    assert speed.lead(from_millis(9000), LEAD) == from_millis(125), "not before the second is over"
    clock.advance(0.5)
    assert speed.lead(from_millis(9000), LEAD) == from_millis(250)
    clock.advance(1.0)
    assert speed.lead(from_millis(9000), LEAD) == 0
