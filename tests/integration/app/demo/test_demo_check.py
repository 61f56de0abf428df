"""The demo's oracle passes right answers and names every kind of wrong one.

The topics hold what the flow would answer, computed here by a loop in plain Python over 3,000 real
flights, with some late records and some bins moved.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from meander.app.demo import data
from meander.app.demo.check import Findings, Move, check
from meander.app.flows.flights import (
    CarrierState,
    Flight,
    PlaneState,
    add_flight,
    add_plane,
    plane_of,
)
from meander.state.times.time import from_millis, to_millis
from tests.support.kafka.topics import Headers, Record, create_topic, produce

PARTITIONS = 2
BINS = 8
OWNERS = [0] * 4 + [1] * 4
BUMP_EVERY = 97


def bin_of(key: str) -> int:
    """Any stable placement will do here."""
    return zlib.crc32(key.encode()) % BINS


@dataclass(frozen=True, slots=True)
class Message:
    """One record to be produced, or one result."""

    key: bytes
    value: dict[str, Any]
    partition: int
    headers: dict[str, int]

    def record(self) -> Record:
        headers: Headers = [(name, str(value)) for name, value in self.headers.items()]
        return Record(json.dumps(self.value).encode(), self.key, self.partition, headers=headers)

    def with_header(self, name: str, value: int) -> Message:
        return replace(self, headers={**self.headers, name: value})


@dataclass(frozen=True, slots=True)
class Run:
    """The three topics of a right run, and the moves in it."""

    source: list[Message]
    planes: list[Message]
    carriers: list[Message]
    moves: list[Move]
    late_adjusted: int


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 3,000 rows of the package's table."""
    folder = tmp_path_factory.mktemp("flights")
    with data.unpack(folder).open() as whole:
        head = list(itertools.islice(whole, 3_001))
    small = folder / "small.csv"
    small.write_text("".join(head))
    return small


@pytest.fixture(scope="module")
def run(table: Path) -> Run:
    """What a right flow would read and write."""
    records = data.load(table, PARTITIONS)
    offsets = (records.identities() & ((1 << data.OFFSET_BITS) - 1)).tolist()
    source = [
        Message(key, json.loads(value), partition, {"time": time})
        for key, value, partition, time in zip(
            records.keys,
            records.values,
            records.partitions.tolist(),
            records.times.tolist(),
            strict=True,
        )
    ]
    middle = int(records.times[1_500])
    moves = [
        Move(1, 0, 1, from_millis(middle)),
        Move(6, 1, 0, from_millis(middle)),
        Move(1, 1, 0, from_millis(int(records.times[2_200]), 5)),
    ]
    latest = [0] * PARTITIONS
    placed: list[tuple[int, int, int, Flight]] = []
    late_adjusted = 0
    for number, (message, offset) in enumerate(zip(source, offsets, strict=True)):
        own = from_millis(message.headers["time"])
        bump = 3 if number % BUMP_EVERY == 0 else 0
        time = max(own, latest[message.partition]) + bump
        late_adjusted += time > own
        latest[message.partition] = time
        placed.append((time, message.partition, offset, cast(Flight, message.value)))

    planes: list[Message] = []
    carriers: list[Message] = []
    plane_states: dict[str, PlaneState] = {}
    carrier_states: dict[str, CarrierState] = {}
    for time, partition, offset, flight in sorted(placed, key=lambda row: row[:3]):
        plane = plane_of(flight)
        plane_states[plane], answer = add_flight(plane_states.get(plane, (0, 0, 0, 0)), flight)
        carrier = answer["carrier"]
        carrier_states[carrier], total = add_plane(
            carrier_states.get(carrier, (0, 0, 0, 0, 0, 0)), answer
        )
        for key, value, results in ((plane, answer, planes), (carrier, total, carriers)):
            headers = {
                "meander.time": to_millis(time),
                "meander.sequence": time - from_millis(to_millis(time)),
                "meander.origin": 0,
                "meander.partition": partition,
                "meander.offset": offset,
                "meander.index": 0,
                "meander.worker": owner(bin_of(key), time, moves),
            }
            results.append(Message(key.encode(), dict(value), partition, headers))
    return Run(source, planes, carriers, moves, late_adjusted)


def owner(number: int, time: int, moves: list[Move]) -> int:
    result = OWNERS[number]
    for move in sorted(moves, key=lambda move: move.time):
        if move.bin == number and move.time <= time:
            result = move.new
    return result


Checker = Callable[[Run], Findings]


@pytest.fixture
def checked(spark: SparkSession, bootstrap: str, prefix: str, table: Path) -> Checker:
    """Produce a run to fresh topics and have it checked."""

    def produce_and_check(run: Run) -> Findings:
        topics = (f"{prefix}flights", f"{prefix}planes", f"{prefix}carriers")
        for topic, messages in zip(topics, (run.source, run.planes, run.carriers), strict=True):
            create_topic(bootstrap, topic, PARTITIONS)
            # Offsets are known beforehand only if nothing is sent twice or out of order.
            exactly = {"enable.idempotence": "true"}
            produce(bootstrap, topic, (message.record() for message in messages), exactly)
        settings = {"bootstrap.servers": bootstrap}
        return check(spark, settings, topics, table, OWNERS, run.moves, bin_of)

    return produce_and_check


def test_right_answers_pass(checked: Checker, run: Run) -> None:
    found = checked(run)
    assert found.faults() == []
    assert found.differences == 0
    assert (found.records, found.results) == (3_000, 6_000)
    assert found.late_adjusted == run.late_adjusted > 0
    assert found.missing_tailnums == sum(m.value["tailnum"] is None for m in run.source) > 0
    assert found.missing_delays == sum(m.value["arr_delay"] is None for m in run.source) > 0
    assert [Move(one["bin"], one["from"], one["to"], one["at"]) for one in found.moved] == run.moves
    assert all(one["before_by_old"] and one["after_by_new"] for one in found.moved)


def test_every_kind_of_wrong_result_is_reported(checked: Checker, run: Run) -> None:
    planes, carriers = list(run.planes), list(run.carriers)
    planes[100] = replace(planes[100], value={**planes[100].value, "distance": 1})
    planes.append(planes[200])
    del planes[300]
    late = carriers[400]
    carriers[400] = late.with_header("meander.sequence", late.headers["meander.sequence"] + 1)
    carriers.append(carriers[500].with_header("meander.offset", 10**9))
    other = carriers[600].headers["meander.worker"] ^ 1
    carriers[600] = carriers[600].with_header("meander.worker", other)

    found = checked(replace(run, planes=planes, carriers=carriers))

    assert (found.planes.differing, found.planes.doubled, found.planes.missing) == (1, 1, 1)
    assert (found.carriers.differing, found.carriers.unexpected) == (1, 1)
    assert found.strays == 1
    assert found.differences == 5
    assert len(found.faults()) == 6


def test_the_same_is_reported_of_the_other_topic(checked: Checker, run: Run) -> None:
    planes, carriers = list(run.planes), list(run.carriers)
    planes.append(planes[100].with_header("meander.offset", 10**9))
    planes.append(planes[200].with_header("meander.index", 1))
    sequence = planes[300].headers["meander.sequence"]
    doubled_later = planes[300].with_header("meander.sequence", sequence + 1)
    planes.append(doubled_later)
    carriers[400] = replace(carriers[400], value={**carriers[400].value, "mean_delay": None})
    carriers.append(carriers[500])
    del carriers[600]

    found = checked(replace(run, planes=planes, carriers=carriers))

    assert (found.planes.unexpected, found.planes.doubled, found.planes.missing) == (2, 1, 0)
    assert found.planes.differing == 0, "a doubled record counts once in what is expected"
    assert (found.carriers.differing, found.carriers.doubled) == (1, 1)
    assert (found.carriers.missing, found.carriers.unexpected) == (1, 0)
    assert found.differences == 6


def test_wrong_sources_times_and_moves_are_reported(checked: Checker, run: Run) -> None:
    source = list(run.source)
    source[50] = replace(source[50], value={**source[50].value, "dest": "XXX"})
    where = next(
        n for n, message in enumerate(run.planes) if message.headers["meander.offset"] > 99
    )
    early = run.planes[where].with_header("meander.time", 1)
    planes = [*run.planes[:where], early, *run.planes[where + 1 :]]
    at_the_start = Move(3, 0, 1, from_millis(1))

    found = checked(replace(run, source=source, planes=planes, moves=[*run.moves, at_the_start]))

    assert found.rows_differing == 2, "the changed record has no row, and its row no record"
    assert (found.early, found.backwards) == (1, 1)
    assert found.strays > 0, "the old worker answered for what had moved"
    assert any("answered nothing before" in fault for fault in found.faults())
