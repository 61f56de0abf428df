"""Sources on a real broker: each starts where it says, and a silence of all lets timers fire."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, await_records, create_topic, produce
from tests.support.process.flow_process import meander, run_command

FLOW = """
from meander import Checkpointing, Flow, KafkaSink, KafkaSource, SourceOptions


def customer(context, state, name):
    return {**state, "name": name}


def order(context, state, amount):
    context.timer(context.time_ms + 500)
    return {**state, "sum": state.get("sum", 0) + int(amount)}


def close(context, state):
    context.emit([state.get("name"), state["sum"]])
    return {"name": state.get("name")}


flow = Flow("enriched", delivery="exactly_once")
options = SourceOptions(advance_after=1.0)


def read(topic, start):
    spec = KafkaSource(
        "{prefix}" + topic, value="str", pairs=True, start=start, idle="advance", options=options
    )
    return flow.source(spec, topic).key_by(lambda pair: pair[0]).map(lambda pair: pair[1])


customers, orders = read("customers", "earliest"), read("orders", "latest")
joined = customers.connect(orders, "joined", dict, customer, order, close)
joined.sink(KafkaSink("{prefix}sums", value="json"))
"""


def test_a_silence_closes_the_last_windows_of_sources_with_starts_of_their_own(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    for topic in ("customers", "orders", "sums"):
        create_topic(broker.bootstrap, prefix + topic, 2)
    before = int(time.time() * 1000) - 60_000

    def put(topic: str, at_ms: int, *values: bytes) -> None:
        records = [Record(value, key=b"c1", timestamp=at_ms) for value in values]
        produce(broker.bootstrap, prefix + topic, records)

    put("customers", before, b"Ada")
    put("orders", before, b"1000")
    module = tmp_path / "flow.py"
    module.write_text(FLOW.replace("{prefix}", prefix))
    words = run_command(module, prefix, 5, "--workers", "2", "--start", "latest")
    with meander(tmp_path, broker.bootstrap, *words) as flow:
        flow.until_event("started")
        put("orders", int(time.time() * 1000), b"7", b"5")
        (result,) = await_records(broker.bootstrap, prefix + "sums", bool)
    assert json.loads(result.value or b"") == ["Ada", 12], "the order of before is not read"
