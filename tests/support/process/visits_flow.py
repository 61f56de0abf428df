"""A flow whose keys expire as a process, the visits that it reads, and the check by one thread."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from meander.connectors.topics import checkpoints
from meander.connectors.topics.internal_topics import topic_names
from meander.connectors.topics.state import KafkaStateTopic
from meander.state.encoding import codec
from meander.state.layers.layer_loader import LayerLoader
from meander.state.store.store import Database
from meander.state.times.time import to_millis
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, consume_all, create_topic, produce, time_of, until
from tests.support.process.flow_process import FlowProcess, run_command

HEARTBEAT_TIMEOUT = 2
PARTITIONS = 3
START = 1_700_000_000_000
TTL, STEP = 2000, 4
"""Milliseconds that a key lives, and between two visits."""
AGAIN = {0: 300, 1: 900}
"""The visits until a visitor comes again, by the remainder of its number: before it has expired,
and after that. Others come once."""
MODULE = """
from meander import Checkpointing, Flow, KafkaSink, KafkaSource

flow = Flow(
    "visits", bins=3, delivery="exactly_once", snapshot_interval=0.3,
    checkpoints=Checkpointing(interval=0.5),
)
visits = flow.source(KafkaSource("{prefix}visits")).key_by(lambda visit: visit["who"])
counts = visits.fold("count", int, lambda n, visit: (n + 1, {{**visit, "count": n + 1}}), ttl={ttl})
counts.sink(KafkaSink("{prefix}counts"))
"""


class Visit(NamedTuple):
    """A result: the number of a visit, its time in milliseconds, and the count of the visitor."""

    number: int
    millis: int
    nth: int


class VisitsFlow:
    """A flow that counts the visits of each visitor, until the visitor has been away for long."""

    def __init__(self, broker: Broker, prefix: str, folder: Path) -> None:
        self._bootstrap, self._prefix, self._folder, self._fed = broker.bootstrap, prefix, folder, 0
        self.module = folder / "flow.py"
        self.module.write_text(MODULE.format(prefix=prefix, ttl=TTL / 1000))
        for topic in ("visits", "counts"):
            create_topic(self._bootstrap, prefix + topic, PARTITIONS)

    def run(self, *options: str) -> list[str]:
        """Return the words that run the flow."""
        return run_command(self.module, self._prefix, HEARTBEAT_TIMEOUT, *options)

    def feed(self, count: int = 1500) -> None:
        """Feed the next visits, those of a visitor to one partition."""
        some = range(self._fed, self._fed + count)
        records = [
            Record(
                json.dumps({"who": who, "n": n}).encode(), partition=who % PARTITIONS,
                timestamp=START + n * STEP,
            )
            for n in some
            for who in _visitors(n)
        ]  # fmt: skip
        produce(self._bootstrap, self._prefix + "visits", records)
        self._fed += count

    def until_answered(self, flow: FlowProcess) -> None:
        """Wait until the result of each visit is committed."""
        wanted = sum(len(_visitors(n)) for n in range(self._fed))

        def answered() -> bool:
            assert flow.process.poll() is None, flow.said
            return len(consume_all(self._bootstrap, self._prefix + "counts")) >= wanted

        until(answered, f"{wanted} visits are counted: {flow.said}")

    def check(self) -> tuple[int, set[int]]:
        """Compare the results with those of one thread, given the times of the visits. Return how
        many visitors have expired and come again, and those that have not expired at the end."""
        found, newest = defaultdict[int, list[Visit]](list), 0
        for result in consume_all(self._bootstrap, self._prefix + "counts"):
            value, millis = json.loads(result.value or b""), to_millis(time_of(result))
            found[value["who"]].append(Visit(value["n"], millis, value["count"]))
            newest = max(newest, millis)
        visits = defaultdict[int, list[int]](list)
        for n in range(self._fed):
            for who in _visitors(n):
                visits[who].append(n)
        returned, alive = 0, set[int]()
        assert found.keys() == visits.keys()
        for who, numbers in visits.items():
            count, due = 0, 0
            assert [visit.number for visit in found[who]] == numbers
            for visit in found[who]:
                returned += 0 < due <= visit.millis
                count = count + 1 if visit.millis < due else 1
                assert visit.nth == count, f"visitor {who}: {found[who]}"
                due = visit.millis + TTL
            if due > newest:
                alive.add(who)
        return returned, alive

    def stored(self) -> set[int]:
        """Return the visitors whose states the newest checkpoint has on the state topic."""
        settings = {"bootstrap.servers": self._bootstrap}
        names = topic_names(self._prefix, "visits")
        with checkpoints.open_checkpoints(settings, names) as there:
            newest = there.newest()
        assert newest is not None
        database = Database(self._folder / "stored", 1 << 20)
        arrived = threading.Event()
        topic = KafkaStateTopic(settings, names.state, 0, arrived)
        found = set[int]()
        with contextlib.closing(topic), contextlib.closing(database):
            store = database.store("count", codec.PLAIN, None, expires=True)
            for manifest in newest[1].manifests:
                loader = LayerLoader(store, manifest, topic)
                while not loader.step(10_000):
                    arrived.wait(0.1)
                found |= {int(str(codec.decode(key))) for key, _ in store.scan(manifest.bin)}
        return found


def _visitors(n: int) -> list[int]:
    """Return who comes at the n-th time: somebody new, and some who have been there."""
    again = [n - later for left, later in AGAIN.items() if n >= later and (n - later) % 4 == left]
    return [n, *again]
