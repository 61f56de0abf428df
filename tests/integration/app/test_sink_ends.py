"""The ends of a flow's sink topics tell whether a result may have left."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer

from meander.app.config.options import Options
from meander.app.loading.preflight import PreparedFlow, prepare
from meander.app.recovery.sink_ends import SinkEnds, has_moved, sink_ends
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, Record, create_topic, produce

FLOW = """
from meander import Flow, KafkaSink, KafkaSource

flow = Flow("shop")
orders = flow.source(KafkaSource("{prefix}in"))
"""
COUNTS = 'orders.sink(KafkaSink("{prefix}counts"))\n'
ROUTED = 'orders.sink(KafkaSink(str, topics="{prefix}out-.*"))\n'


def flow_of(broker: Broker, prefix: str, folder: Path, *sinks: str) -> PreparedFlow:
    module = folder / "flow.py"
    module.write_text("".join((FLOW, *sinks)).replace("{prefix}", prefix))
    return prepare(module, Options({"bootstrap.servers": broker.bootstrap}, prefix=prefix))


def known(ends: SinkEnds | None) -> SinkEnds:
    assert ends is not None
    return ends


def test_a_record_on_a_topic_of_a_sink_moves_its_end(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    for name in ("in", "counts", "out-de"):
        create_topic(broker.bootstrap, prefix + name, 2)
    flow = flow_of(broker, prefix, tmp_path, COUNTS, ROUTED)
    produce(broker.bootstrap, prefix + "counts", [Record(b"1", partition=1)])
    before = known(sink_ends(flow))
    assert before == {
        (prefix + "counts", 0): 0, (prefix + "counts", 1): 1,
        (prefix + "out-de", 0): 0, (prefix + "out-de", 1): 0,
    }  # fmt: skip

    produce(broker.bootstrap, prefix + "in", [Record(b"1")])
    create_topic(broker.bootstrap, prefix + "out-fr")
    assert not has_moved(before, known(sink_ends(flow)))
    produce(broker.bootstrap, prefix + "out-fr", [Record(b"1")])
    assert has_moved(before, known(sink_ends(flow)))


def test_a_record_of_an_open_transaction_moves_the_end(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    for name in ("in", "counts"):
        create_topic(broker.bootstrap, prefix + name)
    flow = flow_of(broker, prefix, tmp_path, COUNTS)
    before = known(sink_ends(flow))
    other = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": prefix + "other"})
    other.init_transactions(PATIENCE)
    other.begin_transaction()
    other.produce(prefix + "counts", b"1")
    other.flush(PATIENCE)
    assert has_moved(before, known(sink_ends(flow)))
    other.abort_transaction(PATIENCE)


def test_a_flow_without_sinks_has_no_ends_to_move(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, prefix + "in")
    assert known(sink_ends(flow_of(broker, prefix, tmp_path, 'orders.probe("seen")\n'))) == {}


OWN = """
class Own:
    def open(self, context):
        raise NotImplementedError


orders.sink(Own())
"""


def test_a_sink_that_is_not_kafkas_has_no_known_ends(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    for name in ("in", "counts"):
        create_topic(broker.bootstrap, prefix + name)
    assert sink_ends(flow_of(broker, prefix, tmp_path, COUNTS, OWN)) is None
