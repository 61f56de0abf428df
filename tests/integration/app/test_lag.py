"""The lag of a flow is what lag tools show, and an outage only delays it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from meander.app.status.lag import Lag
from meander.connectors.kafka import topic_metadata
from meander.connectors.kafka.source.topic_watch import OffsetCommits
from meander.connectors.local_broker.broker import LocalBroker
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, create_topic, produce, until


def committed(bootstrap: str, topic: str, offset: int) -> None:
    commits = OffsetCommits({"bootstrap.servers": bootstrap}, topic, "meander.flow")
    commits.close({0: offset})


def until_behind_by(lag: Lag, records: int) -> None:
    def known() -> bool:
        lag.look()
        return lag.records == records

    until(known, f"a lag of {records}")


def test_it_is_the_end_of_the_log_minus_what_is_committed(broker: Broker, prefix: str) -> None:
    topic = prefix + "in"
    create_topic(broker.bootstrap, topic, 1)
    produce(broker.bootstrap, topic, [Record(b"x")] * 5)
    group = topic_metadata.group(prefix, "flow")
    lag = Lag({"bootstrap.servers": broker.bootstrap}, group, [topic])
    lag.look()
    assert lag.records == 0, "nothing is committed yet"
    commits = OffsetCommits({"bootstrap.servers": broker.bootstrap}, topic, group)
    commits.close({0: 3})
    until_behind_by(lag, 2)
    assert lag.partitions == {(topic, 0): 2}


def test_it_is_known_again_after_a_broker_was_killed_and_is_back(own_broker: LocalBroker) -> None:
    """Its partitions are at another epoch then, which clients do not find out by themselves; a
    request while it starts ends no process."""
    create_topic(own_broker.bootstrap, "in", 1)
    produce(own_broker.bootstrap, "in", [Record(b"x")] * 5)
    committed(own_broker.bootstrap, "in", 3)
    lag = Lag({"bootstrap.servers": own_broker.bootstrap}, "meander.flow", ["in"])
    until_behind_by(lag, 2)
    for outage in range(1, 3):
        own_broker.kill()
        with ThreadPoolExecutor(1) as starting:
            started = starting.submit(own_broker.start)
            while not started.done():
                lag.look()
            started.result()
        produce(own_broker.bootstrap, "in", [Record(b"x")] * 2)
        until_behind_by(lag, 2 + 2 * outage)
