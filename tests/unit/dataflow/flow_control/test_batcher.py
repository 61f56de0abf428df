"""The batcher, step by step: what it admits, which times it holds, and what a checkpoint gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meander.dataflow.flow_control import batcher
from meander.dataflow.flow_control.batch_size import BatchSize
from meander.dataflow.flow_control.batcher import Batcher
from meander.dataflow.flow_control.expansion import Expand, Expansion, unexpanded
from meander.dataflow.flow_control.ready_rows import ReadyRows
from meander.dataflow.graph.graph import ROOT, Scope
from meander.dataflow.operators.custom import OperatorServices
from meander.dataflow.operators.ports import Message
from meander.state.times.time import Time
from tests.support.sim.operator_bench import Bench, guard, pool, records

SCOPE = Scope("inner", ROOT)


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no batches share a number for being small."""
    monkeypatch.setattr(batcher, "JOINED_ROWS", 0)


class Control:
    """A batcher on a bench."""

    def __init__(
        self, batch: int, in_flight: int = 1, expand: Expand | None = None, room: int = 1 << 30
    ) -> None:
        self.bench = bench = Bench(scope=SCOPE)
        services = OperatorServices(
            bench.context(pool(), room),
            bench.inputs[0],
            bench.output,
            guard()[0],
            [lambda: bench.progress.frontier(bench.graph.nodes[2].inputs[0])],
        )
        ready = ReadyRows(False, lambda _: None)
        queue = ready if expand is None else Expansion(ready, expand, services.guard)
        self.batcher = Batcher(services, BatchSize(batch), in_flight, queue)

    @property
    def admitted(self) -> int:
        """The rows that are admitted and not through."""
        return sum(batch.size for batch in self.batcher._admitted)

    def step(self) -> list[tuple[Time, list[object]]]:
        """Let the batcher work, and return what it sends."""
        while self.batcher.schedule():
            self.bench.progress.flush()
        return [(time, list(batch.values)) for _, time, batch in self.bench.sent]

    def take_on(self) -> list[tuple[Time, list[object]]]:
        """Let the part come to the end of what it has, and the batcher work."""
        self.bench.take_on()
        return self.step()

    @property
    def held(self) -> list[Time]:
        return list(self.bench.held)

    def waiting(self) -> list[tuple[Time, list[object]]]:
        return [(one.time, list(one.batch.values)) for one in self.batcher.in_flight()]


def test_the_batches_of_a_time_have_rising_numbers_and_hold_it_no_longer_than_the_last() -> None:
    control = Control(batch=2)
    control.bench.put(records("abcde", [5] * 5))
    assert control.step() == []
    assert control.held == [(5, 0)]
    control.bench.pass_to(6)
    assert control.step() == [((5, 0), ["a", "b"])]
    assert control.held == [(5, 1)]
    assert control.take_on() == [((5, 1), ["c", "d"])]
    assert control.take_on() == [((5, 2), ["e"])]
    assert control.held == []
    assert control.take_on() == []


def test_a_batch_takes_rows_of_many_times_and_numbers_each_of_them_anew() -> None:
    control = Control(batch=3, in_flight=2)
    control.bench.put(records("abcdefg", [1, 1, 1, 1, 2, 2, 3]))
    control.bench.pass_to(9)
    assert control.step() == [((1, 0), ["a", "b", "c"]), ((1, 1), ["d"]), ((2, 0), ["e", "f"])]
    assert control.held == [(3, 0)]


def test_half_of_the_batches_share_a_number_where_there_is_room_for_them() -> None:
    control = Control(batch=2, in_flight=4)
    control.bench.put(records("abcdefghij", [5] * 10))
    control.bench.pass_to(6)
    assert control.step() == [((5, 0), ["a", "b", "c", "d"]), ((5, 1), ["e", "f", "g", "h"])]
    assert control.admitted == 8
    assert control.take_on() == [((5, 2), ["i", "j"])]
    assert control.admitted == 2


def test_small_batches_share_a_number_whatever_is_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batcher, "JOINED_ROWS", 7)
    control = Control(batch=2, in_flight=5)
    control.bench.put(records("abcdefghij", [5] * 10))
    control.bench.pass_to(6)
    assert control.step() == [((5, 0), [*"abcdef"]), ((5, 1), [*"ghij"])]


def test_a_batch_leaves_the_room_that_its_rows_do_not_fill() -> None:
    control = Control(batch=2, in_flight=4)
    control.bench.put(records("a", [5]))
    control.bench.pass_to(6)
    assert control.step() == [((5, 0), ["a"])]
    control.bench.put(records("bcdefghi", [6] * 8))
    control.bench.pass_to(7)
    sent = [((6, 0), ["b", "c", "d", "e"]), ((6, 1), ["f", "g"])]
    assert control.step() == [((5, 0), ["a"]), *sent]


def test_a_batch_is_through_when_no_earlier_time_is_left_at_the_end() -> None:
    control = Control(batch=1, in_flight=2)
    control.bench.put(records("abc", [1, 2, 3]))
    control.bench.pass_to(9)
    assert [time for time, _ in control.step()] == [(1, 0), (2, 0)]
    assert control.admitted == 2
    assert control.take_on() == [((3, 0), ["c"])]
    assert control.admitted == 1


def test_rows_that_wait_are_in_flight_with_the_numbers_that_they_would_get() -> None:
    control = Control(batch=2)
    control.bench.put(records("abcd", [5, 5, 5, 7]))
    control.bench.pass_to(6)
    control.step()
    assert control.waiting() == [((5, 1), ["c"]), ((7, 0), ["d"])]


def test_what_is_in_flight_is_that_of_the_call() -> None:
    control = Control(batch=1)
    control.bench.put(records("ab", [5, 5]))
    control.bench.pass_to(6)
    control.step()
    at_the_call = control.batcher.in_flight()
    control.take_on()
    assert [(one.time, one.batch.values) for one in at_the_call] == [((5, 1), ["b"])]


def test_restored_rows_keep_their_number_and_later_batches_follow_it() -> None:
    control = Control(batch=1, in_flight=3)
    for time in ((5, 0), (5, 4)):
        control.bench.progress.changes.add(control.bench.inputs[0].location, time, 1)
    control.bench.inputs[0].put(Message((5, 4), records("cd", [5, 5])))
    control.bench.inputs[0].put(Message((5, 0), records("ab", [5, 5])))
    control.bench.pass_to(6)
    assert control.step() == [((5, 0), ["a"]), ((5, 1), ["b"]), ((5, 4), ["c"])]
    assert control.take_on() == [((5, 5), ["d"])]


def letters(value: object) -> Iterator[object]:
    yield from str(value)


def test_an_expansion_waits_in_the_middle_with_the_outputs_that_have_left() -> None:
    control = Control(batch=2, expand=letters)
    control.bench.put(records([unexpanded("abc"), unexpanded(""), unexpanded("de")], [5, 5, 6]))
    control.bench.pass_to(9)
    assert control.step() == [((5, 0), ["a", "b"])]
    assert control.waiting() == [
        ((5, 1), [(2, "abc")]), ((5, 1), [(0, "")]), ((6, 0), [(0, "de")]),
    ]  # fmt: skip
    assert control.take_on() == [((5, 1), ["c"]), ((6, 0), ["d"])]
    assert control.take_on() == [((6, 1), ["e"])]
    assert control.take_on() == []
    assert control.held == []


def test_a_restored_expansion_skips_the_outputs_that_have_left() -> None:
    control = Control(batch=9, expand=letters)
    control.bench.put(records([(2, "abcd")], [5]))
    control.bench.pass_to(6)
    assert control.step() == [((5, 0), ["c", "d"])]


@pytest.mark.parametrize("room", [1, 1 << 30])
def test_rows_of_open_times_go_to_disk_past_the_bound_and_come_back(room: int) -> None:
    control = Control(batch=100, room=room)
    control.bench.put(records("abc", [5, 6, 7]))
    control.bench.put(records("def", [6, 7, 8], first_offset=3))
    assert control.step() == []
    assert control.batcher._open.spilled == (room == 1)
    control.bench.pass_to(8)
    values = [value for _, some in control.step() for value in some]
    while control.bench.sent:
        values += [value for _, some in control.take_on() for value in some]
    assert values == ["a", "b", "d", "c", "e"]
