"""Records that come without a pause, each key's 1, 2, 3, ... in this order on one partition.

The producer is idempotent and never gives up, so outages of the broker cost no record and no order.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.support.kafka.topics import PATIENCE

TICK = 0.02
"""Seconds between two batches."""
BEHIND = (0, 0, 0, 5, 50)
"""Milliseconds that a record's time lies behind the clock: some come out of order."""


class Feed:
    """A thread that writes records `<key> <number>` while the block lasts."""

    def __init__(self, bootstrap: str, topic: str, *, partitions: int, keys: int, rate: int,
                 seed: int) -> None:  # fmt: skip
        self._topic, self._rate, self._rng = topic, rate, random.Random(f"feed {seed}")
        self._each = keys // partitions
        self._partitions = partitions
        """Each has keys of its own, so keys stay where they are when partitions are added."""
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5,
            "message.timeout.ms": 0, "log_level": 0,
        })  # fmt: skip
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._enough = threading.Event()
        self._failures: list[KafkaError] = []
        self.fed = Counter[str]()
        """The last number of each key."""

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def spread(self, partitions: int) -> None:
        """The topic has more partitions now; the new ones get new keys."""
        self._partitions = partitions

    def stop(self) -> None:
        """Returns once all that was fed is on the topic."""
        self._enough.set()
        if self.runs:
            self._thread.join()
        left = self._producer.flush(PATIENCE)
        assert not left, f"{left} records of the feed have not reached {self._topic}"
        assert not self._failures, f"the feed: {self._failures[0]}"

    def _run(self) -> None:
        begun, written = time.monotonic(), 0
        while not self._enough.wait(TICK):
            wanted = int((time.monotonic() - begun) * self._rate)
            while written < wanted and not self._enough.is_set():
                if self._write():
                    written += 1
                else:
                    self._producer.poll(TICK)
            self._producer.poll(0)

    def _write(self) -> bool:
        """One record more; False where the producer has no room."""
        number = self._rng.randrange(self._each * self._partitions)
        key, at = f"k{number}", int(time.time() * 1000) - self._rng.choice(BEHIND)
        try:
            self._producer.produce(
                self._topic, f"{key} {self.fed[key] + 1}", partition=number // self._each,
                timestamp=at, on_delivery=self._delivered,
            )  # fmt: skip
        except BufferError:
            return False
        except KafkaException as error:
            # The producer has not heard of a new partition yet.
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                raise
            return False
        self.fed[key] += 1
        return True

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self._failures.append(error)
