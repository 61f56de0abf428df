"""The queries of Nexmark in Flink's SQL, over the same topics.

Guarantees that the results of each query are those of Meander's query of the same name, but for
q4: Flink updates an average with each bid, so only the last average of a category is equal, and it
has no time. Its SQL cannot say q6, as its OVER windows refuse rows that change (FLINK-19059).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.records import Auction, Bid, Person, columns_of

TABLES: dict[str, type[Struct]] = {"persons": Person, "auctions": Auction, "bids": Bid}
TIME = ", rowtime TIMESTAMP_LTZ(3) METADATA FROM 'timestamp', WATERMARK FOR rowtime AS rowtime"
"""No record is late, so no watermark is behind."""
EPOCH = "TIMESTAMP '1970-01-01 00:00:00'"
END = (
    f"CAST(TIMESTAMPDIFF(SECOND, {EPOCH}, window_end) AS BIGINT) * 1000"
    " + EXTRACT(MILLISECOND FROM window_end)"
)
COUNTS = """SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM HOP(TABLE bids, DESCRIPTOR(rowtime), INTERVAL '{every}' SECOND(6, 3),
        INTERVAL '{size}' SECOND(6, 3))
    GROUP BY auction, window_start, window_end"""
TUMBLE = "TUMBLE(TABLE {table}, DESCRIPTOR(rowtime), INTERVAL '{{size}}' SECOND(6, 3))"
BIDS, PERSONS, AUCTIONS = (TUMBLE.format(table=table) for table in ("bids", "persons", "auctions"))


SQL = {
    "q0": """
        SELECT auction, bidder, price, channel, url, dateTime, extra FROM bids""",
    "q1": """
        SELECT auction, bidder, 0.908E0 * price, dateTime, extra FROM bids""",
    "q2": """
        SELECT auction, price, dateTime FROM bids WHERE MOD(auction, 123) = 0""",
    "q3": """
        SELECT P.name, P.city, P.state, A.id, GREATEST(P.dateTime, A.dateTime)
        FROM auctions AS A JOIN persons AS P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "q4": """
        SELECT category, AVG(CAST(final AS DOUBLE)), CAST(0 AS BIGINT) FROM (
            SELECT MAX(B.price) AS final, A.category
            FROM auctions AS A JOIN bids AS B ON A.id = B.auction
            WHERE B.dateTime BETWEEN A.dateTime AND A.expires
            GROUP BY A.id, A.category
        ) GROUP BY category""",
    "q5": f"""
        SELECT auction, num, {END.replace("window_end", "C.window_end")}
        FROM ({COUNTS}) AS C JOIN (
            SELECT MAX(num) AS most, window_start, window_end FROM ({COUNTS})
            GROUP BY window_start, window_end
        ) AS M ON C.window_start = M.window_start AND C.window_end = M.window_end
            AND C.num = M.most""",
    "q7": f"""
        SELECT auction, bidder, price, {END.replace("window_end", "B.window_end")}
        FROM (SELECT auction, bidder, price, window_start, window_end FROM {BIDS}) AS B JOIN (
            SELECT MAX(price) AS highest, window_start, window_end FROM {BIDS}
            GROUP BY window_start, window_end
        ) AS M ON B.window_start = M.window_start AND B.window_end = M.window_end
            AND B.price = M.highest""",
    "q8": f"""
        SELECT id, name, {END.replace("window_end", "P.window_end")}
        FROM (
            SELECT id, name, window_start, window_end FROM {PERSONS}
            GROUP BY id, name, window_start, window_end
        ) AS P JOIN (
            SELECT seller, window_start, window_end FROM {AUCTIONS}
            GROUP BY seller, window_start, window_end
        ) AS A ON P.id = A.seller AND P.window_start = A.window_start
            AND P.window_end = A.window_end""",
}  # fmt: skip
KEYS = {"q4": "category"}
"""The column of results of which only the last one counts."""


def statements(
    name: str,
    bootstrap: str,
    prefix: str,
    sink: str,
    size: float,
    every: float,
    *,
    bounded: bool,
) -> Iterator[str]:
    """Yield the statements that define the tables, then the one that runs the query.

    >>> *tables, run = statements("q2", "localhost:9092", "n-", "out", 10, 2, bounded=True)
    >>> len(tables), run.split()[:4]
    (4, ['INSERT', 'INTO', 'results', 'SELECT'])
    """
    kafka = f"'properties.bootstrap.servers' = '{bootstrap}'"
    start = "'scan.startup.mode' = 'earliest-offset'"
    end, linger = (", 'scan.bounded.mode' = 'latest-offset'", 5) if bounded else ("", 0)
    for table, kind in TABLES.items():
        yield (
            f"CREATE TABLE {table} ({_columns(kind)}{TIME}) WITH ('connector' = 'kafka',"
            f" 'topic' = '{prefix}{table}', {kafka}, 'format' = 'json', {start}{end})"
        )
    made, form, key = "kafka", "'format' = 'json'", ""
    if name in KEYS:
        made, key = "upsert-kafka", f", PRIMARY KEY ({KEYS[name]}) NOT ENFORCED"
        form = "'key.format' = 'json', 'value.format' = 'json'"
    yield (
        f"CREATE TABLE results ({_columns(QUERIES[name].result)}{key}) WITH ("
        f"'connector' = '{made}', 'topic' = '{sink}', {kafka}, {form},"
        f" 'properties.linger.ms' = '{linger}')"
    )
    select = SQL[name].replace("{size}", f"{size:g}").replace("{every}", f"{every:g}")
    # Flink reserves the name of this column.
    yield f"INSERT INTO results {select.strip()}".replace("dateTime", "`dateTime`")


def _columns(kind: type[Struct]) -> str:
    return ", ".join(f"`{name}` {type}" for name, type in columns_of(kind).items())
