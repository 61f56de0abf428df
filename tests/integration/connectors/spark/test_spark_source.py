"""The Spark data source reads exactly the committed records between two offsets, in parallel."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from meander.connectors.spark.data_source import read_topics
from tests.support.kafka.topics import Headers, Record, create_topic, produce


def test_every_column_arrives_as_it_was_sent(
    spark: SparkSession, bootstrap: str, prefix: str
) -> None:
    topic = f"{prefix}columns"
    create_topic(bootstrap, topic, 2)
    full = Record(b"v", b"k", 1, 1_234, [("a", b"1"), ("b", None), ("a", b"2")])
    produce(bootstrap, topic, [full, Record(None, None, 0, 5_678)])

    settings = {"bootstrap.servers": bootstrap}
    frame = read_topics(spark, [topic], settings)
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS millis").orderBy("partition").collect()

    assert [(r.topic, r.partition, r.offset, r.millis) for r in rows] == [
        (topic, 0, 0, 5_678),
        (topic, 1, 0, 1_234),
    ]
    assert [(r.key, r.value) for r in rows] == [(None, None), (b"k", b"v")]
    assert [r.headers for r in rows] == [{}, {"a": b"2", "b": None}], "the last of a name is kept"


def test_a_topic_is_read_by_one_task_per_partition(
    spark: SparkSession, bootstrap: str, prefix: str
) -> None:
    topic = f"{prefix}parallel"
    create_topic(bootstrap, topic, 4)
    produce(bootstrap, topic, (Record(b"%d" % n, partition=n % 3) for n in range(30_000)))

    frame = read_topics(spark, [topic], {"bootstrap.servers": bootstrap})

    assert frame.rdd.getNumPartitions() == 4
    counted = frame.selectExpr("count(*)", "count(DISTINCT string(value))").first()
    assert counted is not None
    assert tuple(counted) == (30_000, 30_000)


def test_markers_and_aborted_records_at_the_end_do_not_hold_up_a_read(
    spark: SparkSession, bootstrap: str, prefix: str
) -> None:
    topic = f"{prefix}transactions"
    create_topic(bootstrap, topic)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{prefix}writer"})
    producer.init_transactions(10)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, str(number))
        assert producer.flush(10) == 0
        end(10)

    rows = read_topics(spark, [topic], {"bootstrap.servers": bootstrap}).collect()

    assert [(r.offset, r.value) for r in rows] == [(0, b"0")]


def test_what_is_appended_after_planning_is_not_read(
    spark: SparkSession, bootstrap: str, prefix: str
) -> None:
    topic = f"{prefix}bounded"
    create_topic(bootstrap, topic)
    produce(bootstrap, topic, [Record(b"before")])
    planned = read_topics(spark, [topic], {"bootstrap.servers": bootstrap}).rdd
    assert planned.getNumPartitions() == 1
    produce(bootstrap, topic, [Record(b"after")])
    assert [row.value for row in planned.collect()] == [b"before"]


def test_json_values_become_columns(spark: SparkSession, bootstrap: str, prefix: str) -> None:
    topic = f"{prefix}json"
    create_topic(bootstrap, topic)
    values = (b'{"a":1,"b":"x","c":0.1,"d":[]}', b'{"b":null,\n"c":2}', None)
    produce(bootstrap, topic, [Record(value) for value in values])
    settings = {"bootstrap.servers": bootstrap}

    columns = "offset bigint, value struct<a: bigint, b: string, c: double>"
    frame = read_topics(spark, [topic], settings, columns)

    assert frame.columns == ["offset", "value"], "nothing else is read"
    rows = frame.selectExpr("offset", "value IS NULL AS missing", "value.*").collect()
    assert sorted(map(tuple, rows)) == [
        (0, False, 1, "x", 0.1),
        (1, False, None, None, 2.0),
        (2, True, None, None, None),
    ]


def test_headers_become_numbers(spark: SparkSession, bootstrap: str, prefix: str) -> None:
    topic = f"{prefix}headers"
    create_topic(bootstrap, topic)
    least, name = str(-(2**63)), "a.number"
    headers: list[Headers] = [
        [(name, "7"), ("other", b"x"), (name, "8")],
        [("n", "0"), (name, least)],
        [(name, None)],
        [],
    ]
    produce(bootstrap, topic, [Record(None, headers=one) for one in headers])

    columns = f"headers struct<`{name}`: bigint, n: bigint>"
    frame = read_topics(spark, [topic], {"bootstrap.servers": bootstrap}, columns)

    rows = frame.select("headers.*").collect()
    assert [tuple(row) for row in rows] == [(8, None), (int(least), 0), (None, None), (None, None)]


@pytest.mark.parametrize("value", [b"no JSON", b'{"a":"text"}', b'{"a":1}{"a":2}', b""])
def test_what_is_no_such_json_fails_the_query(
    value: bytes, spark: SparkSession, bootstrap: str, prefix: str
) -> None:
    topic = f"{prefix}no-json"
    create_topic(bootstrap, topic)
    produce(bootstrap, topic, [Record(b'{"a":1}'), Record(value)])
    settings = {"bootstrap.servers": bootstrap}
    frame = read_topics(spark, [topic], settings, "value struct<a: bigint>")
    with pytest.raises(PySparkException, match="a value is no JSON object with these fields"):
        frame.collect()


@pytest.mark.parametrize("text", ["x", "", "1.5", str(2**63)])
def test_a_header_that_is_no_number_fails_the_query(
    text: str, spark: SparkSession, bootstrap: str, prefix: str
) -> None:
    topic = f"{prefix}no-number"
    create_topic(bootstrap, topic)
    produce(bootstrap, topic, [Record(None, headers=[("n", text)])])
    settings = {"bootstrap.servers": bootstrap}
    frame = read_topics(spark, [topic], settings, "headers struct<n: bigint>")
    with pytest.raises(PySparkException, match="header 'n' of a record is no number"):
        frame.collect()


@pytest.mark.parametrize(
    "column", ["when timestamp", "offset int", "value string", "headers struct<n: string>"]
)
def test_columns_that_there_are_not_are_refused(
    column: str, spark: SparkSession, bootstrap: str, prefix: str
) -> None:
    create_topic(bootstrap, f"{prefix}columns")
    settings = {"bootstrap.servers": bootstrap}
    with pytest.raises(PySparkException, match=f"there is no column '{column.split()[0]}' of type"):
        read_topics(spark, [f"{prefix}columns"], settings, column).collect()


def test_an_empty_topic_has_no_rows(spark: SparkSession, bootstrap: str, prefix: str) -> None:
    create_topic(bootstrap, f"{prefix}empty", 3)
    frame = read_topics(spark, [f"{prefix}empty"], {"bootstrap.servers": bootstrap})
    assert frame.collect() == []


def test_a_missing_topic_is_named(spark: SparkSession, bootstrap: str, prefix: str) -> None:
    with pytest.raises(PySparkException, match=f"topic '{prefix}nowhere'"):
        read_topics(spark, [f"{prefix}nowhere"], {"bootstrap.servers": bootstrap}).collect()
