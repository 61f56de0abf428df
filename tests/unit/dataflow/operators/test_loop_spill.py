"""I6: what comes back to a loop's beginning faster than it can go on waits on disk, and is owed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meander import Flow, Stream
from meander.dataflow.operators.buffer import buffer, spill
from meander.dataflow.operators.loop import LoopEntry
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId
from tests.support.sim import operator_bench as bench
from tests.support.sim.manual_flow import ManualFlow, loops
from tests.support.sim.operator_bench import Bench, records
from tests.support.sim.start import Start

TINY, LARGE = 2_000, 1 << 28
ME = WorkerId(0)
Both = tuple[Any, Any]


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies on disk comes back in many."""
    for module in (spill, buffer):
        monkeypatch.setattr(module, "SLICE_ROWS", 7)


def doubled(stream: Any) -> Any:
    return stream.flat_map(lambda v: [(*v[:2], v[2] - 1, v[3] + bit) for bit in ("0", "1")])


def split(stream: Any) -> Any:
    return stream.split(lambda v: "again" if v[2] else "leave", "again", "leave")


def keyless(stream: Any) -> Both:
    return split(doubled(stream))  # type: ignore[no-any-return]


def keyed(stream: Any) -> Both:
    """Each key's results are numbered in the order in which they are made."""
    counted = doubled(stream).fold("n", lambda: 0, lambda n, v: (n + 1, (v[0], n, *v[2:])))
    return split(counted)  # type: ignore[no-any-return]


def within(body: Callable[[Any], Both]) -> Callable[[Any], Both]:
    """The same as a loop within another, that everything goes round twice."""

    def outer(stream: Any) -> Both:
        inner = stream.map(lambda v: (*v[:2], 4, v[3])).iterate("inner", body)
        return inner.split(  # type: ignore[no-any-return]
            lambda v: "leave" if len(v[3]) > 4 else "again", "again", "leave"
        )

    return outer


BODIES = {"keyless": keyless, "keyed": keyed, "within": within(keyless)}


class Doubled:
    """A few records, each of which goes round six times, or twice four, and is two each time."""

    def __init__(
        self, start: Start, body: str, workers: int, most: int, spill: int = 1 << 30
    ) -> None:
        self.sink = ListSink()
        source = ListSource([[(ms, (ms % 3, 0, 6, "")) for ms in range(4)]])
        flow = Flow("f", bins=2, max_waiting=most, max_spill=spill)
        stream: Stream[Any] = flow.source(source)
        if body == "keyed":
            stream = stream.key_by(lambda v: v[0])
        stream.iterate("loop", BODIES[body]).sink(self.sink)
        self.run: ManualFlow = start(flow, workers)

    def end(self, most: int) -> None:
        while not self.run.sim.done:
            self.run.sim.act()
            for worker in self.run.workers:
                assert all(loop.returned.size <= most for loop in loops(worker)), "I6"

    @property
    def results(self) -> list[Any]:
        return sorted((r.time, r.offset, repr(r.key), r.value) for r in self.sink.results)

    @property
    def written(self) -> int:
        """Bytes that have ever been on disk; none are now."""
        disks = [worker.parts.operators.disk for worker in self.run.workers]
        assert not any(disk.used for disk in disks)
        return sum(disk.written for disk in disks)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("body", BODIES)
def test_results_are_the_same_wherever_waits_what_comes_back(
    start: Start, body: str, workers: int
) -> None:
    """I1, I3, I6, I7: within a bound that holds a dozen records."""
    cramped, free = (Doubled(start, body, workers, most) for most in (TINY, LARGE))
    cramped.end(TINY)
    free.end(LARGE)
    assert len(free.results) == 4 * 2 ** (8 if body == "within" else 6)
    assert cramped.results == free.results
    assert free.written == 0
    assert cramped.written > 4 * TINY


def test_more_than_memory_and_disk_hold_ends_the_flow(start: Start) -> None:
    """A loop that makes ever more of its records does."""
    flow = Doubled(start, "keyless", 1, TINY, spill=TINY // 2)
    with pytest.raises(MeanderError) as raised:
        flow.end(TINY)
    assert re.fullmatch(
        r"operator 'loop': 1,\d{3} bytes of this worker's records wait on disk, more than its"
        r" bound of 1,000; raise the flow's max_spill, or have its functions make less of one"
        r" input\.",
        str(raised.value),
    )


def test_a_value_that_cannot_go_to_disk_ends_the_flow_only_where_it_has_to(start: Start) -> None:
    def run(most: int) -> list[object]:
        flow, sink = Flow("f", max_waiting=most), ListSink()

        def body(stream: Stream[Any]) -> Both:
            less = stream.map(lambda v: range(len(v) - 1))
            return less.split(lambda v: "again" if v else "leave", "again", "leave")  # type: ignore[return-value]

        source = ListSource([[(1, 3)]])
        flow.source(source).map(range).iterate("loop", body).sink(sink)
        start(flow, 1).run()
        return sink.values

    assert run(LARGE) == [range(0)]
    with pytest.raises(MeanderError, match="operator 'loop': .* not all can go to disk: .*"):
        run(most=10)


# -- the beginning of a loop alone


class Beginning:
    """A loop's beginning with next to no memory."""

    def __init__(self) -> None:
        self.bench = Bench(inputs=2)
        entering, back = self.bench.inputs
        self.enter = LoopEntry(
            self.bench.context(bench.pool(), 1), entering, back, self.bench.output
        )

    def turns(self, most: int = 1000) -> None:
        """As long as anything is done."""
        for _ in range(most):
            worked = self.enter.schedule()
            self.bench.progress.flush()
            if not worked:
                return
        raise AssertionError("it does not come to rest (I7)")

    def back(self, *times: int) -> None:
        self.bench.put(records(list(times), times), side=1)

    @property
    def sent(self) -> list[object]:
        return [value for _, _, batch in self.bench.sent for value in batch.values]


def test_what_waits_on_disk_is_owed_until_it_has_gone_on() -> None:
    """I1: no frontier passes it."""
    at = Beginning()
    at.bench.closed.add(ME)
    at.back(5, 8, 9)
    at.back(7, 7)
    for side in (0, 1):
        at.bench.pass_to(None, side)
    at.turns()
    assert (at.bench.held, at.sent, at.enter.returned.size) == ((5,), [], 0)
    assert at.enter.returned.spilled
    at.bench.closed.clear()
    at.turns()
    assert (at.bench.held, at.sent) == ((), [5, 7, 7, 8, 9])
    assert all(int(batch.times.min()) == time for _, time, batch in at.bench.sent)


def test_what_has_come_back_is_in_the_beginning_until_it_goes_on() -> None:
    at, second = Beginning(), 1.0
    stay = at.bench.inputs[1].latency
    at.bench.closed.add(ME)
    at.back(5, 7)
    at.turns()
    stay.end_turn(second)
    assert (sum(stay.durations.counts), at.enter.returned.spilled) == (0, True)
    at.bench.closed.clear()
    at.turns()
    stay.end_turn(20 * second)
    assert (sum(stay.durations.counts), stay.durations.seconds) == (2, 40 * second)


def test_nothing_enters_before_all_that_goes_round_has_gone_on() -> None:
    at = Beginning()
    at.bench.closed.add(ME)
    at.bench.put(records(["new"], [2]))
    at.back(*range(3, 40))
    at.turns()
    assert at.enter.returned.spilled
    at.bench.closed.clear()
    at.enter.schedule()
    at.back(40, 41)
    at.turns()
    assert at.sent == [*range(3, 42), "new"]


@pytest.mark.parametrize("keyed", [False, True])
def test_disk_gives_back_keys_to_those_who_had_some(keyed: bool) -> None:
    at = Beginning()
    given = [records(values, [3, 4], keys=keys if keyed else None)
             for values, keys in ((["a", "b"], ["k", "l"]), (["c", "d"], ["m", "n"]))]  # fmt: skip
    for batch in given:
        at.bench.put(batch, side=1)
    at.turns()
    found, wanted = (
        {
            value: None if batch.keys is None or batch.hashes is None
            else (batch.keys[n], int(batch.hashes[n]))
            for batch in batches
            for n, value in enumerate(batch.values)
        }
        for batches in ([batch for _, _, batch in at.bench.sent], given)
    )  # fmt: skip
    assert found == wanted


def test_a_great_batch_goes_to_disk_at_once() -> None:
    """I6: nobody behind it can be held back."""
    at = Beginning()
    at.bench.closed.add(ME)
    at.bench.put(records(["x"] * 500, np.arange(500).tolist()), side=1)
    at.enter.schedule()
    assert at.enter.returned.size == 0
