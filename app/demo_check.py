"""The demo's oracle: Spark SQL recomputes every answer of the flow and compares.

Guarantees that what it calls equal is equal record for record: the source topic holds the package's
table row for row; every record of the source has exactly one result in both results topics; each
result's values are what window functions over the source give in the order that the results' own
headers name; times are monotone per partition and never before the record's own; every result
was answered by the worker that owned the key's bin at that time. It shares no code with the flow
or the engine but the hash that places keys into bins. Cost: each topic is read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from app.demo_data import FIELDS
from connectors.spark import read_topics
from state.time import SEQUENCE_BITS

_FLIGHT = (
    "time_hour string, minute bigint, carrier string, flight bigint, tailnum string, "
    "origin string, dest string, arr_delay bigint, distance bigint"
)
_TABLE = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay bigint, "
    "arr_time int, sched_arr_time int, arr_delay bigint, carrier string, flight bigint, "
    "tailnum string, origin string, dest string, air_time bigint, distance bigint, hour int, "
    "minute bigint, time_hour string"
)
_PLANE = (
    "tailnum string, carrier string, arr_delay bigint, miles bigint, flights bigint, "
    "distance bigint, missing_delays bigint, mean_delay double"
)
_CARRIER = (
    "carrier string, flights bigint, distance bigint, planes bigint, furthest bigint, "
    "missing_delays bigint, mean_delay double"
)

# The running aggregates, as Spark SQL sees them. A record without a result has no logical time of
# its own; the greatest time read so far in its partition stands in, so that one lost result is
# one difference and not thousands.
_EXPECTED_PLANES = f"""
SELECT partition, offset, greatest, plane AS tailnum, carrier, arr_delay, distance AS miles, time,
       count(*) OVER so_far AS flights,
       sum(distance) OVER so_far AS distance,
       count(*) OVER so_far - count(arr_delay) OVER so_far AS missing_delays,
       avg(arr_delay) OVER so_far AS mean_delay
FROM (SELECT /*+ SHUFFLE_HASH(r) */ f.*, coalesce(tailnum, '(none)') AS plane,
             coalesce(r.time, shiftleft(f.greatest, {SEQUENCE_BITS})) AS time
      FROM demo_flights f
      LEFT JOIN (SELECT partition, offset, min(time) AS time FROM demo_planes GROUP BY ALL) r
      USING (partition, offset))
WINDOW so_far AS (PARTITION BY plane ORDER BY time, partition, offset ROWS UNBOUNDED PRECEDING)
"""
_EXPECTED_CARRIERS = """
SELECT partition, offset, time, carrier,
       count(*) OVER so_far AS flights,
       sum(miles) OVER so_far AS distance,
       count_if(flights = 1 AND tailnum <> '(none)') OVER so_far AS planes,
       coalesce(max(if(tailnum <> '(none)', distance, NULL)) OVER so_far, 0) AS furthest,
       count(*) OVER so_far - count(arr_delay) OVER so_far AS missing_delays,
       avg(arr_delay) OVER so_far AS mean_delay
FROM demo_expected_planes
WINDOW so_far AS (PARTITION BY carrier ORDER BY time, partition, offset ROWS UNBOUNDED PRECEDING)
"""
# Every column of a result that the check knows, its time among them, must equal the oracle's. All
# is counted per bin and span of time with one owner; what has no result has neither.
_COMPARE = """
SELECT /*+ SHUFFLE_HASH(e), BROADCAST(k), BROADCAST(o) */ o.bin, o.since,
       count(r.offset) AS results,
       count_if(r.offset IS NULL) AS missing,
       count_if(e.offset IS NULL) AS unexpected,
       count_if(r.offset IS NOT NULL AND e.offset IS NOT NULL AND NOT ({equal})) AS differing,
       count_if(r.offset IS NOT NULL AND NOT r.worker <=> o.worker) AS strayed
FROM demo_{name} r
FULL OUTER JOIN demo_expected_{name} e
  ON r.partition = e.partition AND r.offset = e.offset AND r.index = 0
LEFT JOIN demo_keys k ON k.key = r.{key}
LEFT JOIN demo_owners o ON o.bin = k.bin AND r.time >= o.since AND r.time < o.upto
GROUP BY ALL
"""
_TIMES = f"""
SELECT count(*) AS records,
       count_if(time > shiftleft(greatest, {SEQUENCE_BITS})) AS bumped,
       count_if(time < shiftleft(greatest, {SEQUENCE_BITS})) AS early,
       count_if(time < before) AS backwards,
       count_if(tailnum = '(none)') AS missing_tailnums,
       count_if(arr_delay IS NULL) AS missing_delays
FROM (SELECT *, lag(time) OVER (PARTITION BY partition ORDER BY offset) AS before
      FROM demo_expected_planes)
"""
_KEYS = """
SELECT DISTINCT coalesce(tailnum, '(none)') AS key FROM demo_flights
UNION SELECT DISTINCT carrier FROM demo_flights
"""
_FOREVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Move:
    """Bin `bin` went from worker `old` to `new` at logical time `time`."""

    bin: int
    old: int
    new: int
    time: int


@dataclass(frozen=True, slots=True)
class Answered:
    """Results of one moved bin: before its time by the old worker, from it on by the new one."""

    move: Move
    before: int
    after: int
    by_others: int


@dataclass(frozen=True, slots=True)
class Compared:
    """One results topic against the oracle, in records."""

    results: int
    missing: int
    unexpected: int
    doubled: int
    differing: int

    @property
    def differences(self) -> int:
        """All that is not exactly right."""
        return self.missing + self.unexpected + self.doubled + self.differing


@dataclass(frozen=True, slots=True)
class Findings:
    """What the check saw."""

    records: int
    rows_differing: int
    """Rows of the package's table and records of the source topic that have no partner."""
    planes: Compared
    carriers: Compared
    bumped: int
    early: int
    backwards: int
    missing_tailnums: int
    missing_delays: int
    answered: list[Answered]
    """Per move of a bin that holds keys."""
    strays: int
    """Results of any bin, moved or not, by another worker than its owner at that time."""

    @property
    def results(self) -> int:
        """Records in both results topics."""
        return self.planes.results + self.carriers.results

    @property
    def differences(self) -> int:
        """Records that are not exactly right, over all three topics."""
        return self.rows_differing + self.planes.differences + self.carriers.differences

    def faults(self) -> list[str]:
        """One sentence per thing that is wrong; [] when all holds."""
        idle = [a for a in self.answered if a.before == 0 or a.after == 0]
        counts = {
            "rows of the table or records of the source topic have no partner": self.rows_differing,
            **_sentences("per plane", self.planes),
            **_sentences("per carrier", self.carriers),
            "records have a logical time before their own": self.early,
            "records have a logical time before their partition's": self.backwards,
            "results were answered by a worker that did not own the bin": self.strays,
            "moved bins answered nothing before, or nothing after their move": len(idle),
        }
        return [f"{count} {what}" for what, count in counts.items() if count]


def _sentences(which: str, compared: Compared) -> dict[str, int]:
    return {
        f"results {which} are missing": compared.missing,
        f"results {which} belong to no record": compared.unexpected,
        f"results {which} are doubled": compared.doubled,
        f"results {which} differ from Spark SQL's": compared.differing,
    }


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
    cannot be read or a record is no JSON.
    """
    source, planes, carriers = topics
    # Two at a time: what Spark plans or compiles keeps one core busy, and leaves the other idle.
    with _cached(spark) as view, ThreadPoolExecutor(1) as beside:
        view("flights", _source(read_topics(spark, [source], settings, _FLIGHT)), True)
        rows_differing = beside.submit(_rows_differing, spark, table)
        view("planes", _results(read_topics(spark, [planes], settings, _PLANE)), True)
        view("carriers", _results(read_topics(spark, [carriers], settings, _CARRIER)), False)
        view("expected_planes", spark.sql(_EXPECTED_PLANES), True)
        view("expected_carriers", spark.sql(_EXPECTED_CARRIERS), False)
        keys = [(row.key, bin_of(row.key)) for row in spark.sql(_KEYS).collect()]
        view("keys", spark.createDataFrame(keys, "key string, bin int"), False)
        spans = _spans(owners, moves)
        columns = "bin int, since bigint, upto bigint, worker int"
        view("owners", spark.createDataFrame(spans, columns), False)

        times = spark.sql(_TIMES).first()
        assert times is not None, "an aggregate without groups has one row"
        found_planes = _compare(spark, "planes", "tailnum", _PLANE)
        found_carriers = _compare(spark, "carriers", "carrier", _CARRIER)
        found = [*found_planes, *found_carriers]
        return Findings(
            rows_differing=rows_differing.result(),
            planes=_compared(found_planes, times.records),
            carriers=_compared(found_carriers, times.records),
            answered=_answered(found, moves),
            strays=sum(row.strayed for row in found),
            **times.asDict(),
        )


@contextmanager
def _cached(spark: SparkSession) -> Iterator[Callable[[str, DataFrame, bool], None]]:
    """Names frames for SQL and caches some of them; forgets them all at the end."""
    names: list[str] = []

    def view(name: str, frame: DataFrame, cache: bool) -> None:
        names.append(f"demo_{name}")
        frame.createOrReplaceTempView(names[-1])
        if cache:
            spark.catalog.cacheTable(names[-1])

    try:
        yield view
    finally:
        for name in names:
            spark.catalog.uncacheTable(name)
            spark.catalog.dropTempView(name)


def _header(name: str) -> str:
    return f"CAST(CAST(headers['{name}'] AS string) AS bigint)"


def _source(topic: DataFrame) -> DataFrame:
    typed = topic.selectExpr(
        "partition",
        "offset",
        f"max({_header('time')}) OVER (PARTITION BY partition ORDER BY offset) AS greatest",
        "value",
    )
    return typed.select("partition", "offset", "greatest", "value.*")


def _results(topic: DataFrame) -> DataFrame:
    typed = topic.selectExpr(
        f"CAST({_header('meander.partition')} AS int) AS partition",
        f"{_header('meander.offset')} AS offset",
        f"{_header('meander.index')} AS index",
        f"{_header('meander.time')} AS time",
        f"{_header('meander.worker')} AS worker",
        "value",
    )
    return typed.select("partition", "offset", "index", "time", "worker", "value.*")


def _rows_differing(spark: SparkSession, table: Path) -> int:
    """Rows and records without a partner; equal ones are counted, not merged."""
    raw = spark.read.csv(str(table), schema=_TABLE, header=True, nullValue="NA", mode="FAILFAST")
    both = raw.select(*FIELDS, sf.lit(1).alias("side")).unionByName(
        spark.table("demo_flights").select(*FIELDS, sf.lit(-1).alias("side"))
    )
    unpaired = both.groupBy(*FIELDS).agg(sf.abs(sf.sum("side")).alias("unpaired"))
    row = unpaired.agg(sf.coalesce(sf.sum("unpaired"), sf.lit(0))).first()
    assert row is not None, "an aggregate without groups has one row"
    return int(row[0])


def _compare(spark: SparkSession, name: str, key: str, columns: str) -> list[Row]:
    compared = ["time", *(column.split()[0] for column in columns.split(", "))]
    equal = " AND ".join(f"r.{column} <=> e.{column}" for column in compared)
    return spark.sql(_COMPARE.format(name=name, key=key, equal=equal)).collect()


def _compared(found: list[Row], records: int) -> Compared:
    results, missing, unexpected, differing = (
        sum(row[what] for row in found)
        for what in ("results", "missing", "unexpected", "differing")
    )
    # A record with two results was joined with both.
    doubled = (results - unexpected) - (records - missing)
    return Compared(results, missing, unexpected, doubled, differing)


def _spans(owners: Sequence[int], moves: Sequence[Move]) -> list[tuple[int, int, int, int]]:
    """(bin, since, upto, worker): who owns a bin when."""
    spans: list[tuple[int, int, int, int]] = []
    for number, first in enumerate(owners):
        mine = sorted((m for m in moves if m.bin == number), key=lambda move: move.time)
        starts = [(0, first), *((move.time, move.new) for move in mine)]
        ends = [*(since for since, _ in starts[1:]), _FOREVER]
        spans += [
            (number, since, upto, worker)
            for (since, worker), upto in zip(starts, ends, strict=True)
        ]
    return spans


def _answered(found: list[Row], moves: Sequence[Move]) -> list[Answered]:
    """Per move: the span of time that ends with it, and the one that begins with it."""
    right: Counter[tuple[int, int]] = Counter()
    wrong: Counter[tuple[int, int]] = Counter()
    for row in found:
        right[row.bin, row.since] += row.results - row.strayed
        wrong[row.bin, row.since] += row.strayed
    holding = {row.bin for row in found}
    result: list[Answered] = []
    for move in sorted(moves, key=lambda move: (move.time, move.bin)):
        if move.bin in holding:
            earlier = (m.time for m in moves if m.bin == move.bin and m.time < move.time)
            old, new = (move.bin, max(earlier, default=0)), (move.bin, move.time)
            result.append(Answered(move, right[old], right[new], wrong[old] + wrong[new]))
    return result
