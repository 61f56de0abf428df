"""What is wrong with a flow's topics is said at the start, with the remedy, and is exit code 2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meander.app.config.options import Options
from meander.app.loading.preflight import prepare
from meander.connectors.topics.internal_topics import InternalTopic, internal_topics
from meander.schemas.errors import SetupError
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import create_topic

FLOW = """
from meander import KafkaSink, KafkaSource
from meander import Flow

flow = Flow("shop")
flow.source(KafkaSource({source!r})){steps}.sink(KafkaSink({sink!r}))
"""
KEYED = ".key_by(lambda v: 1).map(str)"


def start(
    folder: Path, bootstrap: str, prefix: str, source: str, sink: str, steps: str = ""
) -> None:
    module = folder / "flow.py"
    module.write_text(FLOW.format(source=source, sink=sink, steps=steps))
    prepare(module, Options({"bootstrap.servers": bootstrap}, prefix=prefix))


@pytest.mark.parametrize("topic", internal_topics("t.", "shop"), ids=lambda topic: topic.name)
def test_a_topic_of_the_flow_itself_is_no_source_and_no_sink(
    topic: InternalTopic, tmp_path: Path
) -> None:
    """Before the broker is asked for anything."""
    for kind, source, sink in ("source", topic.name, "out"), ("sink", "in", topic.name):
        said = (
            rf"{kind} topic '{topic.name}': it is an internal topic of the flow"
            rf" \({topic.purpose}\); give the"
        )
        with pytest.raises(SetupError, match=said):
            start(tmp_path, "127.0.0.1:1", "t.", source, sink)


def test_a_pattern_of_a_sink_includes_no_topic_of_the_flow_itself(tmp_path: Path) -> None:
    """Before the broker is asked for anything."""
    module = tmp_path / "flow.py"
    sink = 'KafkaSink(str, topics="t.shop.*")'
    text = FLOW.format(source="in", sink="out", steps="").replace("KafkaSink('out')", sink)
    module.write_text(text)
    options = Options({"bootstrap.servers": "127.0.0.1:1"}, prefix="t.")
    with pytest.raises(SetupError, match=r"its topics 't.shop.\*' include 't.shop.control', an in"):
        prepare(module, options)


def test_a_compacted_topic_wants_records_with_keys(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    for name in ("in", "out"):
        create_topic(broker.bootstrap, prefix + name, 1, cleanup_policy="compact")
    ends = broker.bootstrap, prefix, prefix + "in", prefix + "out"
    with pytest.raises(SetupError, match="no records without keys; call key_by before the sink"):
        start(tmp_path, *ends)
    start(tmp_path, *ends, KEYED)


def test_an_invalid_name_is_refused_with_a_valid_one(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, prefix + "in")
    said = re.escape("sink topic 'no name/at all': Kafka allows no such name; a name has 1 to 249")
    with pytest.raises(SetupError, match=said):
        start(tmp_path, broker.bootstrap, prefix, prefix + "in", "no name/at all")
