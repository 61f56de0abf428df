"""The demo's oracle: Spark SQL computes every result of the flow from the source and compares.

Guarantees that the source topic holds the table row for row; that each record of it has exactly one
result on both results topics, with the values that window functions give in the order that the
results' own headers name; that times are monotone per partition and never before the record's own;
and that each result came from the worker that owned the key's bin at that time. The oracle shares
no code with the flow or the engine but the hash that places keys into bins. Cost: about 30
CPU-seconds for the year.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession

from meander.connectors.spark.data_source import read_topics
from meander.state.times.time import SEQUENCE_BITS

_FLIGHT = {
    "time_hour": "string", "minute": "bigint", "carrier": "string", "flight": "bigint",
    "tailnum": "string", "origin": "string", "dest": "string", "arr_delay": "bigint",
    "distance": "bigint",
}  # fmt: skip
_PLANE = (
    "tailnum: string, carrier: string, arr_delay: bigint, miles: bigint, flights: bigint, "
    "distance: bigint, missing_delays: bigint, mean_delay: double"
)
_CARRIER = (
    "carrier: string, flights: bigint, distance: bigint, planes: bigint, furthest: bigint, "
    "missing_delays: bigint, mean_delay: double"
)
_CAUSE = ", ".join(
    f"`meander.{name}`: bigint"
    for name in ("partition", "offset", "index", "time", "sequence", "worker")
)
_TOPICS = {
    "source": "partition int, offset bigint, headers struct<time: bigint>, value struct<"
    + ", ".join(f"{name}: {kind}" for name, kind in _FLIGHT.items()) + ">",
    "planes": f"headers struct<{_CAUSE}>, value struct<{_PLANE}>",
    "carriers": f"headers struct<{_CAUSE}>, value struct<{_CARRIER}>",
}  # fmt: skip
_RESULTS = f"""
SELECT CAST(headers.`meander.partition` AS int) AS partition, headers.`meander.offset` AS offset,
       headers.`meander.index` AS index,
       shiftleft(headers.`meander.time`, {SEQUENCE_BITS}) + headers.`meander.sequence` AS time,
       headers.`meander.worker` AS worker, value
FROM demo_{{topic}}
"""
_VIEWS = {
    "table": "SELECT struct("
    + ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in _FLIGHT.items())
    + ") AS value FROM demo_csv",
    "flights": "SELECT partition, offset, headers.time AS millis, value FROM demo_source",
    "plane_results": _RESULTS.format(topic="planes"),
    "carrier_results": _RESULTS.format(topic="carriers"),
    "answered": """
SELECT /*+ SHUFFLE_HASH(r) */ f.partition, f.offset, f.millis, f.value AS flight,
       r.time AS answered, r.worker, r.value AS result
FROM demo_flights f FULL OUTER JOIN demo_plane_results r
  ON r.partition = f.partition AND r.offset = f.offset AND r.index = 0
""",
    # A record without a result has no logical time of its own; the greatest time read so far in
    # its partition stands in, so that one lost result is one difference and not thousands.
    # `first` is false for a record's second result, and for results without a record.
    "timed": f"""
SELECT *, coalesce(answered, reached) AS time, if(first, flight, NULL) AS counted
FROM (SELECT *, shiftleft(max(millis) OVER so_far, {SEQUENCE_BITS}) AS reached,
             max(answered) OVER earlier AS before,
             coalesce(offset > coalesce(max(offset) OVER earlier, -1), false) AS first
      FROM demo_answered
      WINDOW so_far AS (PARTITION BY partition ORDER BY offset, answered
                        ROWS UNBOUNDED PRECEDING),
             earlier AS (PARTITION BY partition ORDER BY offset, answered
                         ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
""",
    "expected_planes": """
SELECT partition, offset, first, time, reached, before, answered, worker, result.tailnum AS key,
       expected, result <=> expected AS equal
FROM (SELECT *, if(partition IS NULL, NULL, named_struct(
               'tailnum', plane,
               'carrier', flight.carrier,
               'arr_delay', flight.arr_delay,
               'miles', flight.distance,
               'flights', count(counted) OVER so_far,
               'distance', sum(counted.distance) OVER so_far,
               'missing_delays',
               count(counted) OVER so_far - count(counted.arr_delay) OVER so_far,
               'mean_delay', avg(counted.arr_delay) OVER so_far)) AS expected
      FROM (SELECT *, coalesce(flight.tailnum, '(none)') AS plane FROM demo_timed)
      WINDOW so_far AS (PARTITION BY plane ORDER BY time, partition, offset
                        ROWS UNBOUNDED PRECEDING))
""",
    "expected_carrier_values": """
SELECT partition, offset, time, named_struct(
         'carrier', expected.carrier,
         'flights', count(*) OVER so_far,
         'distance', sum(expected.miles) OVER so_far,
         'planes', count_if(expected.flights = 1 AND known) OVER so_far,
         'furthest', coalesce(max(if(known, expected.distance, NULL)) OVER so_far, 0),
         'missing_delays', count(*) OVER so_far - count(expected.arr_delay) OVER so_far,
         'mean_delay', avg(expected.arr_delay) OVER so_far) AS expected
FROM (SELECT *, expected.tailnum <> '(none)' AS known FROM demo_expected_planes WHERE first)
WINDOW so_far AS (PARTITION BY expected.carrier ORDER BY time, partition, offset
                  ROWS UNBOUNDED PRECEDING)
""",
    "expected_carriers": """
SELECT /*+ SHUFFLE_HASH(e) */ r.time AS answered, r.worker, r.value.carrier AS key, e.expected,
       r.value <=> e.expected AND r.time <=> e.time AS equal
FROM demo_carrier_results r FULL OUTER JOIN demo_expected_carrier_values e
  ON r.partition = e.partition AND r.offset = e.offset AND r.index = 0
""",
}
"""Each view is `demo_` and its name, and builds on those before it."""
_KEPT = ("flights", "expected_planes")
"""The views that are read twice."""
# Equal rows and records are counted, not merged.
_UNPAIRED = """
SELECT coalesce(sum(abs(unpaired)), 0)
FROM (SELECT sum(side) AS unpaired
      FROM (SELECT value, 1 AS side FROM demo_table
            UNION ALL SELECT value, -1 AS side FROM demo_flights)
      GROUP BY value)
"""
# One row per result, and one per record without a result.
_COMPARED = """
SELECT coalesce(key, '') AS key, coalesce(answered, -1) AS time, coalesce(worker, -1) AS worker,
       answered IS NULL AS missing, expected IS NULL AS unexpected, NOT equal AS differing{more}
FROM demo_expected_{topic}
"""
_TOTALS = {
    "records": "true",
    "late_adjusted": "time > reached",
    "early": "time < reached",
    "backwards": "time < before",
    "missing_tailnums": "expected.tailnum = '(none)'",
    "missing_delays": "expected.arr_delay IS NULL",
}
"""What is counted over the records of the source."""
_MORE = "".join(f", coalesce(first AND {what}, false) AS {name}" for name, what in _TOTALS.items())


@dataclass(frozen=True, slots=True)
class Move:
    """A move of bin `bin` from worker `old` to worker `new` at logical time `time`."""

    bin: int
    old: int
    new: int
    time: int


MovedBin = TypedDict(
    "MovedBin",
    {
        "bin": int, "from": int, "to": int, "at": int, "before_by_old": int, "after_by_new": int,
        "by_others": int,
    },
)  # fmt: skip
"""A moved bin, and how many results the old worker gave before its time, the new one after."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison of one results topic with the oracle, in records."""

    results: int
    missing: int
    unexpected: int
    doubled: int
    differing: int

    @property
    def differences(self) -> int:
        """All that is not exactly right."""
        return self.missing + self.unexpected + self.doubled + self.differing

    def faults(self, which: str) -> dict[str, int]:
        """Return how many results have each fault, by the words for it."""
        return {
            f"results {which} are missing": self.missing,
            f"results {which} belong to no record": self.unexpected,
            f"results {which} are doubled": self.doubled,
            f"results {which} differ from Spark SQL's": self.differing,
        }


@dataclass(frozen=True, slots=True)
class Findings:
    """What the oracle found."""

    records: int
    rows_differing: int
    """Rows of the table and records of the source topic that have no partner."""
    planes: Compared
    carriers: Compared
    late_adjusted: int
    early: int
    backwards: int
    missing_tailnums: int
    missing_delays: int
    moved: list[MovedBin]
    """Per move of a bin that holds keys."""
    strays: int
    """Results of any bin, moved or not, by another worker than its owner at that time."""

    @property
    def results(self) -> int:
        """Records on both results topics."""
        return self.planes.results + self.carriers.results

    @property
    def differences(self) -> int:
        """Records that are not exactly right, over all three topics."""
        return self.rows_differing + self.planes.differences + self.carriers.differences

    def faults(self) -> list[str]:
        """Return one sentence per fault; [] when all holds."""
        idle = [one for one in self.moved if 0 in (one["before_by_old"], one["after_by_new"])]
        counts = {
            "rows of the table or records of the source topic have no partner": self.rows_differing,
            **self.planes.faults("per plane"),
            **self.carriers.faults("per carrier"),
            "records have a logical time before their own": self.early,
            "records have a logical time before their partition's": self.backwards,
            "results were answered by a worker that did not own the bin": self.strays,
            "moved bins answered nothing before, or nothing after their move": len(idle),
        }
        return [f"{count} {what}" for what, count in counts.items() if count]


def check(
    spark: SparkSession,
    settings: dict[str, str],
    topics: tuple[str, str, str],
    table: Path,
    owners: Sequence[int],
    moves: Sequence[Move],
    bin_of: Callable[[str], int],
) -> Findings:
    """Compare all of the three topics (source, per plane, per carrier) with `table`.

    `owners` names each bin's worker before the first move. Raises what Spark raises when a topic
    cannot be read, or a record of it does not look like the demo's.
    """
    frames = {"csv": spark.read.csv(str(table), header=True, nullValue="NA")}
    for topic, (name, columns) in zip(topics, _TOPICS.items(), strict=True):
        frames[name] = read_topics(spark, [topic], settings, columns)
    try:
        for name, frame in frames.items():
            frame.createOrReplaceTempView(f"demo_{name}")
        for name, sql in _VIEWS.items():
            spark.sql(sql).createOrReplaceTempView(f"demo_{name}")
        for name in _KEPT:
            spark.catalog.cacheTable(f"demo_{name}")
        ((unpaired,),) = spark.sql(_UNPAIRED).collect()
        planes, carriers = (
            spark.sql(_COMPARED.format(topic=topic, more=more)).toArrow().to_pandas()
            for topic, more in (("planes", _MORE), ("carriers", ""))
        )
    finally:
        for name in (*frames, *_VIEWS):
            spark.catalog.dropTempView(f"demo_{name}")
    totals = {name: int(planes[name].sum()) for name in _TOTALS}
    moved, strays = _ownership(pd.concat([planes, carriers]), owners, moves, bin_of)
    return Findings(
        rows_differing=unpaired, planes=_compared(planes, totals["records"]),
        carriers=_compared(carriers, totals["records"]), moved=moved, strays=strays, **totals,
    )  # fmt: skip


def _compared(found: pd.DataFrame, records: int) -> Compared:
    missing, unexpected = int(found.missing.sum()), int(found.unexpected.sum())
    results = len(found) - missing
    # A record with two results was joined with both.
    doubled = (results - unexpected) - (records - missing)
    differing = found.differing & ~found.missing & ~found.unexpected
    return Compared(results, missing, unexpected, doubled, int(differing.sum()))


def _ownership(
    found: pd.DataFrame,
    owners: Sequence[int],
    moves: Sequence[Move],
    bin_of: Callable[[str], int],
) -> tuple[list[MovedBin], int]:
    """Return the results of each moved bin that holds keys, and the number of strays."""
    found = found[~found.missing]
    bins = found.key.map({key: bin_of(key) for key in found.key.unique()}).to_numpy()
    times, owner = found.time.to_numpy(), np.array(owners)[bins]
    ordered = sorted(moves, key=lambda move: (move.time, move.bin))
    for move in ordered:
        owner[(bins == move.bin) & (times >= move.time)] = move.new
    right = owner == found.worker.to_numpy()
    moved: list[MovedBin] = []
    for move in ordered:
        if move.bin not in bins:
            continue
        others = [one.time for one in moves if one.bin == move.bin]
        mine = (bins == move.bin) & (
            times < min((t for t in others if t > move.time), default=np.inf)
        )
        mine &= times >= max((time for time in others if time < move.time), default=0)
        before, after, stray = (
            int(np.count_nonzero(mine & some))
            for some in (right & (times < move.time), right & (times >= move.time), ~right)
        )
        moved.append({
            "bin": move.bin, "from": move.old, "to": move.new, "at": move.time,
            "before_by_old": before, "after_by_new": after, "by_others": stray,
        })  # fmt: skip
    return moved, int(np.count_nonzero(~right))
