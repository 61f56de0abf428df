"""Three topics in Avro with a registry, merged by key into a fourth, on Kafka and Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext

from meander import Registry
from meander.app.config.options import Options
from meander.app.driver import driver
from meander.app.loading.preflight import prepare
from meander.connectors.kafka.formats import Place
from meander.schemas.errors import SetupError
from meander.schemas.status import Event
from tests.support.kafka.brokers import Broker
from tests.support.kafka.schema_registry import SchemaRegistry, schema_registry
from tests.support.kafka.topics import PATIENCE, Record, consume_all, create_topic, produce
from tests.support.process.flow_process import meander

LOGIN = "me:hidden"
FLOW = """
from dataclasses import dataclass
from enum import Enum

from meander import Context, Flow, KafkaSink, KafkaSource, Registry, field


class Kind(Enum):
    ORDER = "order"
    CLICK = "click"


@dataclass(frozen=True)
class Customer:
    id: int
    country: str
    at: int


@dataclass(frozen=True)
class Order:
    customer: int
    amount: float
    at: int


@dataclass(frozen=True)
class Enriched:
    kind: str
    customer: int
    country: str
    amount: float


@dataclass
class Seen:
    country: str = "?"
    kinds: dict[Kind, int] | None = None


registry = Registry("{url}", settings={{"max.retries": 0}})
flow = Flow("enriched", bins=4)


def topic(name, form):
    return flow.source(KafkaSource("{prefix}" + name, form, time=field("at")), name)


customers = topic("customers", registry.avro("schemas/customer.avsc", Customer))
orders = topic("orders", registry.avro("schemas/order.avsc", Order))
clicks = topic("clicks", registry.avro())


def remember(context: Context, state: Customer | None, customer: Customer) -> Customer:
    return customer


def enrich(context: Context, state: Customer | None, order: Order) -> Customer | None:
    country = state.country if state else "?"
    context.emit(Enriched(Kind.ORDER.value, order.customer, country, order.amount))
    return state


def passed(context: Context, state: Seen, order: Enriched) -> Seen:
    context.emit(order)
    kinds = dict(state.kinds or {{}})
    kinds[Kind.ORDER] = kinds.get(Kind.ORDER, 0) + 1
    return Seen(order.country, kinds)


def clicked(context: Context, state: Seen, click: dict) -> Seen:
    context.emit(Enriched(Kind.CLICK.value, click["customer"], state.country, 0.0))
    return state


keyed = customers.key_by(lambda one: one.id)
orders = keyed.connect(
    orders.key_by(lambda one: one.customer), "enrich", lambda: None, remember, enrich
)
clicks = clicks.key_by(lambda one: one["customer"])
merged = orders.connect(clicks, "merged", Seen, passed, clicked)
merged.sink(KafkaSink("{prefix}enriched", registry.avro("schemas/enriched.avsc", Enriched)))
"""


def schema(name: str, **fields: str) -> str:
    listed = [{"name": one, "type": kind} for one, kind in fields.items()]
    return json.dumps({"type": "record", "name": name, "fields": listed})


SCHEMAS = {
    "customer": schema("Customer", id="long", country="string", at="long"),
    "order": schema("Order", customer="long", amount="double", at="long"),
    "click": schema("Click", customer="long", page="string", at="long"),
    "enriched": schema(
        "Enriched", kind="string", customer="long", country="string", amount="double"
    ),
}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    monkeypatch.setenv("MEANDER_REGISTRY__BASIC__AUTH__USER__INFO", LOGIN)
    with schema_registry(LOGIN) as found:
        yield found


@pytest.fixture
def module(tmp_path: Path, served: SchemaRegistry, prefix: str) -> Path:
    (tmp_path / "schemas").mkdir()
    for name, text in SCHEMAS.items():
        (tmp_path / "schemas" / f"{name}.avsc").write_text(text)
    (tmp_path / "flow.py").write_text(FLOW.format(url=served.url, prefix=prefix))
    return tmp_path / "flow.py"


def fill(broker: Broker, prefix: str, module: Path, served: SchemaRegistry) -> None:
    registry = Registry(served.url)
    records: dict[str, list[dict[str, object]]] = {
        "customer": [{"id": n, "country": "CD"[n % 2], "at": 1000} for n in range(10)],
        "order": [{"customer": n % 10, "amount": n / 2, "at": 2000 + n} for n in range(40)],
        "click": [{"customer": n % 10, "page": "/", "at": 3000 + n} for n in range(20)],
    }
    for name, values in records.items():
        topic = f"{prefix}{name}s"
        create_topic(broker.bootstrap, topic, 2)
        form = registry.avro(module.parent / f"schemas/{name}.avsc")
        place = Place(topic, "value", "sink")
        form.check(place)
        form = form.at(place)
        produce(broker.bootstrap, topic, [Record(form.encode(value)) for value in values])
    create_topic(broker.bootstrap, f"{prefix}enriched", 2)


def test_three_topics_in_avro_are_merged_on_two_workers(
    broker: Broker, prefix: str, module: Path, served: SchemaRegistry, context: SparkContext,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    fill(broker, prefix, module, served)
    produce(broker.bootstrap, f"{prefix}orders", [Record(b"\0\0\0\0\x63abc"), Record(b"{}")])
    events: list[Event] = []
    options = Options(
        {"bootstrap.servers": broker.bootstrap}, 2, prefix, until_end=True, startup_timeout=PATIENCE
    )
    with caplog.at_level("DEBUG"):
        driver.run(module, options, lambda: context, events.append)
    form = Registry(served.url).avro()
    records = consume_all(broker.bootstrap, f"{prefix}enriched")
    results = [form.decode(one.value or b"") for one in records]
    expected = [
        *(("order", n % 10, "CD"[n % 2], n / 2) for n in range(40)),
        *(("click", n % 10, "CD"[n % 2], 0.0) for n in range(20)),
    ]
    assert sorted(tuple(one.values()) for one in results) == sorted(expected)
    dead = consume_all(broker.bootstrap, f"{prefix}enriched.dead")
    assert sorted(one.value or b"" for one in dead) == [b"\0\0\0\0\x63abc", b"{}"]
    assert f"{prefix}enriched-value" in served.subjects
    assert "hidden" not in caplog.text
    query = f"""
        select value.kind, count(*) as n from `{prefix}enriched` group by 1
        union all select 'unread', count(*) from `{prefix}orders` where error is not null
        order by 1
    """
    asked = "sql", str(module), query, "--prefix", prefix, "--format", "json"
    with meander(module.parent, broker.bootstrap, *asked) as sql:
        assert sql.exit_code() == 0, sql.said
    found = [(one["kind"], one["n"]) for one in sql.events]
    assert found == [("click", 20), ("order", 40), ("unread", 2)]


def test_a_start_is_refused_where_the_registry_refuses_a_schema_or_does_not_answer(
    broker: Broker, prefix: str, module: Path, served: SchemaRegistry
) -> None:
    fill(broker, prefix, module, served)
    options = Options({"bootstrap.servers": broker.bootstrap}, prefix=prefix)
    other = {"schema": schema("Enriched", size="long"), "schemaType": "AVRO"}
    served.register(f"{prefix}enriched-value", other)
    with pytest.raises(SetupError, match="enriched', value: registry .* answers 409"):
        prepare(module, options)
    module.write_text(FLOW.format(url="http://127.0.0.1:1", prefix=prefix))
    with pytest.raises(SetupError, match="source topic '.*customers', value: .* does not answer"):
        prepare(module, options)
