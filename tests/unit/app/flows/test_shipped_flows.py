"""I2 and I3 for the flows that users see first: whatever happens meanwhile, the answers are those
of a loop in plain Python over the records in the order of their places."""

from __future__ import annotations

import itertools
import json
import runpy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from meander import Flow
from meander.app.demo import data
from meander.app.flows import flights
from meander.app.flows.flights import (
    CarrierState,
    Flight,
    PlaneState,
    add_flight,
    add_plane,
    plane_of,
)
from meander.dataflow.errors import WorkerLost
from meander.state.encoding import codec
from meander.testing import (
    AddPartition,
    At,
    Control,
    Crash,
    Feed,
    Idle,
    Join,
    Jump,
    Leave,
    MovePartition,
    Pause,
    Result,
    Slow,
    TestFlow,
)
from tests.support.doc_blocks import example

ROOT = Path(__file__).parents[4]
PARTITIONS = 3
HALF = {"type": "migrate", "bins": list(range(128)), "strategy": "all-at-once"}

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
        At(MovePartition("h", "source", 0, 2), records=100),
        At(Pause(worker=2, steps=500), records=120),
        At(Leave("l", 1), records=150),
    ],
    "commands have workers come and go": [
        At(Control({"type": "rescale", "id": "r1", "workers": 4}), records=40),
        At(Control({"type": "rescale", "id": "r2", "workers": 1}), records=200),
    ],
    "the topic gets partitions, with records and without, while bins move": [
        At(Control({"id": "m1", "worker": 1} | HALF), records=50),
        At(AddPartition("source"), records=60),
        At(Slow(sender=1, receiver=0, steps=500), records=60),
        At(AddPartition("source"), records=100),
        At(Control({"id": "m2", "worker": 0} | HALF), records=120),
    ],
}
LATE = 40
"""Records that come onto the first new partition, where there is one."""


def trouble(name: str, feeds: list[Feed], sooner: int = 1) -> tuple[list[Feed], list[At]]:
    """What is fed to a flow before it runs, and the faults of that name, `sooner` so many times."""
    faults = [
        replace(at, fault=replace(at.fault, topic=feeds[0].topic))
        if isinstance(at.fault, Idle)
        else replace(at, records=at.records and at.records // sooner)
        for at in TROUBLE[name]
    ]
    grown = next((n for n, at in enumerate(faults) if isinstance(at.fault, AddPartition)), None)
    if grown is None:
        return feeds, faults
    late = [replace(faults[grown], fault=replace(f, partition=PARTITIONS)) for f in feeds[-LATE:]]
    return feeds[:-LATE], [*faults[: grown + 1], *late, *faults[grown + 1 :]]


def by_source(results: Sequence[Result]) -> set[tuple[int, int]]:
    return {(result.partition, result.offset) for result in results}


def check_commands(run: TestFlow, faults: list[At]) -> None:
    given = [at.fault.command for at in faults if isinstance(at.fault, Control)]
    ids = [str(command["id"]) for command in given if not isinstance(command, bytes)]
    for answer in map(run.answer, ids):
        assert answer is not None and answer.state in {"completed", "rescaled"} and answer.moved


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> data.Flights:
    """The first 1,000 flights of the year."""
    folder = tmp_path_factory.mktemp("flights")
    with data.unpack(folder).open() as whole:
        head = list(itertools.islice(whole, 1_001))
    small = folder / "small.csv"
    small.write_text("".join(head))
    return data.load(small, PARTITIONS)


def feeds_of(records: data.Flights) -> list[Feed]:
    topic, _, _ = flights.topics()
    placed = zip(records.values, records.keys, records.partitions, records.times, strict=True)
    return [
        Feed(topic, value, key, partition=int(partition), headers=(("time", str(time)),))
        for value, key, partition, time in placed
    ]


@pytest.mark.parametrize("name", TROUBLE)
def test_flights_are_counted_per_plane_and_carrier(name: str, records: data.Flights) -> None:
    topic, planes, carriers = flights.topics()
    feeds, faults = trouble(name, feeds_of(records))
    with TestFlow(flights.build(), seed=len(name), partitions=PARTITIONS, faults=faults) as run:
        for feed in feeds:
            run.inject(feed)
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


TEXTS = [f"to be{i % 5} or not{i % 3} to be" for i in range(100)]
LINES = [Feed("lines", t, ms=1000 + n, partition=n % PARTITIONS) for n, t in enumerate(TEXTS)]
WORDS = Counter(word for text in TEXTS for word in text.split())


def readmes_flow() -> Flow:
    flow = example("counts.py")["flow"]
    assert isinstance(flow, Flow)
    return flow


def counted(run: TestFlow) -> Counter[str]:
    """How often each word has come; asserts that each was counted one by one."""
    counts: Counter[str] = Counter()
    for result in run.results("counts"):
        word = cast(dict[str, str], result.value)["word"]
        counts[word] += 1
        assert result.value == {"word": word, "count": counts[word]}
    return counts


@pytest.mark.parametrize("name", TROUBLE)
def test_the_readmes_flow_counts_words(name: str) -> None:
    feeds, faults = trouble(name, LINES, sooner=4)
    with TestFlow(readmes_flow(), seed=len(name), partitions=PARTITIONS, faults=faults) as run:
        for feed in feeds:
            run.inject(feed)
        run.run()
        counts = counted(run)
        assert counts == WORDS
        assert run.states("count") == counts
        check_commands(run, faults)


@pytest.mark.parametrize("seed", range(5))
def test_a_crash_ends_the_readmes_flow_with_a_sentence_and_its_results_are_right(
    seed: int,
) -> None:
    with TestFlow(readmes_flow(), seed=seed, faults=[At(Crash(1), records=60)]) as run:
        for feed in LINES:
            run.inject(replace(feed, partition=feed.partition % 2))
        for _ in range(2):
            with pytest.raises(WorkerLost, match="worker 1: its process was killed, or crashed"):
                run.run()
        assert counted(run) < WORDS


ORDERS = "event", "processing"
MEASURED = [
    (name, fold, ORDERS[(n + m) % 2])
    for n, name in enumerate(TROUBLE)
    for m, fold in enumerate(["records", "columns"])
]
"""Each trouble with both ways to fold records and both orders, in turn with the other order."""


@pytest.mark.parametrize(("name", "fold", "order"), MEASURED)
def test_the_measured_flow_counts_records(
    name: str, fold: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEANDER_BENCH_FOLD", fold)
    monkeypatch.setenv("MEANDER_BENCH_ORDER", order)
    flow = runpy.run_path(str(ROOT / "benchmarks" / "counting.py"))["flow"]
    keyed = [Feed("in", b"key %d" % (n % 7), None, 1000 + n, n % PARTITIONS) for n in range(300)]
    feeds, faults = trouble(name, keyed)
    with TestFlow(flow, seed=len(name), partitions=PARTITIONS, faults=faults) as run:
        for feed in feeds:
            run.inject(feed)
        run.run()
        fed = Counter(record.value for record in run.records("in"))
        for key, count in fed.items():
            numbers = [int(cast(bytes, r.value)) for r in run.results("out") if r.key == key]
            # In the order of arrival a key's numbers are as they came, which its place is not.
            found = numbers if order == "event" else sorted(numbers)
            assert found == list(range(1, count + 1))
        states = {codec.encode(key): state for key, state in run.states("count").items()}
        assert states == {codec.encode(key): count for key, count in fed.items()}
        check_commands(run, faults)
