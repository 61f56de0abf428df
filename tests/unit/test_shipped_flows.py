"""I2 and I3 for the flows that users see first: whatever happens meanwhile, the answers are those
of a loop in plain Python over the records in the order of their places."""

from __future__ import annotations

import itertools
import json
import runpy
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from app import demo_data
from app.flows import flights
from app.flows.flights import CarrierState, Flight, PlaneState, add_flight, add_plane, plane_of
from connectors.testing import (
    At,
    Control,
    HandOver,
    Idle,
    Join,
    Jump,
    Leave,
    Pause,
    Result,
    Slow,
    TestFlow,
)
from dataflow import Flow
from state import codec
from tests.readme import example

ROOT = Path(__file__).parents[2]
PARTITIONS = 3
HALF = {"type": "migrate", "bins": list(range(128)), "strategy": "sudden"}

TROUBLE: dict[str, list[At]] = {
    "nothing": [],
    "bins move there and back": [
        At(Control({"id": "m1", "worker": 1} | HALF), records=50),
        At(Control({"id": "m2", "worker": 0} | HALF), records=200),
    ],
    "a worker and the coordinator pause while bins move": [
        At(Control({"id": "m1", "worker": 1} | HALF), records=50),
        At(Pause(worker=1, steps=800), records=60),
        At(Pause(worker=-1, steps=800), records=150),
    ],
    "links are slow, a partition is idle, the clock jumps": [
        At(Slow(sender=0, receiver=1, steps=1500), step=100),
        At(Idle("{topic}", partition=1, steps=1200), step=1),
        At(Control({"id": "m1", "worker": 1} | HALF), records=80),
        At(Jump(-3600), seconds=0.01),
    ],
    "workers come and go": [
        At(Join(), records=10),
        At(Control({"id": "m1", "worker": 2} | HALF), records=60),
        At(HandOver("h", "source", 0, 2), records=100),
        At(Pause(worker=2, steps=500), records=120),
        At(Leave("l", 1), records=150),
    ],
}


def trouble(name: str, topic: str) -> list[At]:
    """The faults of that name for a flow that reads this topic."""
    return [
        At(Idle(topic, at.fault.partition, at.fault.steps), step=at.step)
        if isinstance(at.fault, Idle)
        else at
        for at in TROUBLE[name]
    ]


def by_source(results: Sequence[Result]) -> set[tuple[int, int]]:
    return {(result.partition, result.offset) for result in results}


def check_commands(run: TestFlow, faults: list[At]) -> None:
    given = [at.fault.command for at in faults if isinstance(at.fault, Control)]
    ids = [str(command["id"]) for command in given if not isinstance(command, bytes)]
    for answer in map(run.answer, ids):
        assert answer is not None and answer.said == "completed" and answer.moved


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> demo_data.Records:
    """The first 1,000 flights of the year."""
    folder = tmp_path_factory.mktemp("flights")
    with demo_data.unpack(folder).open() as whole:
        head = list(itertools.islice(whole, 1_001))
    small = folder / "small.csv"
    small.write_text("".join(head))
    return demo_data.load(small, PARTITIONS)


@pytest.mark.parametrize("name", TROUBLE)
def test_flights_are_counted_per_plane_and_carrier(name: str, records: demo_data.Records) -> None:
    topic, planes, carriers = flights.topics()
    faults = trouble(name, topic)
    with TestFlow(flights.build(), seed=len(name), partitions=PARTITIONS, faults=faults) as run:
        placed = zip(records.keys, records.values, records.times, records.partitions, strict=True)
        for key, value, time, partition in placed:
            header = ("time", str(time))
            run.feed(topic, value, key=key, partition=int(partition), headers=(header,))
        run.run()
        plane_states: dict[str, PlaneState] = {}
        carrier_states: dict[str, CarrierState] = {}
        source: dict[tuple[int, int], Flight] = {
            (record.partition, record.offset): cast(Flight, json.loads(record.value or b""))
            for record in run.records(topic)
        }
        assert len(run.results(planes)) == len(run.results(carriers)) == len(source) == 1_000
        assert by_source(run.results(planes)) == by_source(run.results(carriers)) == source.keys()
        for plane, carrier in zip(run.results(planes), run.results(carriers), strict=True):
            assert plane.place == carrier.place
            flight = source[plane.partition, plane.offset]
            before = plane_states.get(plane_of(flight), (0, 0, 0, 0))
            plane_states[plane_of(flight)], expected = add_flight(before, flight)
            assert plane.value == expected
            earlier = carrier_states.get(flight["carrier"], (0, 0, 0, 0, 0, 0))
            carrier_states[flight["carrier"]], total = add_plane(earlier, expected)
            assert carrier.value == total
        assert run.states("per_plane") == plane_states
        assert run.states("per_carrier") == carrier_states
        check_commands(run, faults)


TEXTS = [f"to be{i % 5} or not{i % 3} to be" for i in range(60)]


@pytest.mark.parametrize("name", TROUBLE)
def test_the_readmes_flow_counts_words(name: str) -> None:
    flow = example("counts.py")["flow"]
    assert isinstance(flow, Flow)
    faults = [At(at.fault, records=at.records // 4) if at.records else at
              for at in trouble(name, "lines")]  # fmt: skip
    with TestFlow(flow, seed=len(name), partitions=PARTITIONS, faults=faults) as run:
        for n, text in enumerate(TEXTS):
            run.feed("lines", text, partition=n % PARTITIONS, ms=1000 + n)
        run.run()
        counts: Counter[str] = Counter()
        for result in run.results("counts"):
            word = cast(dict[str, str], result.value)["word"]
            counts[word] += 1
            assert result.value == {"word": word, "count": counts[word]}
        assert counts == Counter(word for text in TEXTS for word in text.split())
        assert run.states("count") == counts
        check_commands(run, faults)


def test_the_readmes_test_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = ModuleType("counts")
    vars(counts).update(example("counts.py"))
    monkeypatch.setitem(sys.modules, "counts", counts)
    for name, test in example("test_counts.py").items():
        if name.startswith("test_"):
            cast(Callable[[], None], test)()


@pytest.mark.parametrize("order", ["time", "arrival"])
@pytest.mark.parametrize("fold", ["records", "columns"])
@pytest.mark.parametrize("name", TROUBLE)
def test_the_measured_flow_counts_records(
    name: str, fold: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEANDER_BENCH_FOLD", fold)
    monkeypatch.setenv("MEANDER_BENCH_ORDER", order)
    flow = runpy.run_path(str(ROOT / "benchmarks" / "counting.py"))["flow"]
    faults = trouble(name, "in")
    with TestFlow(flow, seed=len(name), partitions=PARTITIONS, faults=faults) as run:
        for n in range(300):
            run.feed("in", b"key %d" % (n % 7), partition=n % PARTITIONS, ms=1000 + n)
        run.run()
        fed = Counter(record.value for record in run.records("in"))
        for key, count in fed.items():
            numbers = [int(cast(bytes, r.value)) for r in run.results("out") if r.key == key]
            # In the order of arrival a key's numbers are as they came, which its place is not.
            found = numbers if order == "time" else sorted(numbers)
            assert found == list(range(1, count + 1))
        states = {codec.encode(key): state for key, state in run.states("count").items()}
        assert states == {codec.encode(key): count for key, count in fed.items()}
        check_commands(run, faults)
