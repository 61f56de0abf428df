"""How long a result takes, open loop: from when its record was due, not from when it was sent.

A generator sends at a fixed rate whatever happens; a collector takes each result off its topic as
soon as it is there and compares the clock with what the result repeats. Both are processes of their
own. The first seconds are a warm-up and do not count.
Run as `python -m benchmarks.latency generate|collect BOOTSTRAP TOPIC ...`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import count
from uuid import uuid4

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import load, running
from benchmarks.running import PARTITIONS, ROOT, Running

TICK = 0.001
"""Seconds between two lots of records, each for one partition."""
WARM_UP = 5.0
"""Seconds."""
SLACK = 10.0
"""Seconds that results may come after the last record was due; what is missing then is told."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds."""

    p50: float
    p99: float
    most: float
    missing: int
    """Records without a result."""


def echo(bootstrap: str, rate: int, seconds: float) -> Latency:
    """Of a bare topic: what no engine can do better."""
    topic = f"echo-{uuid4().hex[:8]}"
    load.create(bootstrap, topic, partitions=PARTITIONS)
    found = _measure(bootstrap, topic, topic, rate, seconds)
    load.delete(bootstrap, topic)
    return found


def flow(bootstrap: str, rate: int, seconds: float, **bench: str) -> Latency:
    """Of the counting flow on two workers."""
    source = f"latency-{uuid4().hex[:8]}"
    load.create(bootstrap, source, partitions=PARTITIONS)
    with running.flow(bootstrap, source, {}, **bench) as flow:
        found = _measure(bootstrap, source, flow.topic, rate, seconds)
    load.delete(bootstrap, source)
    return found


def idle(bootstrap: str, seconds: float) -> float:
    """Cores per worker of a flow that has nothing to do."""
    source = f"idle-{uuid4().hex[:8]}"
    load.create(bootstrap, source, partitions=PARTITIONS)
    with running.flow(bootstrap, source, {}) as flow:
        time.sleep(WARM_UP)
        before = sum(map(running.cpu_seconds, flow.workers))
        time.sleep(seconds)
        used = sum(map(running.cpu_seconds, flow.workers)) - before
    load.delete(bootstrap, source)
    return used / seconds / len(flow.workers)


def growth(bootstrap: str, rate: int, seconds: float) -> float:
    """Memory of the workers at the end over that after a tenth of the time."""
    source = f"growth-{uuid4().hex[:8]}"
    load.create(bootstrap, source, partitions=PARTITIONS)
    with running.flow(bootstrap, source, {}) as flow:
        generator = _start("generate", bootstrap, source, str(rate), str(seconds))
        time.sleep(seconds / 10)
        before = _held(flow)
        generator.communicate()
        after = _held(flow)
    load.delete(bootstrap, source)
    return after / before


def _held(flow: Running) -> int:
    return sum(map(running.memory, flow.workers))


def _measure(bootstrap: str, source: str, sink: str, rate: int, seconds: float) -> Latency:
    total = WARM_UP + seconds
    collector = _start("collect", bootstrap, sink, str(rate), str(total))
    assert collector.stdout is not None
    assert collector.stdout.readline() == "ready\n"
    generator = _start("generate", bootstrap, source, str(rate), str(total))
    told, _ = collector.communicate()
    generator.communicate()
    return Latency(**json.loads(told))


def _start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.latency", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def generate(bootstrap: str, topic: str, rate: int, seconds: float) -> None:
    """Send at a rate; a record says when it was due, microseconds since 1970."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": 1})
    producer.list_topics(topic, timeout=30)
    keys, began, sent, total = load.keys(seed=2), time.time(), 0, int(rate * seconds)
    for tick in count():
        time.sleep(max(0.0, began + tick * TICK - time.time()))
        due = min(int((time.time() - began) * rate), total)
        for n in range(sent, due):
            key, at = next(keys), int((began + n / rate) * 1e6)
            producer.produce(topic, b"%b %d" % (key, at), key, tick % PARTITIONS)
        sent = max(sent, due)
        producer.poll(0)
        if sent == total:
            break
    producer.flush()


def collect(bootstrap: str, topic: str, rate: int, seconds: float) -> None:
    """Take results off as they come; prints `Latency` as JSON."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": f"collect-{uuid4().hex}",
            "enable.auto.commit": False, "fetch.wait.max.ms": 100,
        }
    )  # fmt: skip
    consumer.list_topics(topic, timeout=30)
    consumer.assign([TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    consumer.poll(1.0)
    print("ready", flush=True)
    wanted, took = int(rate * seconds), np.zeros(int(rate * seconds) + 1)
    first, found, deadline = None, 0, time.time() + seconds + SLACK
    while found < wanted and time.time() < deadline:
        if (message := consumer.poll(0.1)) is None:
            continue
        for one in (message, *consumer.consume(10_000, 0)):
            value = one.value()
            if one.error() is None and value is not None:
                due = int(value.rpartition(b" ")[2])
                first = due if first is None else min(first, due)
                if due - first >= WARM_UP * 1e6:
                    took[found] = time.time() * 1e3 - due / 1e3
                found += 1
    consumer.close()
    counted = took[took > 0]
    assert len(counted), f"of {wanted} results {found} came, and none of them after the warm-up"
    p50, p99 = np.percentile(counted, [50, 99])
    latency = {"p50": p50, "p99": p99, "most": counted.max(), "missing": wanted - found}
    print(json.dumps(latency), flush=True)


if __name__ == "__main__":
    does = {"generate": generate, "collect": collect}[sys.argv[1]]
    does(sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
