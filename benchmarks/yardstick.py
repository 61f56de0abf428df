"""The yardstick: a keyed count as a plain loop, without any engine.

What any engine in Python could at best do here: consume, hash, look the count up in a dictionary
that writes back to RocksDB, count, produce; one result per record, no order, no recovery. Run as
`python -m benchmarks.yardstick BOOTSTRAP SOURCE SINK PARTITIONS PROCESS PROCESSES`: it takes its
share of the partitions to their ends and prints one JSON line, {"records", "began",
"ended"}; times are seconds since 1970. It waits for a line on standard input before it begins.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import cast

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from rocksdict import Options, Rdict
from xxhash import xxh3_64_intdigest

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


def run(bootstrap: str, source: str, sink: str, partitions: Sequence[int]) -> int:
    """Count to the end of some partitions; how many records there were."""
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
    left, records = len(partitions), 0
    with tempfile.TemporaryDirectory(prefix="yardstick-") as folder:
        counting = Counting(folder)
        while left:
            messages = consumer.consume(BATCH, 0.01)
            ends = [m for m in messages if m.error() is not None]
            left -= sum(map(_is_end, ends))
            if ends:
                messages = [m for m in messages if m.error() is None]
            keys = [key for m in messages if (key := m.key()) is not None]
            values = counting.count(keys)
            _produce(producer, sink, keys, values)
            records += len(keys)
        producer.flush()
        counting.close()
    consumer.close()
    return records


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


def main() -> None:
    """As the module says."""
    bootstrap, source, sink = sys.argv[1:4]
    total, process, processes = map(int, sys.argv[4:7])
    mine = range(process, total, processes)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.time()
    records = run(bootstrap, source, sink, mine)
    print(json.dumps({"records": records, "began": began, "ended": time.time()}), flush=True)


if __name__ == "__main__":
    main()
