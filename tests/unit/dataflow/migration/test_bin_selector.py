"""Which bins move first, as a plan tells it and as it is done, and what is refused (I2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from meander import Flow
from meander.dataflow.control.command import MoveBins, Order
from meander.dataflow.migration.bin_stats import Sizes
from meander.dataflow.migration.estimate import TransferRate
from meander.dataflow.migration.rounds import BinMove, PreCopy, RunningMigration
from meander.dataflow.simulation.in_memory import ListSink
from meander.schemas.control import CommandError
from meander.state.encoding import codec
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis, to_millis
from tests.support.sim.manual_flow import ManualFlow, ManualSource, until
from tests.support.sim.start import Start

KEYS = 40
HEAT = [2, 1, 4, 3]
"""Times that keys of each bin come."""


class Warmed:
    """A count per key on two workers; its bins differ in how many records they have had."""

    def __init__(self, start: Start, colocate: bool = True) -> None:
        self.source = ManualSource()
        flow = Flow("f", bins=2, snapshot_interval=0.05)
        counted = flow.source(self.source).key_by(lambda key: key)
        counted.fold("n", lambda: 0, lambda n, key: (n + 1, key), colocate=colocate).sink(
            ListSink()
        )
        self.run: ManualFlow = start(flow)
        # A snapshot tells what has come since the one before.
        for ms in (1000, 1001):
            for key in range(KEYS):
                times = HEAT[flow.space.bin_of(codec.encode(key))]
                self.source.give(0, *[(ms, key)] * times)
            self.run.wait(0.06)

    def command(self, id: str, bins: Sequence[int], worker: int, **how: Any) -> MoveBins:
        return MoveBins(id, tuple(map(Bin, bins)), WorkerId(worker), strategy="fluid", **how)

    def moved(self) -> list[int]:
        """In the order in which they have."""
        return [int(str(e["bin"])) for e in self.run.events if e["type"] == "bin_moved"]

    def until_completed(self, id: str) -> None:
        until(lambda: "completed" in self.run.said(id), lambda: self.run.wait(0.001))


@pytest.mark.parametrize(
    ("order", "wanted"),
    [("as-listed", [1, 0]), ("hottest", [0, 1]), ("coldest", [1, 0])],
)
@pytest.mark.parametrize("colocate", [True, False])
def test_bins_move_in_the_order_asked_for(
    start: Start, colocate: bool, order: Order, wanted: list[int]
) -> None:
    flow = Warmed(start, colocate)
    operator = "" if colocate else "n"
    command = flow.command("m", [1, 0], 1, order=order, operator=operator)
    planned = flow.run.sim.coordinator.plan(command)
    assert [int(way.bin) for round in planned.rounds for way in round] == wanted
    flow.run.sim.coordinator.submit(command)
    flow.until_completed("m")
    assert flow.moved() == wanted
    flow.run.finish(flow.source)


@pytest.mark.parametrize(("order", "first"), [("as-listed", 1), ("hottest", 0)])
def test_the_bin_that_comes_first_does_not_move_twice_at_one_time(
    start: Start, order: Order, first: int
) -> None:
    """I2: it would have two owners."""
    flow = Warmed(start)
    submit, named = flow.run.sim.coordinator.submit, from_millis(9000)
    submit(flow.command("m", [first], 1, time=named))
    with pytest.raises(CommandError, match=f"bin {first} already moves at {to_millis(named)} ms"):
        submit(flow.command("n", [1, 0], 1, time=named, order=order))
    submit(flow.command("o", [1 - first, first], 1, time=named))


def test_an_overlapping_command_is_refused_where_either_names_a_time(start: Start) -> None:
    flow = Warmed(start)
    submit = flow.run.sim.coordinator.submit
    submit(flow.command("later", [0], 1, time=from_millis(9000)))
    for name, time in (("n", None), ("o", from_millis(9500))):
        with pytest.raises(
            CommandError, match="bin 0 is moved by command 'later': wait for its end"
        ):
            submit(flow.command(name, [0, 1], 1, time=time, overlap="reject"))
    submit(flow.command("p", [2, 3], 0, overlap="reject"))
    flow.until_completed("p")


def test_an_estimate_leaves_out_how_long_commands_have_waited() -> None:
    command, way = MoveBins("m", (Bin(0),), WorkerId(1)), BinMove(Bin(0), WorkerId(0), WorkerId(1))
    running, speed, sizes = RunningMigration(command, 0.0, [Bin(0)]), TransferRate(), Sizes()
    sizes.note("n", Bin(0), 400)
    running.update_seconds(0.0)
    running.update_seconds(3600.0)
    assert running.eta(sizes) is None and speed.bytes_per_second is None
    running.pre_copies[Bin(0)] = PreCopy(1, way, {"n"}, {"n"}, bytes=100)
    running.update_seconds(3602.0)
    assert (running.seconds, running.eta(sizes)) == (2.0, 8.0)
    del running.pre_copies[Bin(0)]
    running.update_seconds(7200.0)
    running.bytes = 400
    speed.note(running)
    assert speed.bytes_per_second == 200


def test_a_command_that_moves_nothing_says_nothing_of_speed(start: Start) -> None:
    flow = Warmed(start)
    flow.run.sim.coordinator.submit(flow.command("none", [2], 1))  # it is there already
    flow.until_completed("none")
    assert flow.run.sim.coordinator.plan(flow.command("p", [0], 1)).seconds is None
