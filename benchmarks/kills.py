"""What a back-pressured flow brings to its end: with checkpoints or without, and while its workers
are killed, one every ten seconds.

A keyed operator takes its time for each record, so the flow is back-pressured all the time; results
count when a reader of what is committed sees them, so exactly once each counts once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Mapping
from typing import NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, TopicPartition

from benchmarks import load, running
from benchmarks.held import MIB, SLOW
from benchmarks.running import PARTITIONS, WORKERS, Running

RECORD = 190
"""Bytes of one."""
EVERY = 10.0


class Finished(NamedTuple):
    """What a reader of what is committed has seen."""

    per_minute: float
    repeats: int
    """Results that it has seen before."""
    lost: int
    """Those that it has not seen, of a key of which it has seen a later one."""


def finished(
    bootstrap: str, seconds: float, each: float, how: Mapping[str, str], *, killing: bool
) -> Finished:
    """Of a flow that takes so many seconds for `each` record."""
    source = f"killed-{uuid4().hex[:8]}"
    load.create(bootstrap, source, partitions=PARTITIONS)
    load.fill(bootstrap, source, int(2 * seconds * WORKERS / each), size=RECORD)
    bench = {"SOURCE": source, "SLEEP": str(each), "INFLIGHT": str(MIB), **how}
    with running.flow(bootstrap, source, bench, module=SLOW) as flow:
        flow.until_results(1)
        before, began = len(_committed(flow)), time.monotonic()
        for number in itertools.count(1):
            time.sleep(max(0.0, began + min(number * EVERY, seconds) - time.monotonic()))
            if number * EVERY >= seconds:
                break
            if killing:
                lives = len(flow.events("recovering"))
                _kill(flow.current()[number % WORKERS])
                flow.until_events("recovering", lives + 1)
        found = _committed(flow)
        took = time.monotonic() - began
    load.delete(bootstrap, source)
    once = {*found}
    # The n-th of a key says that it is the n-th.
    last = dict(sorted(once))
    return Finished(
        60 * (len(found) - before) / took, len(found) - len(once), sum(last.values()) - len(once)
    )


def _kill(process: int) -> None:
    # It may have gone by itself, as the life that it was of has ended.
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _committed(flow: Running) -> list[tuple[bytes, int]]:
    """The results that a reader of what is committed sees: a key, and the how many-th it is."""
    reader = Consumer({
        "bootstrap.servers": flow.bootstrap, "group.id": "counts", "enable.partition.eof": True,
        "isolation.level": "read_committed", "log_level": 2,
    })  # fmt: skip
    left = set(range(load.partitions(reader, flow.topic)))
    reader.assign([TopicPartition(flow.topic, n, 0) for n in left])
    found = list[tuple[bytes, int]]()
    while left:
        for message in reader.consume(10_000, 0.05):
            if (error := message.error()) is None:
                key, value = message.key(), message.value()
                assert isinstance(key, bytes)
                assert isinstance(value, bytes)
                found.append((key, int(value)))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
    reader.close()
    return found
