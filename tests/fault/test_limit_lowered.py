"""A topic that accepts only smaller records than before: what is too large is its record's failure,
and all other results are there in their order (I5, I9)."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from meander.connectors.topics.internal_topics import topic_names
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, admin, consume_all, until
from tests.support.process.flow_process import kill, lines, meander, run_command
from tests.support.process.word_counts import committed_counts, each_once, with_repeats

SMALL, LARGE, LIMIT = 10, 100_000, 50_000
"""Bytes of results, and of a record once the limit is lower."""
FLOW = """
from meander import Checkpointing, Flow, KafkaSink, KafkaSource


def count(state, word):
    size = {large} if word == "large" else {small}
    return state + 1, dict(word=word, count=state + 1, more="x" * size)


flow = Flow("counts", delivery={delivery!r}, checkpoints=Checkpointing({interval}))
words = flow.source(KafkaSource("{prefix}lines", value="str")).key_by(lambda word: word)
counts = words.fold("count", init=lambda: 0, step=count, order={order!r})
counts.sink(KafkaSink("{prefix}counts"))
"""
WORDS = ["large", *(f"w{n % 20}" for n in range(399))]


def lower_limit(bootstrap: str, topic: str) -> None:
    """Returns once the broker tells of it."""
    client, resource = admin(bootstrap), ConfigResource(ResourceType.TOPIC, topic)
    entry = ConfigEntry(
        "max.message.bytes", str(LIMIT), incremental_operation=AlterConfigOpType.SET
    )
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client.incremental_alter_configs([changed])[changed].result(PATIENCE)

    def told() -> bool:
        found = client.describe_configs([resource])[resource].result(PATIENCE)
        return bool(found["max.message.bytes"].value == str(LIMIT))

    until(told, "the limit is lower")


@pytest.mark.parametrize(
    ("delivery", "order", "interval"),
    [
        ("at_least_once", "time", None),
        # No checkpoint but the first: all is replayed.
        ("exactly_once", "time", 600),
        ("exactly_once", "processing", 0.5),
    ],
    ids=["at least once", "exactly once", "outboxes"],
)
def test_a_result_too_large_for_a_limit_that_falls_is_a_dead_letter(
    broker: Broker, prefix: str, tmp_path: Path, delivery: str, order: str, interval: float | None
) -> None:
    module = tmp_path / "flow.py"
    sizes = {"large": LARGE, "small": SMALL}
    given = {"delivery": delivery, "order": order, "interval": interval}
    module.write_text(FLOW.format(prefix=prefix, **sizes, **given))
    counts = each_once if delivery == "exactly_once" else with_repeats

    def until_written(times: int) -> None:
        """Until all words have been counted so often, the large one once."""
        wanted = {word: times * WORDS.count(word) for word in WORDS} | {"large": 1}

        def written() -> bool:
            assert flow.process.poll() is None, flow.said
            return counts(committed_counts(broker.bootstrap, prefix)) == wanted

        until(written, f"all is written {times} times: {flow.said}")

    lines(broker.bootstrap, prefix, WORDS)
    run = run_command(module, prefix, PATIENCE, "--workers", "2")
    with meander(tmp_path, broker.bootstrap, *run) as flow:
        until_written(1)
        lower_limit(broker.bootstrap, prefix + "counts")
        lines(broker.bootstrap, prefix, WORDS, create=False, after=len(WORDS))
        until_written(2)
        if delivery == "exactly_once":
            # The replay suppresses what the topic does not accept any more.
            lives = len(flow.of("started"))
            kill(flow.workers[1])
            until(lambda: len(flow.of("started")) > lives, f"it lives again: {flow.said}")
        else:
            assert len(flow.of("started")) == 1, "it needs no checkpoint"
        lines(broker.bootstrap, prefix, WORDS, create=False, after=2 * len(WORDS))
        until_written(3)
    letters = consume_all(broker.bootstrap, topic_names(prefix, "counts").dead)
    reasons = {str(dict(one.headers)["meander.reason"]) for one in letters}
    assert len(reasons) == 2, reasons
    for offset in (100, 200):
        (reason,) = [one for one in reasons if f"offset {offset} " in one]
        assert "the result of key 'large' from partition 0" in reason
        assert "takes 100," in reason and f"more than {LIMIT - 61:,} (max.message.bytes" in reason
