"""The oracle: Spark SQL computes the results of each query in a batch, over the same records.

Guarantees that a run counts only if its topic holds exactly these results, as a multiset. No record
is late, so a window holds all records of its time. Of q4 the last average of each category counts,
as engines may give others before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from benchmarks.nexmark.flink_queries import KEYS, TABLES
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.records import columns_of
from benchmarks.running import WORKERS
from meander.connectors.spark.data_source import read_topics

END = "dateTime - dateTime % {size} + {size}"
SALES = """
    SELECT A.id, A.category, A.seller, A.expires, MAX(B.price) AS price
    FROM auctions A JOIN bids B ON A.id = B.auction
    WHERE B.dateTime BETWEEN A.dateTime AND A.expires
    GROUP BY A.id, A.category, A.seller, A.expires"""
SQL = {
    "q0": "SELECT auction, bidder, price, channel, url, dateTime, extra FROM bids",
    "q1": "SELECT auction, bidder, 0.908D * price AS price, dateTime, extra FROM bids",
    "q2": "SELECT auction, price, dateTime FROM bids WHERE auction % 123 = 0",
    "q3": """SELECT P.name, P.city, P.state, A.id, A.dateTime
        FROM auctions A JOIN persons P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "q4": f"SELECT category, AVG(price) AS price FROM ({SALES}) GROUP BY category",
    "q5": """SELECT auction, num, dateTime FROM (
            SELECT auction, num, dateTime, MAX(num) OVER (PARTITION BY dateTime) AS most FROM (
                SELECT auction, end AS dateTime, COUNT(*) AS num FROM bids
                LATERAL VIEW EXPLODE(SEQUENCE(
                    dateTime - dateTime % {every} + {every},
                    dateTime - dateTime % {every} + {size}, {every})) AS end
                GROUP BY auction, end)
        ) WHERE num = most""",
    "q6": f"""SELECT seller, AVG(price) OVER (
            PARTITION BY seller ORDER BY expires, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
        ) AS price, expires AS dateTime FROM ({SALES})""",
    "q7": f"""SELECT auction, bidder, price, end AS dateTime FROM (
            SELECT *, MAX(price) OVER (PARTITION BY end) AS most
            FROM (SELECT *, {END} AS end FROM bids)
        ) WHERE price = most""",
    "q8": f"""SELECT P.id, P.name, P.end AS dateTime
        FROM (SELECT *, {END} AS end FROM persons) P
        LEFT SEMI JOIN (SELECT *, {END} AS end FROM auctions) A
        ON P.id = A.seller AND P.end = A.end""",
}


class Oracle:
    """The records of a house in Spark's memory."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, prefix: str, windows: tuple[float, float]
    ) -> None:
        self._spark, self._settings = spark, {"bootstrap.servers": bootstrap}
        self._size, self._every = (round(1000 * seconds) for seconds in windows)
        for table, kind in TABLES.items():
            frame = self._read(prefix + table, columns_of(kind)).select("value.*").cache()
            frame.createOrReplaceTempView(table)

    def faults(self, query: str, topic: str) -> str:
        """Say in which way the results on a topic are other than those of a query; '' if not at
        all."""
        columns = columns_of(QUERIES[query].result)
        found = self._read(topic, columns).where("value IS NOT NULL")
        sql = SQL[query].replace("{size}", str(self._size)).replace("{every}", str(self._every))
        expected = self._spark.sql(sql)
        if query in KEYS:
            columns.pop("dateTime")
            found.createOrReplaceTempView("found")
            key, *others = columns
            last = ", ".join(f"MAX_BY(value.{one}, offset) AS {one}" for one in others)
            found = self._spark.sql(
                f"SELECT value.{key} AS {key}, {last} FROM found GROUP BY value.{key}"
            )
        else:
            found = found.select("value.*")
        found, expected = found.select(*columns).cache(), expected.select(*columns).cache()
        missing = expected.exceptAll(found).count()
        unexpected = found.exceptAll(expected).count()
        counts = f"of {expected.count():,} results, {missing:,} are missing"
        expected.unpersist()
        found.unpersist()
        return f"{counts}, and {unexpected:,} are unexpected" if missing or unexpected else ""

    def _read(self, topic: str, columns: dict[str, str]) -> DataFrame:
        fields = ", ".join(f"{name}: {kind}" for name, kind in columns.items())
        return read_topics(
            self._spark, [topic], self._settings, f"offset bigint, value struct<{fields}>"
        )


@contextmanager
def session() -> Iterator[SparkSession]:
    """A session of Spark for the block."""
    builder = SparkSession.builder.master(f"local[{WORKERS}]").appName("nexmark")
    for name, value in {
        "spark.ui.enabled": "false", "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": str(WORKERS), "spark.ui.showConsoleProgress": "false",
    }.items():  # fmt: skip
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
