"""The demo's load, in a process of its own: flights go out on schedule, answers are clocked in.

Open loop: record i is due at start + i / rate, whatever became of the ones before it, and its
latency runs from then until its last result has come back from the broker. A process of its own,
so that neither side waits for the coordinator's interpreter. Cost: about a quarter of a core at
8,000 records/s; what arrives is looked at every two milliseconds, which latencies include.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import numpy as np
from confluent_kafka import TopicPartition

from meander.app.demo.data import Records, load
from meander.connectors.kafka import client
from meander.connectors.kafka.client import ConsumedMessage
from meander.dataflow.records.batch import Int64s
from meander.schemas.errors import MeanderError

REPORT_EVERY = 0.1
"""Seconds between two reports."""
PATIENCE = 30.0
"""Seconds without any new result, once all is sent, after which the rest is given up."""
BURST = 500
"""Records sent at most before results are looked at again."""
MOST = 10_000
"""Results taken over at once."""
TURN = 0.002
"""Seconds between two looks at what is due and what has arrived."""


@dataclass(frozen=True, slots=True)
class FeedPlan:
    """What to produce where, and where the answers come."""

    table: Path
    settings: dict[str, str] = field(repr=False)
    source: str
    first: str
    """A results topic that is only waited for."""
    last: str
    """The results topic at the end of the flow: its records are timed."""
    partitions: int
    rate: int
    """Records per second."""
    hold: float = 0.0
    """The share of the records, at the end, that is not due until it is released."""

    def free(self, records: int) -> int:
        """How many of so many are due without that."""
        return records - int(self.hold * records)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The records are at hand: their times, milliseconds since 1970, shape (n,)."""

    times: Int64s


@dataclass(frozen=True, slots=True)
class FeedProgress:
    """How far things are, in records."""

    sent: int
    answered: int


@dataclass(frozen=True, slots=True)
class Clocked:
    """When each record was due and its last result arrived; nanoseconds since 1970, shape (n,)."""

    due: Int64s
    arrived: Int64s
    """0 where no result came."""

    @property
    def latency_ms(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Of each record; NaN where no result came."""
        late = (self.arrived - self.due) / 1e6
        return np.where(self.arrived > 0, late, np.nan)


Report = Loaded | FeedProgress | Clocked


class FeedProcess:
    """The parent's end: `loaded`, `start`, then `reports` until the last of them, `Clocked`.

    Where records are held back, `release` is to be called meanwhile.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def loaded(self) -> Int64s:
        """Wait until the records are at hand; their times, milliseconds since 1970, shape (n,)."""
        loaded = self._receive()
        assert isinstance(loaded, Loaded)
        return loaded.times

    def start(self) -> None:
        """Begin to send."""
        self._connection.send(True)

    def release(self) -> None:
        """Let what is held back be due from now on."""
        self._connection.send(True)

    def reports(self, within: float) -> Iterator[Report]:
        """What has been reported, waiting up to `within` seconds for the first."""
        while self._connection.poll(within):
            within = 0.0
            yield self._receive()

    def _receive(self) -> Report:
        try:
            report = self._connection.recv()
        except EOFError:
            raise MeanderError("the demo's load", "its process ended before its work") from None
        assert isinstance(report, Loaded | FeedProgress | Clocked)
        return report


@contextmanager
def feeding(plan: FeedPlan) -> Iterator[FeedProcess]:
    """A feed; its process ends with the block."""
    ours, theirs = multiprocessing.Pipe()
    # A fork would carry this process's threads and native libraries along half-way.
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(plan, theirs), name="demo feed", daemon=True
    )
    process.start()
    theirs.close()
    try:
        yield FeedProcess(ours)
    finally:
        ours.close()
        process.join(timeout=5.0)
        if process.is_alive():
            process.kill()
            process.join()


def _run(plan: FeedPlan, parent: Connection) -> None:
    # A Ctrl-C is for the parent, which closes the connection when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    records = load(plan.table, plan.partitions)
    results = _Results(plan, records)
    sender = _Sender(plan, records)
    try:
        parent.send(Loaded(records.times))
        if not parent.recv():
            return
        _drive(sender, results, parent)
    except (BrokenPipeError, ConnectionResetError, EOFError):
        # Whoever wanted this is gone, or does not want it any more.
        return
    finally:
        results.close()


def _drive(sender: _Sender, results: _Results, parent: Connection) -> None:
    sender.begin()
    wanted = len(sender.records)
    report_at = 0.0
    news_at, seen = time.monotonic(), 0
    while results.answered < wanted or not results.complete(wanted):
        if parent.poll():
            parent.recv()
            sender.release()
        sender.step()
        results.step()
        now = time.monotonic()
        if results.answered > seen or not sender.done:
            news_at, seen = now, results.answered
        elif now - news_at > PATIENCE:
            break
        if now >= report_at:
            report_at = now + REPORT_EVERY
            parent.send(FeedProgress(sender.sent, results.answered))
        time.sleep(TURN)
    parent.send(FeedProgress(sender.sent, results.answered))
    parent.send(Clocked(sender.due, results.arrived))


class _Sender:
    def __init__(self, plan: FeedPlan, records: Records) -> None:
        self.records = records
        self.sent = 0
        self.due = np.zeros(len(records), np.int64)
        self._free = plan.free(len(records))
        self._topic, self._rate = plan.source, plan.rate
        self._producer = client.producer(plan.settings)
        self._partitions: list[int] = records.partitions.tolist()
        self._headers: list[list[tuple[str, str | bytes | None]]] = [
            [("time", b"%d" % millis)] for millis in records.times.tolist()
        ]

    @property
    def done(self) -> bool:
        return self.sent == len(self.records)

    def begin(self) -> None:
        """The first record is due now."""
        steps = np.arange(len(self.records)) * (1e9 / self._rate)
        self.due = time.time_ns() + steps.astype(np.int64)

    def release(self) -> None:
        """The first record that is held back is due now, if it has not been before."""
        held = self.due[self._free :]
        held += max(0, time.time_ns() - int(held[0])) if len(held) else 0
        self._free = len(self.records)

    def step(self) -> None:
        """Send what is due."""
        self._producer.poll(0)
        ready = int(np.searchsorted(self.due[: self._free], time.time_ns(), side="right"))
        for at in range(self.sent, min(ready, self.sent + BURST)):
            try:
                self._producer.produce(
                    self._topic,
                    self.records.values[at],
                    self.records.keys[at],
                    self._partitions[at],
                    headers=self._headers[at],
                )
            except BufferError:
                # The broker is behind; the record stays due, and its latency says so.
                return
            self.sent = at + 1


class _Results:
    """Clocks the results at the end of the flow by where their cause lies on the source topic."""

    def __init__(self, plan: FeedPlan, records: Records) -> None:
        self.answered = 0
        self.arrived = np.zeros(len(records), np.int64)
        # An idempotent producer puts the records of a partition into a fresh topic as they were
        # sent: the n-th of them has offset n.
        self._at = [np.flatnonzero(records.partitions == p) for p in range(plan.partitions)]
        self._consumer = client.consumer(plan.settings, "meander-demo")
        found = self._consumer.list_topics(timeout=client.ANSWER).topics
        self._firsts = [TopicPartition(plan.first, p) for p in found[plan.first].partitions]
        lasts = [TopicPartition(plan.last, p, 0) for p in found[plan.last].partitions]
        self._consumer.assign(lasts)

    def step(self) -> None:
        """Take what has arrived."""
        messages = cast(list[ConsumedMessage], self._consumer.consume(MOST, timeout=0))
        now = time.time_ns()
        for message in messages:
            if message.error() is not None:
                continue  # Only ends of partitions: all else the client waits out, or says itself.
            self.answered += 1
            headers = dict(message.headers() or ())
            partition, offset = headers["meander.partition"], headers["meander.offset"]
            assert partition is not None
            assert offset is not None
            self.arrived[self._at[int(partition)][int(offset)]] = now

    def complete(self, wanted: int) -> bool:
        """Whether the other topic too holds as many results; they leave by another way."""
        ends = [self._consumer.get_watermark_offsets(at, client.ANSWER) for at in self._firsts]
        return sum(high - low for low, high in ends) >= wanted

    def close(self) -> None:
        self._consumer.close()
