"""A flow with windows, joins and tables as a process, its visits, and the check of its results.

Visits come out of order, and one in thirty comes seconds later than its windows may wait. No
decision about logical time bridges the margin between both, so the topic alone decides about them.
`windows_reference.py` has the results of all visits at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from meander.state.times.time import to_millis
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, consume_all, create_topic, produce, time_of, until
from tests.support.process.feeding import feeding
from tests.support.process.flow_process import FlowProcess, run_command
from tests.support.process.windows_reference import (
    BEFORE,
    COUNT,
    DUE,
    GAP,
    HOP,
    LATE,
    LIVE,
    MINUTE,
    NAMELESS,
    NEAR,
    PARTITIONS,
    SLIDE,
    TABLES,
    TOP,
    USERS,
    Changes,
    Home,
    Reference,
    Rows,
    Visit,
    canonical,
    home_of,
    visit_of,
)

HEARTBEAT_TIMEOUT = 2
TIMED = "minutes", "sessions", "hops", "hop-lists", "slides", "top"
"""The topics whose results have the last time before the close of their windows."""
MODULE = """
from meander import Checkpointing, Flow, KafkaSink, KafkaSource, columns, count, field
from meander import hopping, session, sliding, tumbling


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

hops = by_user.window("hop", hopping({minute}, every={hop}, late={late})).fold(columns.count())
hops.sink(KafkaSink("{prefix}hops"), "write hops")
hops.side("late").sink(KafkaSink("{prefix}late-hops"), "write late hops")
hops.top({top}).sink(KafkaSink("{prefix}top"), "write top")
hop_lists = by_user.window("hop list", hopping({minute}, every={hop}, late={late}))
hop_lists.fold(list, listed).sink(KafkaSink("{prefix}hop-lists"), "write hop lists")
slides = by_user.window("slide", sliding({slide}, late={late})).fold(list, listed)
slides.sink(KafkaSink("{prefix}slides"), "write slides")
counts = by_user.window("count", count({count})).fold(list, listed)
counts.sink(KafkaSink("{prefix}counts"), "write counts")

guests = flow.table(KafkaSource("{prefix}users"), "guests", ttl={live})
guests.changes("guest changes").sink(KafkaSink("{prefix}guest-changes"), "write guest changes")
received = by_user.join(
    guests, on=lambda visit: "u%d" % visit["user"], how="left", copies="everywhere",
    name="received", step=lambda visit, row: {{"n": visit["n"], "name": row and row["name"]}},
)
received.sink(KafkaSink("{prefix}received"), "write received")

moves = flow.source(KafkaSource("{prefix}homes"), "moves")
moves.sink(KafkaSink("{prefix}moves"), "write moves")
homes = moves.table(
    lambda home: ("u%d" % home["user"], home if home["host"] else None), "homes"
)
homed = users.join(homes, name="homed", step=lambda user, home: {{**user, "n": home["n"]}})
homed.sink(KafkaSink("{prefix}homed"), "write homed")
hosted = homes.join(
    homed, on=lambda home: home["host"], name="hosted",
    step=lambda home, host: {{"n": home["n"], "host": host}},
)
hosted.sink(KafkaSink("{prefix}hosted"), "write hosted")
"""
EXACT = (
    "minutes", "late-minutes", "sessions", "late-sessions", "named", "pairs", "late-pairs",
    "hops", "late-hops", "top", "hop-lists", "slides", "guest-changes", "moves",
)  # fmt: skip
"""The topics whose results follow from what is fed alone."""
TOPICS = (*EXACT, *TABLES, "counts", "received")


class WindowsFlow:
    """A flow with windows, joins and tables over visits."""

    def __init__(self, broker: Broker, prefix: str, folder: Path) -> None:
        self._bootstrap, self._prefix = broker.bootstrap, prefix
        self._visits, self._homes = list[Visit](), list[Home]()
        self.module = folder / "flow.py"
        self.define()
        for topic in ("visits", "users", "homes", *TOPICS):
            create_topic(self._bootstrap, prefix + topic, PARTITIONS)
        rows: list[tuple[int, bytes | None]] = [
            (user, json.dumps({"name": f"user {user}"}).encode()) for user in range(USERS)
        ]
        rows = [*rows, (NAMELESS, None)]
        records = [Record(row, b"u%d" % user, timestamp=BEFORE) for user, row in rows]
        # Each partition ends with a record that gives no row.
        records += [Record(b"{", b"u0", p, BEFORE) for p in range(PARTITIONS)]
        produce(self._bootstrap, prefix + "users", records)

    def define(self, **other: int) -> None:
        """Define the flow, with other durations of some in milliseconds."""
        millis = {
            "minute": MINUTE, "gap": GAP, "near": NEAR, "late": LATE, "hop": HOP, "slide": SLIDE,
            "live": LIVE, **other,
        }  # fmt: skip
        seconds = {name: ms / 1000 for name, ms in millis.items()}
        numbers = {"count": COUNT, "top": TOP}
        self.module.write_text(MODULE.format(prefix=self._prefix, **seconds, **numbers))

    def run(self, *options: str) -> list[str]:
        """Return the words that run the flow."""
        return run_command(self.module, self._prefix, HEARTBEAT_TIMEOUT, *options)

    def feed(self, count: int = 500) -> None:
        """Feed the next visits, and the homes that change with them."""
        fed = len(self._visits)
        numbers = range(fed, fed + count)
        homes = [home_of(n) for n in numbers]
        records = [Record(json.dumps(one.value).encode(), one.key, None, one.at) for one in homes]
        produce(self._bootstrap, f"{self._prefix}homes", records)
        self._homes += homes
        self._put([visit_of(n) for n in numbers])

    def load(self) -> AbstractContextManager[None]:
        """Feed some visits every now and then while the block lasts, which a busy machine stands:
        each command waits for the records before its time."""
        return feeding(lambda: self.feed(30), pause=0.2)

    def close(self) -> None:
        """Feed records without a user, of a time at which all windows are closed and all rows with
        a time to live have ended."""
        latest = max(DUE, *(visit.at for visit in self._visits))
        end = latest + MINUTE + GAP + 2 * LATE
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
        reference = Reference(self._visits, self._homes)
        wanted = {topic: some.total() for topic, some in reference.exact.items()}
        wanted |= {"counts": reference.full_counts, "received": len(reference.visits)}
        tables = reference.last_rows()

        def answered() -> bool:
            assert flow.process.poll() is None, flow.said
            return all(len(self._read(topic)) >= number for topic, number in wanted.items()) and (
                all(self._last_rows(topic) == rows for topic, rows in tables.items())
            )

        until(answered, f"{wanted} results are there, and the last rows of tables: {flow.said}")

    def check(self) -> Counter[str]:
        """Compare the committed results and their times with those of one thread. Return how many
        results each topic has."""
        reference = Reference(self._visits, self._homes)
        for topic, results in reference.exact.items():
            found = Counter(map(canonical, self._values(topic)))
            assert not found - results, f"{topic}: nothing else is committed, and nothing twice"
            assert not results - found, f"{topic}: all of the reference is committed (I5)"
        for topic in TIMED:
            for one in self._read(topic):
                assert to_millis(time_of(one)) == json.loads(one.value or b"")["end"] + LATE - 1
        for one in self._read("guest-changes"):
            ends = json.loads(one.value or b"")["after"] is None
            assert to_millis(time_of(one)) == (DUE if ends else BEFORE), one
        visits, moves = self._times("named"), self._times("moves")
        reference.check_times(visits, moves)
        reference.check_counts(self._values("counts"), visits)
        reference.check_received(self._values("received"), visits)
        for topic, changes in reference.changes(moves).items():
            assert self._changes(topic) == changes, topic
        return Counter({topic: len(self._read(topic)) for topic in TOPICS})

    def committed(self) -> int:
        """Return how many results of minutes are committed."""
        return len(self._read("minutes"))

    def _times(self, topic: str) -> dict[int, int]:
        """Return the logical times of the results of a topic by their numbers."""
        return {json.loads(one.value or b"")["n"]: time_of(one) for one in self._read(topic)}

    def _changes(self, topic: str) -> Changes:
        """Return the changes of each key of a table, in their order on the topic."""
        found = Changes(list)
        for one in self._read(topic):
            row = json.loads(one.value or b"null")
            found[(one.key or b"").decode()].append((time_of(one), row))
        return found

    def _last_rows(self, topic: str) -> Rows:
        """Return the last row of each key of a table that has one."""
        last = {key: changes[-1][1] for key, changes in self._changes(topic).items()}
        return {key: row for key, row in last.items() if row is not None}

    def _values(self, topic: str) -> list[bytes]:
        return [one.value or b"null" for one in self._read(topic)]

    def _read(self, topic: str) -> list[Record]:
        return consume_all(self._bootstrap, self._prefix + topic)
