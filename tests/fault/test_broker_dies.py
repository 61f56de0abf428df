"""A flow outlives its broker: it waits, says so, and then answers every record exactly once.

The flow is the real command with Spark. Its broker is killed while results, records that are being
produced and a migration of half of the bins are under way.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from meander.connectors.kafka.topic_metadata import group
from meander.connectors.local_broker.broker import LocalBroker
from meander.connectors.topics.internal_topics import topic_names
from tests.support.kafka.topics import PATIENCE, Record, await_records, produce, until
from tests.support.process.flow_process import flow_folder, lines, meander
from tests.support.process.word_counts import committed_counts, each_once, expected_counts

PARTITIONS = 4
"""Of the topic of lines."""
TEXTS = [f"w{i % 400} w{i % 7} w{i}" for i in range(9_000)]
BEFORE, MEANWHILE, AFTER = TEXTS[:3_000], TEXTS[3_000:6_000], TEXTS[6_000:]
BINS = [*range(128)]
"""Those of worker 0, of which each takes its turn: the outage comes after the first few."""


def send(producer: Producer, topic: str, texts: Sequence[str], failures: list[KafkaError]) -> None:
    """Leave the texts to the producer, which goes on with them while this process does."""

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(error)

    for i, text in enumerate(texts):
        producer.produce(topic, text, partition=i % PARTITIONS, on_delivery=delivered)


def lag(bootstrap: str, topic: str, of: str) -> int:
    """What a lag tool shows; a partition without a committed offset counts from its beginning."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": of})
    with closing(consumer):
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        committed = [max(0, place.offset) for place in consumer.committed(places, timeout=PATIENCE)]
        ends = [consumer.get_watermark_offsets(place, timeout=PATIENCE)[1] for place in places]
    return sum(ends) - sum(committed)


def test_a_flow_waits_for_its_killed_broker_and_answers_everything_once(
    own_broker: LocalBroker, prefix: str, tmp_path: Path
) -> None:
    bootstrap, called = own_broker.bootstrap, topic_names(prefix, "counts")
    lines(bootstrap, prefix, BEFORE)
    module = flow_folder(tmp_path, prefix)
    # Idempotent, so that what the outage makes it send again is on the topic once.
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    failures: list[KafkaError] = []

    with meander(
        tmp_path,
        bootstrap,
        "run",
        str(module),
        "--prefix",
        prefix,
        "--startup-timeout",
        str(PATIENCE),
    ) as flow:
        flow.until_event("started")
        half = {
            "meander": "command",
            "type": "migrate",
            "id": "half",
            "bins": BINS,
            "worker": 1,
            "strategy": "fluid",
        }
        produce(bootstrap, called.control, [Record(json.dumps(half).encode())])
        flow.until_event("bin_moved")
        send(producer, f"{prefix}lines", MEANWHILE, failures)
        own_broker.kill()
        assert not flow.of("completed"), "the migration is under way"
        flow.until_said("broker_lost")
        own_broker.start()
        flow.until_said("broker_returned")
        send(producer, f"{prefix}lines", AFTER, failures)
        assert producer.flush(60) == 0
        assert not failures

        wanted = expected_counts(TEXTS)
        topic = f"{prefix}counts"
        await_records(bootstrap, topic, lambda found: len(found) >= wanted.total())
        flow.until_event("completed")
        assert len(flow.of("bin_moved")) == len(BINS)
        of = group(prefix, "counts")
        until(lambda: lag(bootstrap, f"{prefix}lines", of) == 0, "lag tools show 0")
        flow.process.send_signal(signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT
    assert each_once(committed_counts(bootstrap, prefix)) == wanted
