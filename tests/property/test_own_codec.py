"""I3 and I4 for states of a user's own class: moved by the user's codec between simulated workers,
results and final states equal the single-threaded reference."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pytest

from meander import Flow
from meander.dataflow.control.command import MoveBins
from meander.dataflow.control.reports import BinInstalled, WorkerReport
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis
from meander.testing import TestFlow
from tests.support.property import reference

BITS = 3
BINS = tuple(Bin(bin) for bin in range(1 << BITS))
COMMANDS = (
    MoveBins("all", BINS, WorkerId(1), from_millis(60), "all-at-once"),
    MoveBins("some", BINS[2:], WorkerId(2), None, "fluid"),
    MoveBins("back", BINS, WorkerId(0), from_millis(200), "fluid"),
)


@dataclass
class Tour:
    """A state that plain values cannot hold: changed in place, and of a class of its own."""

    stops: list[int] = field(default_factory=list)
    length: int = 0


class Tours:
    """The user's own codec of them."""

    name = "tours"

    def encode(self, state: object, /) -> bytes:
        assert type(state) is Tour
        return f"{state.length}:{','.join(map(str, state.stops))}".encode()

    def decode(self, data: bytes, /) -> object:
        length, _, stops = data.decode().partition(":")
        return Tour([int(stop) for stop in stops.split(",") if stop], int(length))


def visit(tour: Any, value: Any) -> tuple[object, object]:
    """Shows each disorder of a key's records."""
    tour.length += abs(value["v"] - tour.stops[-1]) if tour.stops else 0
    tour.stops.append(value["v"])
    del tour.stops[:-3]
    return tour, {"k": value["k"], "v": tour.length}


def linger(context: Any, tour: Any, value: Any) -> object:
    tour.stops.append(value["v"])
    if value["v"] % 3:
        context.timer(context.time_ms + 30)
    return tour


def leave(context: Any, tour: Any) -> object:
    context.emit({"k": context.key, "v": tour.stops})
    tour.length += len(tour.stops)
    tour.stops = []
    return tour


def key(value: Any) -> object:
    return value["k"]


def partition(rng: random.Random) -> list[tuple[int, object]]:
    times = accumulate(rng.choice([0, 1, 5]) for _ in range(150))
    return [(ms, {"k": f"key {rng.randrange(12)}", "v": rng.randrange(100)}) for ms in times]


def records(sink: ListSink) -> list[reference.Record]:
    return [
        reference.Record((r.time, r.origin, r.partition, r.offset, r.index), r.value)
        for r in sink.results
    ]


def shown(found: list[reference.Record]) -> list[str]:
    return sorted(repr((record.order, record.value)) for record in found)


@pytest.mark.parametrize("seed", range(4))
def test_states_of_a_users_own_codec_move_and_answer_as_if_nothing_had_moved(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    raw, visits, tours = ListSink(), ListSink(), ListSink()
    flow = Flow("f", bins=BITS)
    source = flow.source(ListSource([partition(rng) for _ in range(3)]))
    source.sink(raw, "raw")
    visited = source.key_by(key).fold("visit", Tour, visit, codec=Tours())
    visited.sink(visits, "visits")
    visited.process("linger", Tour, linger, leave, codec=Tours()).sink(tours, "tours")

    carried: set[tuple[str, int]] = set()
    with TestFlow(flow, workers=3, seed=seed, commands=COMMANDS) as run:
        take = run.sim.coordinator.report

        def report(worker: WorkerId, report: WorkerReport) -> None:
            if isinstance(report, BinInstalled) and report.keys:
                carried.add((report.operator, int(worker)))
            take(worker, report)

        monkeypatch.setattr(run.sim.coordinator, "report", report)
        run.run()
        states = run.state()

    assert run.dead_letters == []
    assert {("visit", 1), ("visit", 0), ("linger", 0)} <= carried
    codec = Tours()
    visit_results, visit_states = reference.fold(records(raw), key, Tour, visit)
    tour_results, tour_states = reference.process(
        visit_results, key, Tour, [linger], leave, origin=2
    )
    assert shown(records(visits)) == shown(visit_results)
    assert shown(records(tours)) == shown(tour_results)
    wanted = {"visit": visit_states, "linger": tour_states}
    assert states == {
        name: {key: codec.encode(state) for key, state in keyed.items()}
        for name, keyed in wanted.items()
    }
