"""The demo's oracle: Spark SQL recomputes every answer of the flow and compares.

Guarantees that what it calls equal is equal record for record: the source topic holds the package's
table row for row; every record of the source has exactly one result in both results topics; each
result's values are what window functions over the source give in the order that the results' own
headers name; times are monotone per partition and never before the record's own; every result
was answered by the worker that owned the key's bin at that time. It shares no code with the flow
or the engine but the hash that places keys into bins. Cost: about 28 CPU-seconds for the year.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import csv
from pyspark.sql import DataFrame, Row, SparkSession

from meander.app.demo import views
from meander.connectors.spark.data_source import read_topics

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
    cannot be read, or a record of it does not look like the demo's.
    """
    source, planes, carriers = topics
    raw = spark.read.csv(
        str(table), views.TABLE_COLUMNS, header=True, nullValue="NA", mode="FAILFAST"
    )
    with _views(spark) as view, ThreadPoolExecutor(3) as beside:

        def rows(sql: str) -> list[Row]:
            return spark.sql(sql).collect()

        view("csv", raw)
        view("table", spark.sql(views.TABLE))
        spark.catalog.cacheTable("demo_table")
        # Several at a time: what Spark plans or compiles keeps one core busy, and leaves others
        # idle. The table needs no Python, for which the topics wait at first.
        table_kept = beside.submit(rows, "SELECT count(*) FROM demo_table")
        for name, topic, columns in (
            ("source", source, views.SOURCE_COLUMNS),
            ("planes", planes, views.PLANE_COLUMNS),
            ("carriers", carriers, views.CARRIER_COLUMNS),
        ):
            view(name, read_topics(spark, [topic], settings, columns))
        for name, sql in views.VIEWS.items():
            view(name, spark.sql(sql))
            if name in views.KEPT:
                spark.catalog.cacheTable(f"demo_{name}")
        view("keys", spark.createDataFrame(_keys(table, bin_of)))
        view("owners", spark.createDataFrame(_spans(owners, moves)))

        about_planes = beside.submit(rows, views.PLANE_COUNTS)
        about_carriers = beside.submit(rows, views.CARRIER_COUNTS)
        table_kept.result()
        (unpaired,) = rows(views.ROWS)
        return _findings(unpaired.differing, about_planes.result(), about_carriers.result(), moves)


@contextmanager
def _views(spark: SparkSession) -> Iterator[Callable[[str, DataFrame], None]]:
    """Names frames for SQL; forgets them all, and what is kept of them, at the end."""
    names: list[str] = []

    def view(name: str, frame: DataFrame) -> None:
        names.append(f"demo_{name}")
        frame.createOrReplaceTempView(names[-1])

    try:
        yield view
    finally:
        for name in names:
            spark.catalog.uncacheTable(name)
            spark.catalog.dropTempView(name)


def _keys(table: Path, bin_of: Callable[[str], int]) -> pa.Table:
    """The bin of every key that there may be."""
    wanted = csv.ConvertOptions(include_columns=["tailnum", "carrier"], strings_can_be_null=True)
    rows = csv.read_csv(table, convert_options=wanted)
    found = {key or "(none)" for column in rows.columns for key in column.unique().to_pylist()}
    keys = sorted(found)
    return pa.table({"key": keys, "bin": pa.array(map(bin_of, keys), pa.int32())})


def _findings(
    rows_differing: int, about_planes: list[Row], about_carriers: list[Row], moves: Sequence[Move]
) -> Findings:
    found = [*about_planes, *about_carriers]
    totals = {name: sum(row[name] for row in about_planes) for name in views.TOTALS}
    return Findings(
        rows_differing=rows_differing,
        planes=_compared(about_planes, totals["records"]),
        carriers=_compared(about_carriers, totals["records"]),
        answered=_answered(found, moves),
        strays=sum(row.strayed for row in found),
        **totals,
    )


def _compared(found: list[Row], records: int) -> Compared:
    results, missing, unexpected, differing = (
        sum(row[what] for row in found)
        for what in ("results", "missing", "unexpected", "differing")
    )
    # A record with two results was joined with both.
    doubled = (results - unexpected) - (records - missing)
    return Compared(results, missing, unexpected, doubled, differing)


def _spans(owners: Sequence[int], moves: Sequence[Move]) -> pa.Table:
    """Who owns a bin when."""
    spans: list[dict[str, int]] = []
    for number, first in enumerate(owners):
        mine = sorted((m for m in moves if m.bin == number), key=lambda move: move.time)
        starts = [(0, first), *((move.time, move.new) for move in mine)]
        ends = [*(since for since, _ in starts[1:]), _FOREVER]
        spans += [
            {"bin": number, "since": since, "upto": upto, "worker": worker}
            for (since, worker), upto in zip(starts, ends, strict=True)
        ]
    return pa.Table.from_pylist(spans)


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
