"""A flow with windows and joins as a process, its visits, and its results from all at once.

Visits come out of order, and one in thirty comes seconds later than its windows may wait. No
decision about logical time bridges the margin between both, so the topic alone decides about them.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from meander.state.times.time import to_millis
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, consume_all, create_topic, produce, time_of, until
from tests.support.process.feeding import feeding
from tests.support.process.flow_process import FlowProcess, run_command

HEARTBEAT_TIMEOUT = 2
PARTITIONS, USERS = 3, 40
START = 1_700_000_000_000
STEP = 4
"""Milliseconds from one visit to the next."""
MINUTE, GAP, NEAR, LATE = 1000, 200, 100, 3000
"""Milliseconds of a tumbling window, of the gap of a session, between two visits that the join
pairs at most, and of the lateness of all."""
NAMELESS = 7
"""A user whose row is deleted before the first visit."""
DISORDER, MARGIN, TOO_LATE = 300, 2000, 9000
"""Milliseconds that a visit may come late, that an idle advance may add to that, which is less than
one feed takes, and that a visit comes too late by."""
MODULE = """
from meander import Checkpointing, Flow, KafkaSink, KafkaSource, field, session, tumbling


def listed(numbers, visit):
    return [*numbers, visit["n"]]


flow = Flow(
    "visits", bins=4, delivery="exactly_once", snapshot_interval=0.3,
    checkpoints=Checkpointing(interval=0.5, policy="unaligned"),
)
source = KafkaSource("{prefix}visits", time=field("at"))
visits = flow.source(source).filter(lambda visit: visit["user"] is not None)
by_user = visits.key_by(lambda visit: visit["user"])
minutes = by_user.window("minute", tumbling({minute}, late={late})).fold(list, listed)
sessions = by_user.window("session", session({gap}, late={late}))
sessions = sessions.fold(list, listed, merge=lambda a, b: a + b)
users = flow.table(KafkaSource("{prefix}users"), "users")
named = visits.join(
    users, on=lambda visit: "u%d" % visit["user"], how="left", name="named",
    step=lambda visit, row: {{"n": visit["n"], "name": row and row["name"]}},
)
named.sink(KafkaSink("{prefix}named"), "write named")
pairs = by_user.join(
    by_user, within=(0.001, {near}), late={late}, name="pairs",
    step=lambda one, other: {{"n": one["n"], "other": other["n"]}},
)
pairs.sink(KafkaSink("{prefix}pairs"), "write pairs")
pairs.side("late").sink(KafkaSink("{prefix}late-pairs"), "write late pairs")
minutes.sink(KafkaSink("{prefix}minutes"), "write minutes")
minutes.side("late").sink(KafkaSink("{prefix}late-minutes"), "write late minutes")
sessions.sink(KafkaSink("{prefix}sessions"), "write sessions")
sessions.side("late").sink(KafkaSink("{prefix}late-sessions"), "write late sessions")
"""
TOPICS = "minutes", "late-minutes", "sessions", "late-sessions", "named", "pairs", "late-pairs"


class Visit(NamedTuple):
    """A visit: its number, who comes, the own time and the partition."""

    n: int
    user: int | None
    at: int
    partition: int

    @property
    def value(self) -> dict[str, object]:
        return {"n": self.n, "user": self.user, "at": self.at}


def visit_of(n: int) -> Visit:
    rng = random.Random(n)
    delay = TOO_LATE if n > 100 and rng.random() < 1 / 30 else rng.randrange(DISORDER)
    return Visit(n, rng.randrange(USERS), START + n * STEP - delay, rng.randrange(PARTITIONS))


class WindowsFlow:
    """A flow with tumbling windows, sessions, a table and an interval join over visits."""

    def __init__(self, broker: Broker, prefix: str, folder: Path) -> None:
        self._bootstrap, self._prefix = broker.bootstrap, prefix
        self._visits = list[Visit]()
        self.module = folder / "flow.py"
        self.define()
        for topic in ("visits", "users", *TOPICS):
            create_topic(self._bootstrap, prefix + topic, PARTITIONS)
        before = START - TOO_LATE
        rows: list[tuple[int, bytes | None]] = [
            (user, json.dumps({"name": f"user {user}"}).encode()) for user in range(USERS)
        ]
        rows = [*rows, (NAMELESS, None)]
        records = [Record(row, b"u%d" % user, timestamp=before) for user, row in rows]
        # Each partition ends with a record that gives no row.
        records += [Record(b"{", b"u0", p, before) for p in range(PARTITIONS)]
        produce(self._bootstrap, prefix + "users", records)

    def define(self, **other: int) -> None:
        """Define the flow, with other durations of some in milliseconds."""
        millis = {"minute": MINUTE, "gap": GAP, "near": NEAR, "late": LATE, **other}
        seconds = {name: ms / 1000 for name, ms in millis.items()}
        self.module.write_text(MODULE.format(prefix=self._prefix, **seconds))

    def run(self, *options: str) -> list[str]:
        """Return the words that run the flow."""
        return run_command(self.module, self._prefix, HEARTBEAT_TIMEOUT, *options)

    def feed(self, count: int = 500) -> None:
        """Feed the next visits."""
        fed = len(self._visits)
        self._put([visit_of(n) for n in range(fed, fed + count)])

    def load(self) -> AbstractContextManager[None]:
        """Feed some visits every now and then while the block lasts, which a busy machine stands:
        each command waits for the records before its time."""
        return feeding(lambda: self.feed(30), pause=0.2)

    def close(self) -> None:
        """Feed records without a user, of a time at which all windows are closed."""
        end = max(visit.at for visit in self._visits) + MINUTE + GAP + 2 * LATE
        first = len(self._visits)
        self._put([Visit(first + p, None, end, p) for p in range(PARTITIONS)])

    def _put(self, visits: Sequence[Visit]) -> None:
        records = [
            Record(json.dumps(one.value).encode(), partition=one.partition) for one in visits
        ]
        produce(self._bootstrap, self._prefix + "visits", records)
        self._visits += visits

    def until_answered(self, flow: FlowProcess) -> None:
        """Wait until as many results are committed as there have to be."""
        wanted = {topic: some.total() for topic, some in self._wanted().items()}

        def answered() -> bool:
            assert flow.process.poll() is None, flow.said
            return all(len(self._read(topic)) >= number for topic, number in wanted.items())

        until(answered, f"{wanted} results are there: {flow.said}")

    def check(self) -> Counter[str]:
        """Compare the committed results and their times with those of one thread. Return how many
        results each topic has."""
        wanted = self._wanted()
        for topic, results in wanted.items():
            found = Counter(map(_canonical, self._read(topic)))
            assert not found - results, f"{topic}: nothing else is committed, and nothing twice"
            assert not results - found, f"{topic}: all of the reference is committed (I5)"
        for topic in ("minutes", "sessions"):
            for one in self._read(topic):
                assert to_millis(time_of(one)) == json.loads(one.value or b"")["end"] + LATE - 1
        return Counter({topic: results.total() for topic, results in wanted.items()})

    def committed(self) -> int:
        """Return how many results of minutes are committed."""
        return len(self._read("minutes"))

    def _wanted(self) -> dict[str, Counter[str]]:
        """Return what a single thread makes of all visits at once."""
        visits = [visit for visit in self._visits if visit.user is not None]
        late = self._late()
        in_time = [visit for visit in visits if visit not in late]
        minutes = defaultdict[tuple[int, int], list[Visit]](list)
        by_user = defaultdict[int, list[Visit]](list)
        for visit in in_time:
            assert visit.user is not None
            minutes[visit.user, visit.at // MINUTE * MINUTE].append(visit)
            by_user[visit.user].append(visit)
        results = [
            _result(user, start, start + MINUTE, some) for (user, start), some in minutes.items()
        ]
        sessions = [
            _result(user, some[0].at, some[-1].at + GAP, some)
            for user, mine in by_user.items()
            for some in _sessions(sorted(mine, key=lambda visit: visit.at))
        ]
        lost = Counter(json.dumps(visit.value, sort_keys=True) for visit in late)
        # A late visit is late on both sides of the join.
        return {
            "minutes": Counter(results), "late-minutes": lost,
            "sessions": Counter(sessions), "late-sessions": lost,
            "named": Counter(map(_named, visits)),
            "pairs": Counter(one for mine in by_user.values() for one in _pairs(mine)),
            "late-pairs": lost + lost,
        }  # fmt: skip

    def _late(self) -> set[Visit]:
        """Return the visits that are late for all their windows, which no decision can change."""
        late, newest = set[Visit](), [0] * PARTITIONS
        latest = 0
        for visit in self._visits:
            newest[visit.partition] = max(newest[visit.partition], visit.at)
            latest = max(latest, visit.at)
            closes = [visit.at // MINUTE * MINUTE + MINUTE + LATE, visit.at + GAP + LATE]
            if max(closes) <= newest[visit.partition]:
                late.add(visit)
            else:
                assert latest + MARGIN < min(closes), "no decision makes it late"
        return late

    def _read(self, topic: str) -> list[Record]:
        return consume_all(self._bootstrap, self._prefix + topic)


def _sessions(visits: Sequence[Visit]) -> Iterator[list[Visit]]:
    """Yield the visits of each session of a user, in the order of their own times."""
    found = [visits[0]]
    for before, visit in pairwise(visits):
        if visit.at >= before.at + GAP:
            yield found
            found = []
        found.append(visit)
    yield found


def _pairs(visits: Sequence[Visit]) -> Iterator[str]:
    """Yield the pairs of the visits of a user."""
    for one in visits:
        for other in visits:
            if 1 <= other.at - one.at <= NEAR:
                yield json.dumps({"n": one.n, "other": other.n}, sort_keys=True)


def _named(visit: Visit) -> str:
    name = None if visit.user == NAMELESS else f"user {visit.user}"
    return json.dumps({"n": visit.n, "name": name}, sort_keys=True)


def _result(user: int, start: int, end: int, visits: Sequence[Visit]) -> str:
    numbers = sorted(visit.n for visit in visits)
    return json.dumps({"key": user, "start": start, "end": end, "value": numbers}, sort_keys=True)


def _canonical(result: Record) -> str:
    """Return a result with its numbers in order: their order depends on decisions about times."""
    value = json.loads(result.value or b"")
    if "value" in value:
        value["value"].sort()
    return json.dumps(value, sort_keys=True)
