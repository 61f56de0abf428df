"""A topic that refuses more than before, larger records or those without a key: a refused result is
its record's failure, and all other results are there in their order (I5, I9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from meander.connectors.topics.internal_topics import topic_names
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, configure_topic, consume_all, until
from tests.support.process.flow_process import kill, lines, meander, run_command
from tests.support.process.word_counts import committed_counts, each_once, with_repeats

SMALL, LARGE, LIMIT = 10, 100_000, 50_000
"""Bytes of results, and of a record once the limit is lower."""
REFUSED = "large", "keyless"
"""Words of results that the topic refuses, one for each limit."""
FLOW = """
from meander import Checkpointing, Flow, KafkaSink, KafkaSource


def count(state, word):
    size = {large} if word == "large" else {small}
    return state + 1, dict(word=word, count=state + 1, more="x" * size)


def key(count):
    return None if count["word"] == "keyless" else count["word"]


flow = Flow("counts", delivery={delivery!r}, checkpoints=Checkpointing({interval}))
words = flow.source(KafkaSource("{prefix}lines", value="str")).key_by(lambda word: word)
counts = words.fold("count", init=lambda: 0, step=count, order={order!r})
counts.sink(KafkaSink("{prefix}counts", key=key))
"""
LIMITS = {"max.message.bytes": str(LIMIT), "cleanup.policy": "compact"}
"""Settings of a topic that it does not have at first."""
WORDS = [*REFUSED, *(f"w{n % 20}" for n in range(398))]


@pytest.mark.parametrize(
    ("delivery", "order", "interval"),
    [
        ("at_least_once", "event", None),
        # No checkpoint but the first: all is replayed.
        ("exactly_once", "event", 600),
        ("exactly_once", "processing", 0.5),
    ],
    ids=["at least once", "exactly once", "outboxes"],
)
def test_results_that_a_topic_does_not_accept_any_more_are_dead_letters(
    broker: Broker, prefix: str, tmp_path: Path, delivery: str, order: str, interval: float | None
) -> None:  # fmt: skip
    module = tmp_path / "flow.py"
    sizes = {"large": LARGE, "small": SMALL}
    given = {"delivery": delivery, "order": order, "interval": interval}
    module.write_text(FLOW.format(prefix=prefix, **sizes, **given))
    counts = each_once if delivery == "exactly_once" else with_repeats

    def until_written(times: int) -> None:
        """Until all words have been counted so often, the refused ones once."""
        wanted = {word: times * WORDS.count(word) for word in WORDS} | dict.fromkeys(REFUSED, 1)

        def written() -> bool:
            assert flow.process.poll() is None, flow.said
            return counts(committed_counts(broker.bootstrap, prefix)) == wanted

        until(written, f"all is written {times} times: {flow.said}")

    def reasons() -> set[str]:
        letters = consume_all(broker.bootstrap, topic_names(prefix, "counts").dead)
        return {str(dict(one.headers)["meander.reason"]) for one in letters}

    lines(broker.bootstrap, prefix, WORDS)
    run = run_command(module, prefix, PATIENCE, "--workers", "2")
    with meander(tmp_path, broker.bootstrap, *run) as flow:
        until_written(1)
        configure_topic(broker.bootstrap, prefix + "counts", LIMITS)
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
        until(lambda: len(reasons()) == 4, f"all have become dead letters: {flow.said}")
    for offset in (100, 200):
        (large,) = [one for one in reasons() if f"partition 0, offset {offset} " in one]
        assert "the result of key 'large' from partition 0" in large
        assert "takes 100," in large and f"more than {LIMIT - 61:,} (max.message.bytes" in large
        (keyless,) = [one for one in reasons() if f"partition 1, offset {offset} " in one]
        assert f"from partition 1, offset {offset} has no key, and the topic is" in keyless
