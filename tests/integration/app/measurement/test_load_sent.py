"""A load sends each record that it counts, also where its block ends while it is behind."""

from __future__ import annotations

from collections.abc import Iterator

from meander.app.measurement.open_loop import Load, LoadRecord, Wave, open_loop
from tests.support.kafka.topics import consume_all, create_topic, until

NEVER_REACHED = 500_000.0
"""Records per second, so the sender is behind from its start."""


def records(dues: Iterator[float]) -> Iterator[LoadRecord]:
    for due in dues:
        yield LoadRecord(b"key", b"%.6f" % due, 0, [])


def test_each_record_that_counts_as_sent_is_on_the_topic(bootstrap: str, prefix: str) -> None:
    topic = f"{prefix}source"
    create_topic(bootstrap, topic, 1)
    load = Load(topic, Wave.fixed(NEVER_REACHED), records)
    with open_loop({"bootstrap.servers": bootstrap}, load) as loop:
        # The block ends at any moment of a long catch-up.
        until(lambda: loop.began > 0, "the load has begun")
    assert len(loop.found().due) == len(consume_all(bootstrap, topic))
