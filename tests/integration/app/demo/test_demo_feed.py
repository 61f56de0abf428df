"""The demo's load sends every flight once, on schedule, and every result has its latency."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from meander.app.demo.data import Flights, cause, load, unpack
from meander.app.measurement.open_loop import Load, OpenLoop, Results, open_loop
from meander.schemas.errors import MeanderError
from tests.support.kafka.topics import Headers, Record, await_records, create_topic, produce

PARTITIONS = 2
FLIGHTS = 400
RATE = 4_000


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    with unpack(tmp_path).open() as whole:
        head = list(itertools.islice(whole, FLIGHTS + 1))
    table = tmp_path / "small.csv"
    table.write_text("".join(head))
    return load(table, PARTITIONS)


@pytest.fixture
def made(flights: Flights, prefix: str) -> Load:
    return flights.load(f"{prefix}source", RATE)


@pytest.fixture
def topics(bootstrap: str, made: Load, prefix: str) -> Sequence[str]:
    """The results topics; the source is there too."""
    found = [f"{prefix}first", f"{prefix}last"]
    for topic in (made.topic, *found):
        create_topic(bootstrap, topic, PARTITIONS)
    return found


def answer(bootstrap: str, source: str, topics: Sequence[str]) -> list[Record]:
    """Do as a flow would: one result per record on both topics, naming its cause."""
    sent = await_records(bootstrap, source, lambda records: len(records) == FLIGHTS)
    results = []
    for record in sent:
        headers: Headers = [
            ("meander.partition", str(record.partition)),
            ("meander.offset", str(record.offset)),
        ]
        results.append(Record(b"{}", record.key, headers=headers))
    for topic in topics:
        produce(bootstrap, topic, results)
    return sent


def finish(loop: OpenLoop) -> None:
    while not loop.ended:
        time.sleep(0.01)


def test_all_flights_are_sent_in_order_and_all_results_have_a_latency(
    flights: Flights, made: Load, topics: Sequence[str], bootstrap: str
) -> None:
    settings = {"bootstrap.servers": bootstrap}
    with open_loop(settings, made, Results(topics, cause)) as loop:
        loop.release()
        sent = answer(bootstrap, made.topic, topics)
        finish(loop)

    assert (loop.sent, loop.answered) == (FLIGHTS, FLIGHTS)
    timeline = flights.timeline(loop.found())
    assert bool((timeline.took > 0).all())
    assert np.diff(timeline.due) == pytest.approx(1 / RATE, abs=1e-6)
    for partition in range(PARTITIONS):
        wanted = [
            (flights.keys[at], flights.values[at], [("time", b"%d" % flights.times[at])])
            for at in np.flatnonzero(flights.partitions == partition).tolist()
        ]
        assert [
            (record.key, record.value, record.headers)
            for record in sent
            if record.partition == partition
        ] == wanted


def test_what_is_held_back_is_due_when_it_is_released(
    flights: Flights, made: Load, topics: Sequence[str], bootstrap: str
) -> None:
    settings, free = {"bootstrap.servers": bootstrap}, int(made.free)
    with open_loop(settings, made, Results(topics, cause)) as loop:
        sent = await_records(bootstrap, made.topic, lambda records: len(records) == free)
        before = time.time()
        loop.release()
        answer(bootstrap, made.topic, topics)
        finish(loop)

    assert len(sent) == free, "the rest was not sent while it was held back"
    due = loop.found().due
    assert due[free - 1] < before <= due[free]
    assert np.diff(due[free:]) == pytest.approx(1 / RATE, abs=1e-6)
    assert bool((flights.timeline(loop.found()).took > 0).all())


def test_a_load_that_cannot_begin_is_reported(made: Load, bootstrap: str) -> None:
    with (
        pytest.raises(MeanderError, match="does not exist"),
        open_loop({"bootstrap.servers": bootstrap}, made),
    ):
        pass
