"""The yardstick: a keyed count as a plain loop, without any engine.

What any engine in Python could at best do here: consume, hash, look the count up in a dictionary
that writes back to RocksDB, count, produce; one result per record, no order, no recovery. Each
process takes its share of the partitions to their ends.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.synchronize import Barrier
from typing import cast

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from rocksdict import Options, Rdict
from xxhash import xxh3_64_intdigest

from benchmarks import load
from benchmarks.running import PARTITIONS

BATCH = 20_000
"""Records consumed at most per turn."""
BINS = 56
"""How far a hash is shifted for its bin."""


class Counting:
    """Counts per key, in a dictionary that is filled from, and written back to, RocksDB."""

    def __init__(self, folder: str) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._rocks = Rdict(folder, options)
        self._counts: dict[bytes, int] = {}
        self.bins = [0] * 256
        """Records per bin, as a use for the hash."""

    def count(self, keys: Sequence[bytes]) -> list[bytes]:
        """One more for each key; the new counts."""
        for digest in map(xxh3_64_intdigest, keys):
            self.bins[digest >> BINS] += 1
        counts = self._counts
        missing = [key for key in set(keys) if key not in counts]
        stored = cast(list[bytes | None], self._rocks.get([*missing]))
        for key, count in zip(missing, stored, strict=True):
            counts[key] = int(count) if count else 0
        results = []
        for key in keys:
            counts[key] = new = counts[key] + 1
            results.append(b"%d" % new)
        return results

    def close(self) -> None:
        """Write everything back."""
        for key, count in self._counts.items():
            self._rocks[key] = b"%d" % count
        self._rocks.close()


def drain(bootstrap: str, source: str, records: int, processes: int) -> float:
    """Records per second of so many processes."""
    spawn = multiprocessing.get_context("spawn")
    with (
        load.topic(bootstrap, "yardstick", PARTITIONS) as sink,
        ProcessPoolExecutor(processes, spawn, _enter, (spawn.Barrier(processes),)) as pool,
    ):
        shares = [range(number, PARTITIONS, processes) for number in range(processes)]
        times = list(pool.map(partial(run, bootstrap, source, sink), shares))
    return records / (max(ended for _, ended in times) - min(began for began, _ in times))


_ready: Barrier


def _enter(ready: Barrier) -> None:
    global _ready
    _ready = ready


def run(bootstrap: str, source: str, sink: str, partitions: Sequence[int]) -> tuple[float, float]:
    """Count to the end of some partitions, once all processes are ready; when it began and ended,
    seconds since 1970."""
    _ready.wait()
    began = time.time()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "yardstick", "enable.auto.commit": False,
            "auto.offset.reset": "error", "enable.partition.eof": True,
            # By default a full queue makes the fetcher pause for a second.
            "fetch.queue.backoff.ms": 1, "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1 << 20, "fetch.wait.max.ms": 10,
        }
    )  # fmt: skip
    producer = Producer(
        {
            "bootstrap.servers": bootstrap, "linger.ms": 20, "enable.idempotence": True,
            "batch.size": 1 << 20, "batch.num.messages": 100_000,
            "delivery.report.only.error": True,
            "queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 1 << 20,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(source, number, 0) for number in partitions])
    left = len(partitions)
    with tempfile.TemporaryDirectory(prefix="yardstick-") as folder:
        counting = Counting(folder)
        while left:
            messages = consumer.consume(BATCH, 0.01)
            ends = [m for m in messages if m.error() is not None]
            left -= sum(map(_is_end, ends))
            if ends:
                messages = [m for m in messages if m.error() is None]
            keys = [key for m in messages if (key := m.key()) is not None]
            _produce(producer, sink, keys, counting.count(keys))
        producer.flush()
        counting.close()
    consumer.close()
    return began, time.time()


def _is_end(message: Message) -> bool:
    error = message.error()
    assert error is not None
    if error.code() != KafkaError._PARTITION_EOF:
        raise RuntimeError(error.str())
    return True


def _produce(producer: Producer, sink: str, keys: list[bytes], values: list[bytes]) -> None:
    records = [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]
    while records:
        queued = producer.produce_batch(sink, records)
        producer.poll(0 if queued == len(records) else 0.01)
        records = [record for record in records if "_error" in record]
        for record in records:
            del record["_error"]
