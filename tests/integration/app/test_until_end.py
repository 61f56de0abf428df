"""The run after a bounded run: it takes up what the last checkpoint holds, as the delivery says."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark import SparkContext

from meander.app.config.options import Options
from meander.app.driver import driver
from meander.schemas.status import Checkpointed, Event
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, Record, consume_all, create_topic, produce

FLOW = """
from meander import Flow, KafkaSink, KafkaSource

flow = Flow("counts", delivery="{delivery}")
lines = flow.source(KafkaSource("{prefix}lines", value="str")).key_by(lambda line: 0)
counts = lines.fold("n", init=lambda: 0, step=lambda n, line: (n + 1, n + 1))
counts.sink(KafkaSink("{prefix}counts", value="json"))
"""


@pytest.mark.parametrize(
    ("delivery", "wanted"),
    [("at_least_once", [1, 2, 3, 1, 2, 3, 4]), ("exactly_once", [1, 2, 3, 4])],
)
def test_the_run_after_a_bounded_run_repeats_results_only_at_least_once(
    delivery: str, wanted: list[int], broker: Broker, prefix: str, tmp_path: Path,
    context: SparkContext,
) -> None:  # fmt: skip
    for topic in ("lines", "counts"):
        create_topic(broker.bootstrap, prefix + topic, 1)
    module = tmp_path / "flow.py"
    module.write_text(FLOW.format(delivery=delivery, prefix=prefix))
    options = Options(
        {"bootstrap.servers": broker.bootstrap}, 1, prefix, until_end=True, startup_timeout=PATIENCE
    )
    events: list[Event] = []
    for texts in (["a", "b", "c"], ["d"]):
        produce(broker.bootstrap, prefix + "lines", [Record(text.encode()) for text in texts])
        driver.run(module, options, lambda: context, events.append)
    results = [
        json.loads(one.value or b"") for one in consume_all(broker.bootstrap, prefix + "counts")
    ]
    assert results == wanted
    taken = Counter(type(event) for event in events)[Checkpointed]
    assert taken == (1 if delivery == "exactly_once" else 0), "none at an end"


WINDOWS = """
from meander import Flow, KafkaSink, KafkaSource


def counted(context, count, line):
    context.timer(context.time_ms // 60_000 * 60_000 + 60_000)
    return count + 1


def closed(context, count):
    context.emit(count)
    context.forget()


flow = Flow("windows")
lines = flow.source(KafkaSource("{prefix}lines", value="str")).key_by(lambda line: 0)
lines.process("counts", int, counted, closed).sink(KafkaSink("{prefix}counts"))
"""


@pytest.mark.parametrize(("fire_timers", "wanted"), [(False, [2]), (True, [2, 1])])
def test_a_bounded_run_fires_the_timers_behind_its_last_record_as_asked(
    fire_timers: bool, wanted: list[int], broker: Broker, prefix: str, tmp_path: Path,
    context: SparkContext,
) -> None:  # fmt: skip
    for topic in ("lines", "counts"):
        create_topic(broker.bootstrap, prefix + topic, 1)
    module = tmp_path / "flow.py"
    module.write_text(WINDOWS.replace("{prefix}", prefix))
    options = Options(
        {"bootstrap.servers": broker.bootstrap}, 1, prefix, until_end=True,
        fire_timers=fire_timers, startup_timeout=PATIENCE,
    )  # fmt: skip
    minute = int(time.time()) // 60 * 60_000 - 600_000
    records = [Record(b"line", timestamp=minute + ms) for ms in (0, 30_000, 61_000)]
    produce(broker.bootstrap, prefix + "lines", records)
    driver.run(module, options, lambda: context, lambda _: None)
    results = consume_all(broker.bootstrap, prefix + "counts")
    assert [json.loads(one.value or b"") for one in results] == wanted
