"""`meander sql` queries the states and topics of a real flow, while it runs and after its end."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from meander.app.sql.catalog import Catalog
from meander.app.sql.query import SqlQuery
from meander.connectors.topics.internal_topics import topic_names
from meander.schemas.errors import SetupError
from tests.support.kafka.topics import PATIENCE, Record, consume_all, create_topic, produce, until
from tests.support.process.command_here import command_here
from tests.support.process.flow_process import meander

MINUTE = 60_000
Fields = dict[str, Any]
FLOW = """
from dataclasses import dataclass

from meander import Checkpointing, Flow, KafkaSink, KafkaSource, field, tumbling, typed


@dataclass
class View:
    page: str
    at: int


class Reversed:
    name = "reversed"

    def encode(self, state):
        return state[::-1].encode()

    def decode(self, data):
        return data.decode()[::-1]


def add(state, view):
    state = {"seen": state["seen"] + 1, "last": view}
    return state, {"page": view.page, "seen": state["seen"]}


flow = Flow("views", bins=4, checkpoints=Checkpointing(interval=0.5), types=[View])
views = flow.source(KafkaSource("PREFIXviews", value=typed(View), time=field("at")), "views")
by_page = views.key_by(lambda view: view.page)
by_page.fold("totals", lambda: {"seen": 0, "last": None}, add).sink(KafkaSink("PREFIXtotals"))
by_page.fold("backwards", str, lambda state, view: (state + view.page[0], None), codec=Reversed())
minutes = by_page.window("minutes", tumbling(60)).fold(int, lambda count, _: count + 1)
minutes.sink(KafkaSink("PREFIXminutes"))
by_page.fold("recent", int, lambda count, _: (count + 1, None), ttl=3600)
places = flow.table(KafkaSource("PREFIXplaces"), "places", ttl=86_400)
by_page.join(places, name="located")
by_page.join(places, on=lambda view: view.page, copies="everywhere", name="copied")
places.join(places.map(lambda row: row["city"], name="cities"), name="both")
places.join(places, on=lambda row: row["city"], how="left", name="named")
by_page.join(by_page, within=(0, 3600), name="near")
of_minutes = views.collection(lambda view: (view.at // 60_000, view.at, 1), "visits")
of_minutes.count("visits of minutes")
"""


class Asked:
    """What `meander sql` answers about the flow, in the Spark session of the tests."""

    def __init__(self, spark: SparkSession, bootstrap: str, prefix: str, folder: Path) -> None:
        self._spark, self._prefix, self._folder = spark, prefix, folder
        self._settings = {"bootstrap.servers": bootstrap}
        self.module, self.source = folder / "views.py", f"{prefix}views"

    def query(self, flow: Path | None, at: str | None = None) -> SqlQuery:
        """Return a query with views of its own."""
        names = topic_names(self._prefix, "views")
        catalog = Catalog(self._settings, names, "views", flow, at)
        folder = self._folder / uuid4().hex
        folder.mkdir()
        return SqlQuery(self._spark.newSession(), catalog, 100, folder)

    def rows(self, text: str, *, by_name: bool = False, at: str | None = None) -> list[Fields]:
        query = self.query(None if by_name else self.module, at)
        found: list[Fields] = query.run(text.replace("PREFIX", self._prefix), None).to_pylist()
        return found

    def refusal(self, text: str) -> str:
        with pytest.raises(SetupError) as refused:
            self.rows(text)
        said = str(refused.value)
        assert "\n" not in said
        assert "org.apache" not in said
        return said


def view(page: str, at: int) -> Record:
    return Record(json.dumps({"page": page, "at": at}).encode(), timestamp=at)


def place(page: str, city: str) -> Record:
    return Record(json.dumps({"city": city}).encode(), page.encode(), timestamp=500)


def utc(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1000, UTC)


@pytest.fixture
def asked(spark: SparkSession, bootstrap: str, prefix: str, tmp_path: Path) -> Asked:
    found = Asked(spark, bootstrap, prefix, tmp_path)
    found.module.write_text(FLOW.replace("PREFIX", prefix))
    for topic in ("views", "totals", "minutes", "places"):
        create_topic(bootstrap, prefix + topic, 2)
    return found


@pytest.mark.timeout(2 * PATIENCE)
def test_queries_read_the_states_and_topics_of_a_running_flow(
    asked: Asked, bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    records = [view("home", 1000), view("home", 2000), view("help", 3000), Record(b"{")]
    produce(bootstrap, prefix + "views", [*records, view("home", MINUTE + 1)])
    places = {"home": "Bern", "help": "Rome"}
    produce(bootstrap, prefix + "places", [place(*one) for one in places.items()])
    with meander(tmp_path, bootstrap, "run", str(asked.module), "--prefix", prefix) as flow:
        flow.until_event("started")
        until(lambda: len(consume_all(bootstrap, f"{prefix}totals")) == 4, "the results")
        taking = ["checkpoint", "views", "--savepoint", "early", "--prefix", prefix]
        with meander(tmp_path, bootstrap, *taking) as taken:
            assert taken.exit_code() == 0, taken.said
        expect_views(asked)
        until(lambda: asked.rows(STATES) == OF_PAGES, "the newest checkpoint has the states")
        expect_views_by_name(asked, prefix)
        command = ["sql", str(asked.module), "--prefix", prefix, "--at", "early"]
        with meander(tmp_path, bootstrap, *command, "select value.seen from totals") as done:
            assert done.exit_code() == 0, done.said
        assert sorted(one["seen"] for one in done.events) == [1, 3]  # type: ignore[type-var]
        assert "savepoint early" in done.said
        assert flow.process.poll() is None, "a query does no harm to a running flow"


def expect_views(asked: Asked) -> None:
    """Each view of the flow has the rows that its records give, as values of its classes."""
    joined = """
        select s.key, s.value.last.at, max(t.value.seen) as most, min(t.time) as first
        from totals s join `topic:PREFIXtotals` t on s.key = t.value.page
        group by all order by most desc
    """
    assert asked.rows(joined) == [
        {"key": "home", "at": MINUTE + 1, "most": 3, "first": utc(1000)},
        {"key": "help", "at": 3000, "most": 1, "first": utc(3000)},
    ]
    windows = "select m.*, b.value as own from minutes m join backwards b on m.key = b.key"
    (open_window,) = [one for one in asked.rows(windows, at="early") if one["start"] == MINUTE]
    assert open_window == {
        "key": "home", "start": MINUTE, "end": 2 * MINUTE, "value": 1, "error": None, "own": "hhh"
    }  # fmt: skip
    query = asked.query(asked.module)
    read = query.run(f"select value.page, error from `{asked.source}`", None).to_pylist()
    assert Counter(one["page"] for one in read) == {"home": 3, "help": 1, None: 1}
    assert [one["page"] for one in read if one["error"] is not None] == [None]
    assert [one.name for one in query.with_errors] == [asked.source]


STATES = """
    select l.key, l.value.city as located, c.value.city as copied, b.right as both,
           f.foreign_key as named, r.value as n, v.value as visits, w.first
    from located l join copied c using (key) join both b using (key) join recent r using (key)
    join named f using (key)
    join (select key, min(time) as first from near where side = 'left' group by key) w using (key)
    cross join (select value from `visits of minutes` where key = 0 and count = 1) v
    order by l.key
"""
OF_PAGES: list[Fields] = [
    {"key": page, "located": city, "copied": city, "both": city, "named": city, "n": n, "visits": 3,
     "first": utc(at)}
    for page, city, n, at in (("help", "Rome", 1, 3000), ("home", "Bern", 3, 1000))
]  # fmt: skip
"""Joins with a table, of tables and of streams, a fold with a time to live and a collection."""


def expect_views_by_name(asked: Asked, prefix: str) -> None:
    """A flow whose definition is not at hand has views: JSON, and states of plain values."""
    results = "select value.page, value.seen from `PREFIXtotals` where value.seen > 2"
    assert asked.rows(results, by_name=True) == [{"page": "home", "seen": 3}]
    own = asked.rows("select value from backwards where key = 'home'", by_name=True)
    assert own == [{"value": b"hhh"}]
    copied = asked.rows("select key, value.city from copied order by key", by_name=True)
    assert copied == [{"key": "help", "city": "Rome"}, {"key": "home", "city": "Bern"}]
    unknown = asked.rows("select error from totals limit 1", by_name=True)
    assert "the flow names no type 'View'" in str(unknown)


def test_a_statement_that_is_no_query_is_refused(asked: Asked, tmp_path: Path) -> None:
    for statement in (
        "create table t (a int)", "create view t as select 1", "insert into t select 1",
        "with x as (select 1) insert into t select * from x", "set a=b", "drop table t",
        "explain select 1", "begin select 1; end",
    ):  # fmt: skip
        assert "meander sql only reads" in asked.refusal(statement)
    assert "Syntax error" in asked.refusal("selct 1")
    assert "name one of these: minutes" in asked.refusal("select * from minuts")
    assert "nothing" in asked.refusal("select nothing from (select 1 as something)")
    assert "no flow of that name has run" in asked.refusal("select * from totals")
    assert f"write `{asked.source}`" in asked.refusal(f"select * from {asked.source}")
    assert asked.rows("select count(*) as n from `PREFIXviews`") == [{"n": 0}]


def test_the_views_of_a_flow_are_listed_without_spark(
    asked: Asked, bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    produce(bootstrap, prefix + "views", [view("home", 1000)])
    done = command_here(tmp_path, bootstrap, "sql", "views.py", "--prefix", prefix)
    assert done.code == 0, done.err
    listed = {str(one["view"]): one for one in done.lines}
    assert {"totals", "backwards", "minutes", f"`{prefix}views`"} <= listed.keys()
    page = "struct<page:string,at:bigint>"
    assert {"name": "value", "type": page} in listed[f"`{prefix}views`"]["columns"]  # type: ignore[operator]
    assert "no flow of that name has run" in str(listed["totals"]["error"])
