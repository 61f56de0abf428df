"""The demo's records are the package's flights: all of them, once, in time order per partition."""

from __future__ import annotations

import csv
import itertools
import json
from collections import Counter
from datetime import datetime
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

from meander.app.demo.data import FIELDS, Flights, load, unpack
from meander.app.measurement.open_loop import Measured

PARTITIONS = 4


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("table"))


@pytest.fixture(scope="module")
def records(table: Path) -> Flights:
    return load(table, PARTITIONS)


def test_every_row_of_the_table_is_one_record(table: Path, records: Flights) -> None:
    numbers = {"minute", "flight", "arr_delay", "distance"}

    def value_of(name: str, text: str) -> object:
        if text == "NA":
            return None
        return int(text) if name in numbers else text

    fields = itemgetter(*FIELDS)
    with table.open() as opened:
        header, *lines = csv.reader(opened)
    columns = dict(zip(header, zip(*lines, strict=True), strict=True))
    typed = [[value_of(name, text) for text in columns[name]] for name in FIELDS]
    rows = Counter(zip(*typed, strict=True))
    produced = Counter(fields(json.loads(value)) for value in records.values)
    assert rows.total() == 336_776
    assert produced == rows


def test_records_are_in_the_order_of_scheduled_departure(records: Flights) -> None:
    assert bool((np.diff(records.times) >= 0).all())
    for at in (0, 100_000, len(records) - 1):
        flight = json.loads(records.values[at])
        hour = datetime.fromisoformat(flight["time_hour"]).timestamp() * 1000
        assert records.times[at] == hour + flight["minute"] * 60_000


def test_rows_of_one_minute_keep_the_order_of_the_table(tmp_path: Path, table: Path) -> None:
    with table.open() as opened:
        header, row = opened.readline(), opened.readline()
    numbered = [row.replace(",1545,", f",{number},") for number in range(50)]
    same = tmp_path / "same.csv"
    same.write_text(header + "".join(numbered))
    flights = [json.loads(value)["flight"] for value in load(same, PARTITIONS).values]
    assert flights == list(range(50))


def test_one_plane_lies_in_one_partition_and_every_partition_gets_work(records: Flights) -> None:
    placed = set(zip(records.keys, records.partitions.tolist(), strict=True))
    assert len(placed) == len({key for key, _ in placed})
    share = np.bincount(records.partitions, minlength=PARTITIONS) / len(records)
    assert share.min() > 0.15


def test_missing_values_are_kept_as_missing(records: Flights) -> None:
    flights = [json.loads(value) for value in records.values]
    assert sum(flight["tailnum"] is None for flight in flights) == 2_512
    assert records.keys.count(b"(none)") == 2_512
    assert sum(flight["arr_delay"] is None for flight in flights) == 9_430


def test_an_incomplete_table_is_unpacked_again(tmp_path: Path) -> None:
    whole = unpack(tmp_path)
    size = whole.stat().st_size
    whole.write_text("cut off")
    assert unpack(tmp_path).stat().st_size == size


def test_what_is_sent_is_the_flight_with_its_time_in_its_partition(records: Flights) -> None:
    sent = [*itertools.islice(records.records(itertools.repeat(0.0)), 50)]
    assert [one.value for one in sent] == records.values[:50]
    assert [one.key for one in sent] == records.keys[:50]
    assert [one.partition for one in sent] == records.partitions[:50].tolist()
    assert [one.headers for one in sent] == [[("time", b"%d" % at)] for at in records.times[:50]]


def test_a_flight_has_the_latency_of_the_last_of_its_two_results(records: Flights) -> None:
    due = np.arange(3.0)
    first, second, third = records.identities()[:3].tolist()
    identities = np.array([third, first, second, first, 1 << 60], np.int64)
    measured = Measured(due, identities, np.array([2.5, 0.1, 1.2, 0.3, 9.0]))
    took = records.timeline(measured).took
    assert took[0] == pytest.approx(300)
    assert np.isnan(took[1:]).all(), "one result of two is none, and a stray counts for nothing"
