"""What a plain loop makes of records: written to a topic, acknowledged, then read."""

from __future__ import annotations

import time

from benchmarks import load
from benchmarks.running import Running
from meander.state.layers.topic import MAX_STATE_RECORD

MOST = 512 << 20
"""Bytes of chunks at most: more take longer, at the same speed."""
LARGE = str(MAX_STATE_RECORD)


def plainly(flow: Running) -> dict[str, float]:
    """Bytes per second, of the chunks on a flow's state topic."""
    chunks, size = [], 0
    with load.reading(flow.bootstrap, flow.names.state) as messages:
        for message in messages:
            if (chunk := message.value()) is not None and size < MOST:
                chunks.append(chunk)
                size += len(chunk)
    with load.topic(flow.bootstrap, "raw", 1, max_message_bytes=LARGE) as topic:
        written = load.write(flow.bootstrap, topic, ((chunk, 0) for chunk in chunks))
        with load.reading(flow.bootstrap, topic) as messages:
            began = time.monotonic()
            assert [message.value() for message in messages] == chunks
            read = time.monotonic() - began
    return {
        "raw_bytes_per_s": size / (written + read),
        "raw_write_bytes_per_s": size / written,
        "raw_read_bytes_per_s": size / read,
    }


def topic_rate(bootstrap: str, record: int = 256 << 10, records: int = 256) -> float:
    """Bytes per second that a plain producer brings to a topic in such records."""
    with load.topic(bootstrap, "rate", 1) as topic:
        return record * records / load.write(bootstrap, topic, [(b"." * record, 0)] * records)
