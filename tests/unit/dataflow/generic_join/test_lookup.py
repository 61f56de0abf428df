"""The lookup, step by step: what it waits for, which times it holds, and what a checkpoint gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from meander.dataflow.flow_control.ready_rows import Weigh, each_one
from meander.dataflow.generic_join import lookup as lookups
from meander.dataflow.generic_join.lookup import Lookup, Step
from meander.dataflow.generic_join.steps import Found
from meander.dataflow.graph.graph import ROOT, Scope
from meander.dataflow.operators.custom import OperatorServices, ReadArrangement
from meander.dataflow.operators.ports import Message
from meander.dataflow.records.batch import Batch
from meander.state.collections.columns import Int64s
from meander.state.collections.cursor import Cursor
from meander.state.collections.trace import Trace
from meander.state.keys.ids import WorkerId
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time
from tests.support.sim.operator_bench import Bench, guard, pool, records

Sent = tuple[Time, list[object]]


def unchanged(batch: Batch, _: Sequence[Cursor]) -> Found:
    return Found(batch, np.arange(len(batch)))


class LookupBench:
    """A lookup on a bench, with two arrangements whose frontiers the test sets."""

    def __init__(
        self, step: Step = unchanged, weigh: Weigh = each_one, room: int = 1 << 30,
        scope: Scope = ROOT,
    ) -> None:  # fmt: skip
        self.bench = bench = Bench(scope=scope)
        self.frontiers = [Antichain.of(0), Antichain.of(0)]
        self.cursors = [Trace(1).cursor(), Trace(1).cursor()]
        read = [
            ReadArrangement(lambda n=n: self.cursors[n], lambda n=n: self.frontiers[n])  # type: ignore[misc]
            for n in range(2)
        ]
        context = bench.context(pool(), room)
        services = OperatorServices(
            context, bench.inputs[0], bench.output, guard()[0], [], arrangements=read
        )
        self.lookup = Lookup(services, step, weigh)

    def complete_to(self, first: int, second: int) -> None:
        """Let the arrangements hold all updates before these times."""
        self.frontiers = [Antichain.of(first), Antichain.of(second)]

    def turn(self) -> list[Sent]:
        """Let the lookup work once. Return all that it has sent."""
        self.lookup.schedule()
        self.bench.progress.flush()
        return [(time, list(batch.values)) for _, time, batch in self.bench.sent]

    def step(self) -> list[Sent]:
        """Let the lookup work as long as it does. Return all that it has sent."""
        while self.lookup.schedule():
            self.bench.progress.flush()
        return self.turn()

    @property
    def held(self) -> list[Time]:
        return list(self.bench.held)

    def waiting(self) -> list[Sent]:
        return [(one.time, list(one.batch.values)) for one in self.lookup.in_flight()]


def test_prefixes_wait_until_all_arrangements_hold_the_updates_of_their_time() -> None:
    bench = LookupBench()
    bench.bench.put(records("ab", [5, 6]))
    # No frontier of its own input matters.
    bench.bench.pass_to(9)
    for frontiers in ((0, 0), (5, 9), (9, 5), (5, 5)):
        bench.complete_to(*frontiers)
        assert bench.step() == []
    bench.complete_to(6, 9)
    assert bench.step() == [(5, ["a"])]
    bench.complete_to(9, 7)
    assert bench.step() == [(5, ["a"]), (6, ["b"])]


def test_waiting_prefixes_hold_their_least_time_and_no_other() -> None:
    bench = LookupBench()
    bench.bench.put(records("ba", [6, 5]))
    bench.bench.put(records("c", [7], first_offset=2))
    bench.bench.pass_to(9)
    bench.step()
    assert bench.held == [5]
    bench.complete_to(6, 6)
    bench.step()
    assert bench.held == [6]
    bench.complete_to(8, 8)
    bench.step()
    assert bench.held == []


def test_the_step_gets_a_cursor_of_each_arrangement_that_it_opens_then() -> None:
    seen = list[Sequence[Cursor]]()

    def noted(batch: Batch, cursors: Sequence[Cursor]) -> Found:
        seen.append(cursors)
        return unchanged(batch, cursors)

    bench = LookupBench(noted)
    bench.bench.put(records("a", [5]))
    bench.step()
    bench.cursors = later = [Trace(1).cursor(), Trace(1).cursor()]
    bench.complete_to(6, 6)
    bench.step()
    assert [[*some] for some in seen] == [later]


def test_a_step_that_drops_all_prefixes_sends_nothing_and_holds_no_time() -> None:
    none = np.zeros(0, np.int64)
    bench = LookupBench(lambda batch, _: Found(batch.take(none), none))
    bench.bench.put(records("a", [5]))
    bench.bench.pass_to(9)
    bench.complete_to(9, 9)
    assert bench.step() == []
    assert bench.held == []


def test_in_flight_prefixes_are_those_of_the_call() -> None:
    bench = LookupBench()
    bench.bench.put(records("ab", [5, 7]))
    bench.step()
    at_the_call = bench.lookup.in_flight()
    bench.complete_to(6, 6)
    bench.bench.put(records("c", [7], first_offset=2))
    bench.step()
    assert [(one.time, one.batch.values) for one in at_the_call] == [(5, ["a", "b"])]
    assert bench.waiting() == [(7, ["b"]), (7, ["c"])]


def weights_of(batch: Batch) -> Int64s:
    return np.array([int(value) for value in batch.values])  # type: ignore[call-overload]


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "SLICE", 10)


@pytest.mark.usefixtures("small_slices")
def test_each_turn_looks_up_a_slice_and_a_heavy_prefix_alone() -> None:
    bench = LookupBench(weigh=weights_of)
    bench.bench.put(records(["3", "7", "1", "99", "4", "8"], [5, 5, 5, 6, 6, 6]))
    bench.bench.pass_to(9)
    bench.complete_to(7, 7)
    slices, held = list[list[object]](), list[list[Time]]()
    while not slices or slices[-1]:
        bench.turn()
        slices.append([value for _, batch in bench.bench.take_on() for value in batch.values])
        held.append(bench.held)
    assert slices == [["3", "7"], ["1"], ["99"], ["4"], ["8"], []]
    assert held == [[5], [6], [6], [6], [], []]


@pytest.mark.usefixtures("small_slices")
def test_the_rest_of_a_slice_is_in_flight_before_the_prefixes_that_wait() -> None:
    bench = LookupBench(weigh=weights_of)
    bench.bench.put(records(["9", "8", "7"], [5, 5, 8]))
    bench.bench.pass_to(9)
    bench.complete_to(6, 6)
    bench.turn()
    at_the_call = bench.lookup.in_flight()
    bench.step()
    assert [(one.time, one.batch.values) for one in at_the_call] == [(5, ["8"]), (8, ["7"])]


@pytest.mark.usefixtures("small_slices")
def test_a_lookup_takes_no_message_while_a_slice_is_left() -> None:
    """I6: senders wait, so the slices of a lookup stay few."""
    bench = LookupBench(weigh=weights_of)
    bench.complete_to(9, 9)
    bench.bench.put(records(["9", "8"], [5, 5]))
    bench.turn()
    bench.bench.put(records(["7"], [5], first_offset=2))
    bench.turn()
    assert not bench.bench.inputs[0].empty
    assert [values for _, values in bench.step()] == [["9"], ["8"], ["7"]]


def test_a_lookup_waits_while_the_output_is_blocked() -> None:
    bench = LookupBench()
    bench.bench.put(records("a", [5]))
    bench.bench.pass_to(9)
    bench.complete_to(9, 9)
    bench.bench.closed.add(WorkerId(0))
    assert bench.step() == []
    assert (bench.held, bench.waiting()) == ([5], [(5, ["a"])])
    bench.bench.closed.clear()
    assert bench.step() == [(5, ["a"])]


def test_prefixes_of_different_iterations_are_looked_up_apart() -> None:
    bench = LookupBench(scope=Scope("inner", ROOT))
    for time, value in (((5, 1), "b"), ((5, 0), "a"), ((5, 1), "c")):
        bench.bench.progress.changes.add(bench.bench.inputs[0].location, time, 1)
        bench.bench.inputs[0].put(Message(time, records(value, [5])))
    bench.complete_to(6, 6)
    assert bench.step() == [((5, 0), ["a"]), ((5, 1), ["b", "c"])]


@pytest.mark.parametrize("room", [1, 1 << 30])
def test_waiting_prefixes_go_to_disk_past_the_bound_and_come_back(room: int) -> None:
    bench: Any = LookupBench(room=room)
    bench.bench.put(records("abc", [5, 6, 7]))
    bench.bench.put(records("def", [6, 7, 8], first_offset=3))
    bench.bench.pass_to(9)
    bench.step()
    assert bench.lookup._waiting.spilled == (room == 1)
    assert bench.held == [5]
    bench.complete_to(8, 8)
    values = sorted(value for _, some in bench.step() for value in some)
    assert (values, bench.held) == (["a", "b", "c", "d", "e"], [8])
