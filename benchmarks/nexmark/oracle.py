"""The oracle: Spark SQL computes the results of each query in a batch, over the same records.

Guarantees that a run counts only if its topic holds exactly these results, as a multiset. No record
is late, so a window holds all records of its time. Of q4 the last average of each category counts,
as engines may give others before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct
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
                SELECT auction, closes AS dateTime, COUNT(*) AS num FROM bids
                LATERAL VIEW EXPLODE(SEQUENCE(
                    dateTime - dateTime % {every} + {every},
                    dateTime - dateTime % {every} + {size}, {every})) AS closes
                GROUP BY auction, closes)
        ) WHERE num = most""",
    "q6": f"""SELECT seller, AVG(price) OVER (
            PARTITION BY seller ORDER BY expires, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
        ) AS price, expires AS dateTime FROM ({SALES})""",
    "q7": f"""SELECT auction, bidder, price, closes AS dateTime FROM (
            SELECT *, MAX(price) OVER (PARTITION BY closes) AS most
            FROM (SELECT *, {END} AS closes FROM bids)
        ) WHERE price = most""",
    "q8": f"""SELECT P.id, P.name, P.closes AS dateTime
        FROM (SELECT *, {END} AS closes FROM persons) P
        LEFT SEMI JOIN (SELECT *, {END} AS closes FROM auctions) A
        ON P.id = A.seller AND P.closes = A.closes""",
}


def faults(
    spark: SparkSession, bootstrap: str, prefix: str, windows: tuple[float, float], query: str,
    topic: str,
) -> str:  # fmt: skip
    """Say in which way the results on a topic are other than those of a query over the topics with
    a prefix; '' if not at all."""

    def read(name: str, kind: type[Struct]) -> DataFrame:
        fields = ", ".join(f"{column}: {sort}" for column, sort in columns_of(kind).items())
        columns = f"offset bigint, value struct<{fields}>"
        return read_topics(spark, [name], {"bootstrap.servers": bootstrap}, columns)

    result, (size, every) = QUERIES[query].result, windows
    for table in QUERIES[query].reads:
        read(prefix + table, TABLES[table]).select("value.*").createOrReplaceTempView(table)
    sql = SQL[query].replace("{size}", f"{1000 * size:.0f}")
    expected = spark.sql(sql.replace("{every}", f"{1000 * every:.0f}"))
    read(topic, result).where("value IS NOT NULL").createOrReplaceTempView("found")
    columns = [name for name in columns_of(result) if name != "dateTime" or query not in KEYS]
    if query in KEYS:
        key = f"value.{KEYS[query]}"
        last = (f"MAX_BY(value.{name}, offset) AS {name}" for name in columns)
        found = spark.sql(f"SELECT {', '.join(last)} FROM found GROUP BY {key}")
    else:
        found = spark.sql("SELECT value.* FROM found")
    expected, found = (frame.select(*columns).cache() for frame in (expected, found))
    missing, unexpected = expected.exceptAll(found).count(), found.exceptAll(expected).count()
    total = expected.count()
    expected.unpersist()
    found.unpersist()
    if not missing and not unexpected:
        return ""
    return f"of {total:,} results {missing:,} are missing, and {unexpected:,} are unexpected"


@contextmanager
def session() -> Iterator[SparkSession]:
    """A session of Spark for the block."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
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
