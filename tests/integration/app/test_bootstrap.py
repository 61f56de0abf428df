"""A flow starts from states out of a table: all of them, as a single-threaded loop would go on from
them, or none, where anything is wrong with one."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import threading
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from meander.app.bootstrap.bootstrap import Bootstrapped, bootstrap
from meander.app.config.options import Options
from meander.app.driver import driver
from meander.app.driver.loop import FlowResult
from meander.app.loading.loader import load_flow
from meander.connectors.kafka.client import admin
from meander.connectors.topics import checkpoints
from meander.connectors.topics.internal_topics import ensure_internal, topic_names
from meander.connectors.topics.state import KafkaStateTopic
from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint import initial_state
from meander.schemas.errors import MeanderError, SetupError
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.keys.ids import ExecutionId
from tests.support.kafka.topics import Record, consume_all, create_topic, delete_topics, produce
from tests.support.process.flow_process import meander

KEYS = 20_000
ORDERS = 3_000
START_MS = 1000
CUSTOMERS = 5_000
"""The rows of a table that an order may meet."""

FLOW = """
from meander import KafkaSink, KafkaSource
from meander import Flow, columns


class Reversed:
    name = "reversed"

    def encode(self, state):
        return state[::-1].encode()

    def decode(self, data):
        return data.decode()[::-1]


def add(state, order):
    count, total = state
    state = count + 1, total + order["amount"]
    return state, [order["customer"], *state]


flow = Flow("orders", bins=2)
orders = flow.source(KafkaSource("{prefix}orders")).key_by(lambda order: order["customer"])
orders.fold("totals", init=lambda: (0, 0.0), step=add).sink(KafkaSink("{prefix}totals"))
orders.fold("mean", columns.mean("amount"))
orders.fold("backwards", lambda: "", lambda state, _: (state, None), codec=Reversed())
customers = flow.table(KafkaSource("{prefix}customers"), "customers")
joined = orders.join(customers, name="joined", step=lambda one, row: [one["customer"], row["n"]])
joined.sink(KafkaSink("{prefix}joined"))
"""


class Rig:
    """A flow that goes on from what its customers have ordered before."""

    def __init__(self, bootstrap: str, prefix: str, folder: Path) -> None:
        self.bootstrap, self.prefix = bootstrap, prefix
        self.module = folder / "orders.py"
        self.module.write_text(FLOW.format(prefix=prefix))
        self.options = Options({"bootstrap.servers": bootstrap}, 2, prefix, until_end=True)
        self.names = topic_names(prefix, "orders")
        for topic in ("orders", "totals", "customers", "joined"):
            create_topic(bootstrap, prefix + topic, 4)

    def redefine(self, old: str, new: str) -> None:
        """The flow has become another."""
        source = self.module.read_text()
        assert source.count(old) == 1
        self.module.write_text(source.replace(old, new))

    def bootstrap_(self, frame: DataFrame, operator: str = "totals") -> Bootstrapped:
        return bootstrap(frame, self.module, operator, self.options)

    def write(self, **states: dict[object, object]) -> Checkpoint:
        """As a bootstrap does, without Spark."""
        plan, settings = Plan(load_flow(self.module)), self.options.kafka
        ensure_internal(admin(settings), self.prefix, "orders")
        topic = KafkaStateTopic(settings, self.names.state, 0, threading.Event())
        with contextlib.closing(topic):
            manifests = initial_state.write(plan, states, topic, now_ms=0)
        checkpoint = Checkpoint(1, ExecutionId(1), plan.flow.space, 0, tuple(manifests))
        checkpoints.append(settings, self.names, checkpoint)
        return checkpoint

    def run(self, context: SparkContext) -> FlowResult:
        return driver.run(self.module, self.options, lambda: context)

    @property
    def checkpoint(self) -> Checkpoint | None:
        with checkpoints.open_checkpoints(self.options.kafka, self.names) as there:
            found = there.newest()
        return None if found is None else found[1]

    def kept(self) -> set[bytes]:
        """The keys of the records that compaction leaves on the state topic."""
        records = consume_all(self.bootstrap, self.names.state)
        last = {record.key: record.value for record in records}
        return {key for key, value in last.items() if key is not None and value is not None}


@pytest.fixture
def rig(bootstrap: str, prefix: str, tmp_path: Path) -> Rig:
    return Rig(bootstrap, prefix, tmp_path)


def table(spark: SparkSession, keys: int) -> DataFrame:
    return spark.range(0, keys, 1, numPartitions=1).selectExpr(
        "concat('c', id) AS key", "struct(id AS n, id * 0.5D AS total) AS state"
    )


def test_a_flow_goes_on_from_the_states_of_a_table(
    rig: Rig, spark: SparkSession, context: SparkContext, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    data = tmp_path / "states.parquet"
    table(spark, KEYS).write.parquet(str(data))
    with meander(
        tmp_path, rig.bootstrap, "bootstrap", str(rig.module), "--operator", "totals",
        "--data", str(data), "--prefix", rig.prefix, "--master", "local[2]",
    ) as command:  # fmt: skip
        assert command.exit_code() == 0, command.said
    (told,) = command.events
    assert (told["checkpoint"], told["keys"], told["bins"]) == (1, KEYS, 4)
    rig.bootstrap_(table(spark, CUSTOMERS), "joined")

    chance = random.Random(5)
    states = {f"c{i}": (i, i * 0.5) for i in range(KEYS)}
    orders = [
        (f"c{chance.randrange(KEYS + 500)}", chance.randrange(100) / 4) for _ in range(ORDERS)
    ]
    expected = []
    for customer, amount in orders:
        count, total = states.get(customer, (0, 0.0))
        states[customer] = count + 1, total + amount
        expected.append([customer, *states[customer]])
    # One partition, so that there is one order.
    produce(
        rig.bootstrap, rig.prefix + "orders",
        [Record(json.dumps({"customer": c, "amount": a}).encode(), partition=1, timestamp=at)
         for at, (c, a) in enumerate(orders, START_MS)],
    )  # fmt: skip
    known = {f"c{i}": i for i in range(CUSTOMERS)}
    half = ORDERS // 2
    changed, deleted, *_ = dict.fromkeys(one for one, _ in orders[half:] if one in known)
    produce(
        rig.bootstrap, rig.prefix + "customers",
        [Record(b'{"n": -1}', changed.encode(), timestamp=START_MS + half),
         Record(None, deleted.encode(), timestamp=START_MS + half)],
    )  # fmt: skip
    with caplog.at_level(logging.INFO):
        rig.run(context)

    rows = []
    for i, (customer, _) in enumerate(orders):
        if i == half:
            known[changed] = -1
            del known[deleted]
        if customer in known:
            rows.append([customer, known[customer]])
    joined = consume_all(rig.bootstrap, rig.prefix + "joined")
    met = [json.loads(one.value or b"") for one in joined]
    assert sorted(met) == sorted(rows), "each order meets the row of its time"

    results = [(json.loads(r.value or b""), dict(r.headers)["meander.worker"]) for r in
               consume_all(rig.bootstrap, rig.prefix + "totals")]  # fmt: skip
    by_customer = partial(sorted, key=itemgetter(0))
    found = by_customer(value for value, _ in results)
    assert found == by_customer(expected), "each customer's in order (I3)"
    assert {worker for _, worker in results} == {b"0", b"1"}
    assert "checkpoint_selected number=2 operators=joined,totals" in caplog.text
    loaded = [r.getMessage() for r in caplog.records if "state_restored" in r.getMessage()]
    assert len(loaded) == 2, "each worker has loaded its own share"


def test_a_table_with_a_key_twice_leaves_nothing_that_a_flow_would_read(
    rig: Rig, spark: SparkSession
) -> None:
    twice = table(spark, 5_000).union(table(spark, 1))
    with pytest.raises(SetupError, match=r"operator 'totals', key 'c0': it has two states"):
        rig.bootstrap_(twice)
    assert rig.checkpoint is None
    assert consume_all(rig.bootstrap, rig.names.state), "other bins had been written by then"
    assert rig.kept() == set()


def test_a_flow_whose_bootstrapped_states_are_lost_neither_starts_nor_gets_others_unasked(
    rig: Rig, spark: SparkSession, context: SparkContext
) -> None:
    rig.bootstrap_(table(spark, 1))
    delete_topics(rig.bootstrap, rig.names.checkpoints)
    for act in (lambda: rig.run(context), lambda: rig.bootstrap_(table(spark, 1))):
        with pytest.raises(SetupError, match=r"checkpoints' holds none of them"):
            act()


def test_what_a_job_had_written_that_spark_ended_is_taken_off_the_topic_again(
    rig: Rig, spark: SparkSession, context: SparkContext
) -> None:
    before = rig.write(totals={"a": (1, 2.0)}).manifests
    # One part, which has been written when Spark finds that what it returns is too much.
    rig.redefine("bins=2", "bins=0")
    settings = context._jsc.sc().conf()
    settings.set("spark.driver.maxResultSize", "1b")
    try:
        with pytest.raises(MeanderError, match="Spark: .*maxResultSize"):
            bootstrap(table(spark, 5_000), rig.module, "totals", rig.options, replace=True)
    finally:
        settings.remove("spark.driver.maxResultSize")
    found = consume_all(rig.bootstrap, rig.names.state)
    own = {place.key for one in before for layer in one.layers for place in layer.chunks}
    assert {record.key for record in found} > own, "the layer had been written by then"
    assert rig.kept() == own, "and nothing of others goes with it"
    assert rig.checkpoint is not None and rig.checkpoint.manifests == before


def test_states_are_replaced_only_where_asked_and_other_states_stay(
    rig: Rig, spark: SparkSession
) -> None:
    rig.write(totals={"a": (1, 2.0), "b": (3, 4.0)}, mean={"a": (5, 6.0)})
    with pytest.raises(SetupError, match="checkpoint 1 holds states of 'totals' already; add --re"):
        rig.bootstrap_(table(spark, 3))

    bootstrap(table(spark, 3), rig.module, "totals", rig.options, replace=True)
    after = rig.checkpoint
    assert after is not None
    assert (after.number, after.operators) == (2, {"totals", "mean"})
    layers = [layer for manifest in after.manifests for layer in manifest.layers]
    assert sum(layer.count for layer in layers) == 3 + 1
    assert rig.kept() == {place.key for layer in layers for place in layer.chunks}


@pytest.mark.parametrize(
    ("operator", "query", "says"),
    [
        ("totals", "SELECT 1 AS k, 2 AS state", "column 'key': the data has no such column"),
        ("total", "SELECT 1 AS key, 2 AS state", "no operator 'total' .* 'totals', 'mean', 'back"),
        ("backwards", "SELECT 1 AS key, 'x' AS state", "its own codec, .* type string"),
        ("mean", "SELECT 'N1' AS key, 2.5D AS state", "'mean', key 'N1': .* it has 1 values"),
    ],
    ids=["column", "operator", "type", "state"],
)
def test_what_the_flow_could_not_have_is_refused_with_its_name(
    rig: Rig, spark: SparkSession, operator: str, query: str, says: str
) -> None:
    with pytest.raises(SetupError, match=says):
        rig.bootstrap_(spark.sql(query), operator)
    assert rig.checkpoint is None
    assert consume_all(rig.bootstrap, rig.names.state) == []


def test_a_layer_that_is_not_what_was_written_ends_the_start_with_its_name(
    rig: Rig, context: SparkContext
) -> None:
    checkpoint = rig.write(totals={f"c{i}": (i, 0.5) for i in range(100)})
    first, *rest = checkpoint.manifests
    (layer,) = first.layers
    (place,) = layer.chunks
    (whole,) = (r for r in consume_all(rig.bootstrap, rig.names.state) if r.key == place.key)
    assert whole.value is not None
    other = bytes([whole.value[0] ^ 1]) + whole.value[1:]
    produce(rig.bootstrap, rig.names.state, [Record(other, place.key, place.partition)])
    (moved,) = (r for r in consume_all(rig.bootstrap, rig.names.state) if r.value == other)
    assert moved.offset is not None

    for offset, says in [
        (moved.offset, r"layer/0/-1/0 of operator 'totals', bin \d, chunk 0: its checksum is"),
        (place.offset + 1, r"no record of key 'layer/0/-1/0/0': compaction has removed it"),
    ]:
        layers = (replace(layer, chunks=(replace(place, offset=offset),)),)
        spoilt = replace(checkpoint, manifests=(replace(first, layers=layers), *rest))
        checkpoints.append(rig.options.kafka, rig.names, spoilt)
        with pytest.raises(MeanderError, match=says):
            rig.run(context)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("bins=2", "bins=3", "it has 4 bins, and the flow has 8; give the flow bins=2, or write"),
        ('"backwards"', '"back"', "states of 'backwards', and the flow has no such operator"),
        ('"reversed"', '"other"', "with codec 'reversed', and the operator's is 'other'"),
    ],
)
def test_a_flow_that_has_become_another_does_not_start_from_it(
    rig: Rig, context: SparkContext, old: str, new: str, says: str
) -> None:
    rig.write(backwards={"a": "xyz"})
    rig.redefine(old, new)
    with pytest.raises(SetupError, match=says):
        rig.run(context)
