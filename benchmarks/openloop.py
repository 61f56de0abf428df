"""Load that comes whatever happens, and how long each result takes from when its record was due.

A generator sends what is due; a collector takes each result off its topic as soon as it is there
and compares the clock with what the result repeats. Both are processes of their own.
Run as `python -m benchmarks.openloop generate BOOTSTRAP TOPIC WAVE KEYS [skewed]` or `collect
BOOTSTRAP TOPIC`.
"""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import load
from benchmarks.running import ROOT
from benchmarks.timeline import Timeline
from benchmarks.wave import Wave

Int64s = npt.NDArray[np.int64]
TICK = 0.001
"""Seconds between two lots of records, each for one partition."""
SLACK = 10.0
"""Seconds without a result after which those that are missing are given up, and told of."""
ANSWER = 30.0


class Lost(Exception):
    """Records have no result, so nothing that was measured beside them counts."""


@dataclass(slots=True)
class Loop:
    """Load under way, and once it has ended what came of it."""

    began: float
    """When the first record was due, seconds since 1970, within a few milliseconds."""
    timeline: Timeline | None = None

    def found(self) -> Timeline:
        """What came of it, once it has ended."""
        assert self.timeline is not None, "it has not ended"
        return self.timeline


@contextmanager
def generating(bootstrap: str, topic: str, wave: Wave, keys: int = load.KEYS) -> Iterator[float]:
    """Load from the block's beginning to its end; when that was, seconds since 1970."""
    with _process("generate", bootstrap, topic, str(wave), str(keys)) as generator:
        yield _began(generator)


@contextmanager
def running(
    bootstrap: str,
    source: str,
    sink: str,
    wave: Wave,
    keys: int = load.KEYS,
    *,
    skewed: bool = False,
) -> Iterator[Loop]:
    """As `generating`, and results are timed, to the last one. Raises Lost where any is missing."""
    how = (str(wave), str(keys), *(["skewed"] if skewed else []))
    with _process("collect", bootstrap, sink) as collector:
        _began(collector)
        with _process("generate", bootstrap, source, *how) as generator:
            loop = Loop(_began(generator))
            yield loop
            generator.terminate()
            sent, _ = generator.communicate()
        told, _ = collector.communicate(sent)
    loop.timeline = timed(int(sent), *np.load(io.BytesIO(told)))


def timed(sent: int, due: Int64s, arrived: Int64s) -> Timeline:
    """So many records by when they were due and when their results came, microseconds since 1970,
    shape (n,) each. Raises Lost where fewer came."""
    if len(due) < sent:
        raise Lost(f"{sent - len(due):,} of {sent:,} records have no result")
    return Timeline.of(due / 1e6, (arrived - due) / 1e3)


@contextmanager
def _process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "benchmarks.openloop", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
        process.terminate()


def _began(process: subprocess.Popen[bytes]) -> float:
    assert process.stdout is not None
    return float(process.stdout.readline())


def generate(bootstrap: str, topic: str, wave: str, keys: str, skewed: str = "") -> None:
    """Send until a signal to end comes; then says how many records.

    A record is a key, and when it was due, microseconds since 1970.
    """
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": 1})
    partitions = load.partitions(producer, topic)
    rate, drawn, sent = Wave.parse(wave), load.keys(2, int(keys), skewed=bool(skewed)), 0
    began = time.time()
    print(began, flush=True)
    for tick in count():
        time.sleep(max(0.0, began + tick * TICK - time.time()))
        if stopped.is_set():
            break
        due = rate.due(time.time() - began)
        for number in range(sent, due):
            key, at = next(drawn), int((began + rate.at(number)) * 1e6)
            producer.produce(topic, b"%b %d" % (key, at), key, tick % partitions)
        sent = max(sent, due)
        producer.poll(0)
    producer.flush()
    print(sent, flush=True)


def collect(bootstrap: str, topic: str) -> None:
    """Take results off as they come, from those on that come from now on.

    Ends once there are as many as a line on standard input says, and writes numpy's file of when
    each was due and when it came, microseconds since 1970, shape (2, n).
    """
    wanted: list[int] = []
    threading.Thread(
        target=lambda: wanted.append(int(sys.stdin.readline() or 0)), daemon=True
    ).start()
    consumer = _consumer(bootstrap, topic)
    print(time.time(), flush=True)
    due, arrived, heard = array("q"), array("q"), time.time()
    while not wanted or (len(due) < wanted[0] and time.time() < heard + SLACK):
        if (message := consumer.poll(0.1)) is None:
            heard = heard if wanted else time.time()
            continue
        for one in (message, *consumer.consume(10_000, 0)):
            value = one.value()
            if one.error() is None and value is not None:
                heard = time.time()
                due.append(int(value.rpartition(b" ")[2]))
                arrived.append(int(heard * 1e6))
    consumer.close()
    np.save(sys.stdout.buffer, np.array([due, arrived], np.int64))


def _consumer(bootstrap: str, topic: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": f"collect-{uuid4().hex}",
            "enable.auto.commit": False, "fetch.wait.max.ms": 100,
        }
    )  # fmt: skip
    places = [TopicPartition(topic, n) for n in range(load.partitions(consumer, topic))]
    for place in places:
        place.offset = consumer.get_watermark_offsets(place, timeout=ANSWER)[1]
    consumer.assign(places)
    # Until the first fetch is under way.
    consumer.poll(1.0)
    return consumer


if __name__ == "__main__":
    if sys.argv[1] == "generate":
        generate(*sys.argv[2:])
    else:
        collect(*sys.argv[2:])
