"""A flow over a changing graph as a process, the changes that it reads, and the check of its
answers.

The flow also writes the changes that it has read. Their logical times are those of the answers, so
each time has an answer that a computation from all changes up to it gives.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any, ClassVar

from meander.connectors.topics.internal_topics import topic_names
from tests.support.collections.clique_flows import Expected, Rows
from tests.support.collections.graph_flows import GRAPH_FLOWS
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, consume_all, create_topic, produce, time_of, until
from tests.support.process.flow_process import FlowProcess, meander, run_command

HEARTBEAT_TIMEOUT = 2
NODES = 12
PARTITIONS = 3
START = 1_700_000_000_000
NONSENSE = {
    b'{"edge":[1]}': "it is no edge, such as",
    b'{"edge":["a",2],"diff":1}': "its key is 'a', no integer of 64 bits",
    b"{oops": "JSON is malformed",
    b'{"root":1,"diff":1}': "it is no edge, such as",
}
"""Records that are no edges, and what their dead letters say."""

MODULE = """
from meander import Checkpointing, Flow, KafkaSink, KafkaSource
from meander.app.flows.graphs import bfs, degrees, edge, root

flow = Flow("graph", delivery="exactly_once", checkpoints=Checkpointing(interval=0.5))
edges = flow.source(KafkaSource("{prefix}edges"), "edges").collection(edge)
roots = flow.source(KafkaSource("{prefix}roots"), "roots").collection(root)
edges.changes().sink(KafkaSink("{prefix}edges-read"))
roots.changes().sink(KafkaSink("{prefix}roots-read"))
degrees(edges).changes().sink(KafkaSink("{prefix}degrees"))
bfs(edges, roots).changes().sink(KafkaSink("{prefix}bfs"))
"""
INPUTS = "edges", "roots"
ANSWERS: dict[str, Expected] = {name: GRAPH_FLOWS[name].expected for name in ("degrees", "bfs")}
"""The topics of answers, and how each answer follows from all edges and roots."""


@dataclass(frozen=True)
class Change:
    """A change on a topic, at its logical time."""

    time: int
    row: tuple[Any, Any]
    diff: int


class GraphFlow:
    """A flow over edges and roots that come and go at random, from one seed."""

    many: ClassVar[Mapping[str, int]] = {"edges": 20, "roots": 2}
    """About how many rows of an input are there in the long run."""
    copies = 1
    """How often a row may be there."""
    nonsense = NONSENSE

    def __init__(
        self,
        broker: Broker,
        prefix: str,
        folder: Path,
        seed: int,
        definition: str = MODULE,
        answers: Mapping[str, Expected] = ANSWERS,
    ) -> None:
        self.answers = answers
        self._bootstrap, self._prefix, self._rng = broker.bootstrap, prefix, random.Random(seed)
        self._folder, self._millis = folder, START
        self.fed = {name: Counter[tuple[int, int]]() for name in INPUTS}
        """The rows that are there after all changes so far."""
        self.counts = Counter[str]()
        self.module = folder / "flow.py"
        self.module.write_text(definition.format(prefix=prefix))
        topics = {"edges": PARTITIONS, "roots": 1, "edges-read": 2, "roots-read": 2}
        for topic, partitions in (topics | dict.fromkeys(self.answers, 2)).items():
            create_topic(self._bootstrap, prefix + topic, partitions)

    def run(self, *options: str) -> list[str]:
        """Return the words that run the flow."""
        return run_command(self.module, self._prefix, HEARTBEAT_TIMEOUT, *options)

    def command(self, *words: str) -> None:
        """Give a command and follow it to its end."""
        words = (words[0], "graph", *words[1:], "--prefix", self._prefix)
        with meander(self._folder, self._bootstrap, *words) as command:
            assert command.exit_code() == 0, command.said
        self.counts[words[0]] += 1

    def feed(self, changes: int = 50) -> None:
        """Add and remove edges and roots. Some changes share a millisecond."""
        records: dict[str, list[Record]] = {name: [] for name in INPUTS}
        for _ in range(changes):
            self._millis += self._rng.choice([0, 0, 1, 1, 5])
            name = "roots" if self._rng.random() < 0.1 else "edges"
            row, diff = self._next(self.fed[name], name)
            self.fed[name][row] += diff
            data = json.dumps(self._record(name, row) | {"diff": diff}).encode()
            # A row has one partition, so its removal stays behind its addition.
            partition = sum(row) % (PARTITIONS if name == "edges" else 1)
            records[name].append(Record(data, partition=partition, timestamp=self._millis))
        for name, some in records.items():
            produce(self._bootstrap, self._prefix + name, some)
        self.counts["changes"] += changes

    def feed_nonsense(self) -> None:
        """Feed records that are no edges."""
        records = [Record(data, partition=0, timestamp=self._millis) for data in self.nonsense]
        produce(self._bootstrap, f"{self._prefix}edges", records)

    def check_dead_letters(self) -> None:
        """Raise AssertionError unless the records that are no edges are dead letters, and each
        says why."""
        letters = consume_all(self._bootstrap, topic_names(self._prefix, "graph").dead)
        reasons = {one.value: str(dict(one.headers)["meander.reason"]) for one in letters}
        assert reasons.keys() == self.nonsense.keys()
        for value, reason in self.nonsense.items():
            assert reason in reasons[value]

    def until_answered(self, flow: FlowProcess) -> None:
        """Wait until the flow has answered all changes so far."""

        def answered() -> bool:
            assert flow.process.poll() is None, flow.said
            return self.is_answered()

        until(answered, f"all changes are answered: {flow.said}")

    def is_answered(self) -> bool:
        """Return whether the answer at each time is right, up to the last change. Raises
        AssertionError for a change that is there twice."""
        read = {name: self._changes(f"{name}-read") for name in INPUTS}
        if any(_sum(read[name]) != +self.fed[name] for name in INPUTS):
            return False
        found = [self._changes(name) for name in self.answers]
        given = +self.fed["edges"], +self.fed["roots"]
        last = [+expected(*given) for expected in self.answers.values()]
        if [*map(_sum, found)] != last:
            return False  # To compute all times again takes longer than to look again.
        expected = [*self._recomputed(read["edges"], read["roots"])]
        return [*_accumulated(found, [time for time, _ in expected])] == expected

    def check(self) -> None:
        """Raise AssertionError unless the answer at each time is right, and none has changed at
        another time."""
        assert self.is_answered()
        changes = {
            name: self._changes(name) for name in (*self.answers, "edges-read", "roots-read")
        }
        times = {one.time for name in INPUTS for one in changes[f"{name}-read"]}
        for name in self.answers:
            assert changes[name]
            assert {one.time for one in changes[name]} <= times
            self.counts[f"changes of {name}"] += len(changes[name])
        self.counts["times"] += len(times)

    def _next(self, there: Counter[tuple[int, int]], name: str) -> tuple[tuple[int, int], int]:
        known, rng = sorted(+there), self._rng
        if rng.random() < len(known) / (2 * self.many[name]):
            return rng.choice(known), -1
        rows = [row for row in self._possible(name) if there[row] < self.copies]
        return rng.choice(rows), 1

    def _possible(self, name: str) -> Iterable[tuple[int, int]]:
        """Return the rows that an input may have."""
        return product(range(NODES), range(NODES) if name == "edges" else [0])

    def _record(self, name: str, row: tuple[int, int]) -> dict[str, object]:
        """Return a row as a record without its diff."""
        return {"edge": row} if name == "edges" else {"root": row[0]}

    def _recomputed(
        self, edges: Sequence[Change], roots: Sequence[Change]
    ) -> Iterable[tuple[int, list[Rows]]]:
        """Yield each time with the answers that a computation from all changes up to it gives."""
        sums = {name: Rows() for name in INPUTS}
        merged = [(one.time, "edges", one) for one in edges] + [
            (one.time, "roots", one) for one in roots
        ]
        for time, some in groupby(sorted(merged, key=lambda one: one[0]), key=lambda one: one[0]):
            for _, name, one in some:
                sums[name][one.row] += one.diff
            given = +sums["edges"], +sums["roots"]
            yield time, [expected(*given) for expected in self.answers.values()]

    def _changes(self, topic: str) -> list[Change]:
        found = [*map(_change, consume_all(self._bootstrap, self._prefix + topic))]
        often = Counter((one.time, one.row) for one in found)
        assert all(count == 1 for count in often.values()), f"{topic}: {often.most_common(3)}"
        return sorted(found, key=lambda one: one.time)


def _change(record: Record) -> Change:
    node, value, diff = json.loads(record.value or b"").values()
    value = tuple(value) if isinstance(value, list) else value
    return Change(time_of(record), (node, value), diff)


def _sum(changes: Iterable[Change]) -> Rows:
    found = Rows()
    for one in changes:
        found[one.row] += one.diff
    return Rows({row: count for row, count in found.items() if count})


def _accumulated(
    found: Sequence[Sequence[Change]], times: Iterable[int]
) -> Iterable[tuple[int, list[Rows]]]:
    """Yield each time with the sums of the changes of each answer up to it."""
    sums, places = [Rows() for _ in found], [0 for _ in found]
    for time in times:
        for n, changes in enumerate(found):
            while places[n] < len(changes) and changes[places[n]].time <= time:
                sums[n][changes[places[n]].row] += changes[places[n]].diff
                places[n] += 1
        yield time, [Rows({row: n for row, n in one.items() if n}) for one in sums]
