"""The demo's load sends every flight once, on schedule, and clocks every answer."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meander.app.demo.data import load, unpack
from meander.app.demo.feed import Clocked, FeedPlan, FeedProcess, FeedProgress, Report, feeding
from meander.schemas.errors import MeanderError
from tests.support.kafka.topics import (
    PATIENCE,
    Headers,
    Record,
    await_records,
    create_topic,
    produce,
)

PARTITIONS = 2
FLIGHTS = 400


@pytest.fixture
def plan(tmp_path: Path, bootstrap: str, prefix: str) -> FeedPlan:
    with unpack(tmp_path).open() as whole:
        head = list(itertools.islice(whole, FLIGHTS + 1))
    table = tmp_path / "small.csv"
    table.write_text("".join(head))
    source, first, last = (f"{prefix}{name}" for name in ("source", "first", "last"))
    for topic in (source, first, last):
        create_topic(bootstrap, topic, PARTITIONS)
    settings = {"bootstrap.servers": bootstrap}
    return FeedPlan(table, settings, source, first, last, PARTITIONS, rate=4_000)


def answer(plan: FeedPlan, bootstrap: str) -> list[Record]:
    """Do as a flow would: one result per record in both topics, naming its cause."""
    sent = await_records(bootstrap, plan.source, lambda records: len(records) == FLIGHTS)
    results = []
    for record in sent:
        headers: Headers = [
            ("meander.partition", str(record.partition)),
            ("meander.offset", str(record.offset)),
        ]
        results.append(Record(b"{}", record.key, headers=headers))
    for topic in (plan.first, plan.last):
        produce(bootstrap, topic, results)
    return sent


def finish(feed: FeedProcess) -> list[Report]:
    reports: list[Report] = []
    while not reports or not isinstance(reports[-1], Clocked):
        reports += feed.reports(within=PATIENCE)
    return reports


def test_all_flights_are_sent_in_order_and_all_answers_clocked(
    plan: FeedPlan, bootstrap: str
) -> None:
    with feeding(plan) as feed:
        times = feed.loaded()
        feed.start()
        sent = answer(plan, bootstrap)
        *_, progress, clocked = finish(feed)

    assert progress == FeedProgress(FLIGHTS, FLIGHTS)
    assert isinstance(clocked, Clocked)
    assert bool((clocked.arrived > clocked.due).all())
    assert np.diff(clocked.due).tolist() == [250_000] * (FLIGHTS - 1)

    records = load(plan.table, PARTITIONS)
    assert times.tolist() == records.times.tolist()
    for partition in range(PARTITIONS):
        wanted = [
            (records.keys[at], records.values[at], [("time", b"%d" % records.times[at])])
            for at in np.flatnonzero(records.partitions == partition).tolist()
        ]
        assert [
            (record.key, record.value, record.headers)
            for record in sent
            if record.partition == partition
        ] == wanted


def test_what_is_held_back_is_due_when_it_is_released(plan: FeedPlan, bootstrap: str) -> None:
    free = FLIGHTS - FLIGHTS // 4
    with feeding(replace(plan, hold=0.25)) as feed:
        feed.loaded()
        feed.start()
        sent = await_records(bootstrap, plan.source, lambda records: len(records) == free)
        before = time.time_ns()
        feed.release()
        answer(plan, bootstrap)
        *_, clocked = finish(feed)

    assert len(sent) == free, "the rest was not sent while it was held back"
    assert isinstance(clocked, Clocked)
    assert clocked.due[free - 1] < before <= clocked.due[free]
    assert np.diff(clocked.due[free:]).tolist() == [250_000] * (FLIGHTS - free - 1)
    assert bool((clocked.arrived > clocked.due).all())


def test_a_load_that_cannot_begin_is_reported(plan: FeedPlan) -> None:
    plan.table.write_text("no,such,columns\n1,2,3\n")
    with pytest.raises(MeanderError, match="its process ended"), feeding(plan) as feed:
        feed.loaded()
