"""A flow while it is measured: its processes, its events, their CPU time and their memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, TypeVar
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition

from benchmarks import load
from meander.connectors.kafka import client
from meander.connectors.kafka.sink.record_producer import RecordProducer, ignore_delivery
from meander.connectors.topics.internal_topics import TopicNames, topic_names
from meander.schemas.status import (
    Aborted,
    CheckpointFailed,
    CommandRejected,
    Event,
    RolledBack,
    Started,
    parse_event,
)

ROOT = Path(__file__).parent.parent
MODULE, PROCESSING = ROOT / "benchmarks" / "counting.py", ROOT / "benchmarks" / "processing.py"
MEANDER = Path(sys.executable).with_name("meander")
PARTITIONS = 2
WORKERS = 2
SETTINGS = {"linger.ms": "5"}
"""Of drains: Kafka's own default of 5 ms, as the others have it too."""
PATIENCE = 900.0
"""Seconds after which what is waited for is given up."""
_STARTED = re.compile(r"worker_started worker=\d+ process=(\d+)")
FAILURES = CommandRejected, CheckpointFailed, Aborted, RolledBack
"""By which a command may end otherwise than it should."""
SUMMARY = '"type": "summary"'
"""In the lines of a driver that are no events."""
E = TypeVar("E", bound=Event)


class Unavailable(Exception):
    """The flow rejects such a command; the message says why."""


@dataclass(frozen=True, slots=True)
class Running:
    """A flow that has started."""

    bootstrap: str
    own: str
    """The prefix of the topics that are deleted with it."""
    topic: str
    """Of its results."""
    prefix: str
    names: TopicNames
    """Of its internal topics."""
    workers: tuple[int, ...]
    """The processes of those that were there at the start."""
    _driver: subprocess.Popen[str]
    _log: IO[str]
    # Connected already: a new client may take seconds where all cores are at work.
    _watcher: Consumer
    _commands: RecordProducer
    _events: list[tuple[float, Event]] = field(default_factory=list)
    """With when each came, seconds since 1970."""

    def current(self) -> tuple[int, ...]:
        """The processes of the workers of its present execution."""
        return tuple(_processes(self._log))[-len(self.workers) :]

    def events(self, kind: type[E], id: str | None = None) -> list[tuple[float, E]]:
        """Those of a kind so far, or those of one command."""
        return [
            (at, event) for at, event in list(self._events)
            if isinstance(event, kind) and (id is None or getattr(event, "id", None) == id)
        ]  # fmt: skip

    def results(self) -> int:
        """How many records its results' topic has."""
        spread = range(load.partitions_of(self._watcher, self.topic))
        places = [TopicPartition(self.topic, n) for n in spread]
        ends = [self._watcher.get_watermark_offsets(at, timeout=load.ANSWER) for at in places]
        return sum(end for _, end in ends)

    def give(self, **command: object) -> float:
        """Put a command on the control topic; when that was, seconds since 1970."""
        at = time.time()
        data = json.dumps({"meander": "command", **command}).encode()
        self._commands.send(data, None, ignore_delivery, [])
        self._commands.flush(client.REQUEST_TIMEOUT)
        return at

    def end(self, id: str, kind: type[E]) -> tuple[float, E]:
        """Wait for the last event of a command, and return it with its time. Raises Unavailable
        where the flow rejects the command, AssertionError where the command fails."""
        self.until(lambda: any(self.events(one, id) for one in (kind, *FAILURES)))
        for _, rejected in self.events(CommandRejected, id):
            raise Unavailable(rejected.reason)
        assert self.events(kind, id), self._events[-3:]
        return self.events(kind, id)[0]

    def ended(self) -> None:
        """Return once its driver has ended as it was told to."""
        code = self._driver.wait(PATIENCE)
        assert code == 0, f"the driver has failed: {_text(self._log)[-2000:]}"

    def until_more(self, kind: type[Event], count: int) -> None:
        """Return once there are more than `count` events of a kind."""
        self.until(lambda: len(self.events(kind)) > count)

    def until_results(self, count: int, seconds: float = 0.05) -> None:
        """Return once there are `count` results."""
        self.until(lambda: self.results() >= count, seconds)

    def until(self, holds: Callable[[], bool], seconds: float = 0.01) -> None:
        """Check a condition every few `seconds`. Raises AssertionError, with the last events of the
        driver, where the driver has ended or the condition takes too long."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            last = self._events[-3:]
            assert self._driver.poll() is None, f"the flow has ended: {last}"
            assert time.monotonic() < deadline, f"nothing came for {PATIENCE:g} s: {last}"
            time.sleep(seconds)


@contextmanager
def flow(
    bootstrap: str,
    source: str,
    bench: Mapping[str, str],
    *,
    kafka: Mapping[str, str] = MappingProxyType({}),
    workers: int = WORKERS,
    room: int = 0,
    partitions: int = PARTITIONS,
    prefix: str | None = None,
    module: Path = MODULE,
    master: str | None = None,
    options: Sequence[str] = (),
    after: Running | None = None,
) -> Iterator[Running]:
    """The counting flow, or another, from its start to the block's end.

    `bench` are its MEANDER_BENCH_ variables, `kafka` librdkafka's settings, `room` is for how many
    workers more, `options` are those of `meander run`; internal topics have a `prefix` of their own
    where they are there before, and all topics are those of `after` where it continues a flow that
    has stopped. The broker stamps results as they come in.
    """
    own = f"bench-{uuid4().hex[:8]}." if after is None else after.own
    prefix, topic = prefix or own, f"{own}out"
    if after is None:
        load.create(bootstrap, topic, partitions=partitions, message_timestamp_type="LogAppendTime")
    words = ["run", str(module), "--workers", str(workers), "--prefix", prefix, "--no-metrics",
             "--master", master or f"local[{workers + room + 1}]", "--json", *options]  # fmt: skip
    for name, value in kafka.items():
        words += ["--set", f"{name}={value}"]
    variables = environment(bootstrap, {**bench, "PREFIX": own, "SOURCE": source})
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [MEANDER, *words], env=variables, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            lines = (line for line in process.stdout if SUMMARY not in line)
            events = (parse_event(line.encode()) for line in lines)
            assert any(isinstance(event, Started) for event in events), f"no start: {_text(log)}"
            settings, topics = {"bootstrap.servers": bootstrap}, topic_names(prefix, "bench")
            with (
                closing(client.consumer(settings, "watcher")) as watcher,
                closing(RecordProducer(settings, topics.control)) as commands,
            ):
                running = Running(bootstrap, own, topic, prefix, topics, tuple(_processes(log)),
                                  process, log, watcher, commands)  # fmt: skip
                running.results()
                # A driver stops where no process reads its events.
                threading.Thread(target=_hear, args=(events, running._events), daemon=True).start()
                yield running
        finally:
            process.terminate()
            process.wait()
    if after is None:
        load.delete(bootstrap, own)


def _hear(events: Iterable[Event], heard: list[tuple[float, Event]]) -> None:
    for event in events:
        heard.append((time.time(), event))  # noqa: PERF401 - others read meanwhile


def _text(log: IO[str]) -> str:
    return os.pread(log.fileno(), 1 << 26, 0).decode()


def _processes(log: IO[str]) -> Iterator[int]:
    return map(int, _STARTED.findall(_text(log)))


def drain(bootstrap: str, source: str, records: int, **bench: str) -> float:
    """Records per second of the counting flow on two workers, for a backlog: from when all run to
    the last result on its topic."""
    with flow(bootstrap, source, bench, kafka=SETTINGS) as running:
        began = time.monotonic()
        running.until_results(records, 0.02)
        return records / (time.monotonic() - began)


def environment(bootstrap: str, bench: Mapping[str, str]) -> dict[str, str]:
    """For a command that defines the counting flow."""
    variables = {f"MEANDER_BENCH_{name}": value for name, value in bench.items()}
    ours = {"MEANDER_BOOTSTRAP": bootstrap, "PYTHONPATH": str(ROOT)}
    return os.environ | variables | ours


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """Bytes of a process in memory (PSS: what it shares is divided)."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)
    assert found is not None, "no Pss in smaps_rollup"
    return int(found[1]) * 1024
