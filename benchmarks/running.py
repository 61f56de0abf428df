"""A flow while it is measured: its processes, what it says, their CPU time and their memory."""

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import load
from meander.connectors.topics.topics import Names, names

ROOT = Path(__file__).parent.parent
MODULE = ROOT / "benchmarks" / "counting.py"
MEANDER = Path(sys.executable).with_name("meander")
PARTITIONS = 2
WORKERS = 2
SETTINGS = {"linger.ms": "5"}
"""Of drains: Kafka's own default of 5 ms, as the others have it too."""
PATIENCE = 900.0
"""Seconds after which what is waited for is given up."""
_UP = re.compile(r"worker_started worker=\d+ process=(\d+)")


@dataclass(frozen=True, slots=True)
class Said:
    """An event of the driver, and when it came, seconds since 1970."""

    at: float
    type: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Running:
    """A flow that has started."""

    bootstrap: str
    topic: str
    """Of its results."""
    names: Names
    """Of its internal topics."""
    workers: tuple[int, ...]
    """The processes of those that were there at the start."""

    watcher: Consumer
    """Connected already: a new client may take seconds where all cores are at work."""
    commands: Producer
    """Connected, too."""
    lives: Callable[[], bool]
    told: Callable[[], str]
    """What its log says so far."""
    said: Sequence[Said]
    """So far; summaries are left out."""

    def current(self) -> tuple[int, ...]:
        """The processes of the workers of its present life."""
        return tuple(map(int, _UP.findall(self.told())))[-len(self.workers) :]

    def events(self, type: str) -> list[Said]:
        """Those of a type, so far."""
        return [one for one in list(self.said) if one.type == type]

    def results(self) -> int:
        """How many records its results' topic has."""
        places = [
            TopicPartition(self.topic, n) for n in range(load.partitions(self.watcher, self.topic))
        ]
        ends = [self.watcher.get_watermark_offsets(place, timeout=30) for place in places]
        return sum(end for _, end in ends)

    def give(self, command: Mapping[str, object]) -> float:
        """Put a command on the control topic; when that was, seconds since 1970."""
        at = time.time()
        self.commands.produce(
            self.names.control, json.dumps({"meander": "command"} | dict(command))
        )
        self.commands.flush()
        return at

    def of(self, id: str) -> list[Said]:
        """What has been said of a command."""
        return [one for one in list(self.said) if one.fields.get("id") == id]

    def answer(self, id: str, *types: str) -> Said:
        """The first event of a command that is of one of these types, once it has come."""

        def found() -> list[Said]:
            return [one for one in self.of(id) if one.type in types]

        self._until(lambda: bool(found()), 0.01)
        return found()[0]

    def until_results(self, count: int, seconds: float = 0.05) -> None:
        """Returns once there are so many results."""
        self._until(lambda: self.results() >= count, seconds)

    def until_events(self, type: str, count: int) -> None:
        """Returns once there are so many of a type."""
        self._until(lambda: len(self.events(type)) >= count, 0.01)

    def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Looks every so many seconds. Raises AssertionError where it cannot be or takes too long,
        with the last that the driver has said."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            last = [one.fields for one in self.said][-3:]
            assert self.lives(), f"the flow has ended: {last}"
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
    stamped: bool = False,
) -> Iterator[Running]:
    """The counting flow, or another, from its start to the block's end.

    `bench` are its MEANDER_BENCH_ variables, `kafka` librdkafka's settings, `room` is for how many
    workers more; internal topics have a `prefix` of their own where they are there before. The
    broker stamps results as they come in, if so asked.
    """
    own = f"bench-{uuid4().hex[:8]}."
    prefix = prefix or own
    settings = {"message_timestamp_type": "LogAppendTime"} if stamped else {}
    load.create(bootstrap, f"{own}out", partitions=partitions, **settings)
    words = ["run", str(module), "--workers", str(workers), "--prefix", prefix, "--no-metrics",
             "--master", f"local[{workers + room + 1}]", "--json"]  # fmt: skip
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
        said: list[Said] = []
        # A driver whose events nobody reads comes to a halt.
        hears = threading.Thread(target=_hear, args=(process.stdout, said), daemon=True)
        try:
            started = any('"started"' in line for line in process.stdout)
            log.seek(0)
            told = log.read()
            assert started, f"the flow did not start: {told}"
            pids = tuple(map(int, _UP.findall(told)))
            called = names(prefix, "bench")
            with closing(_watcher(bootstrap, f"{own}out")) as watcher:
                running = Running(
                    bootstrap, f"{own}out", called, pids, watcher,
                    _commands(bootstrap, called.control), lambda: process.poll() is None,
                    partial(_read, log.fileno()), said,
                )  # fmt: skip
                hears.start()
                yield running
        finally:
            process.terminate()
            process.wait()
    load.delete_all(bootstrap, own)


def _read(file: int) -> str:
    return os.pread(file, 1 << 26, 0).decode()


def environment(bootstrap: str, bench: Mapping[str, str]) -> dict[str, str]:
    """For a command that defines the counting flow."""
    variables = {f"MEANDER_BENCH_{name}": value for name, value in bench.items()}
    ours = {"MEANDER_BOOTSTRAP": bootstrap, "PYTHONPATH": str(ROOT)}
    return os.environ | variables | ours


def _hear(lines: Iterable[str], said: list[Said]) -> None:
    for line in lines:
        at, fields = time.time(), json.loads(line)
        if fields["type"] != "summary":
            said.append(Said(at, fields["type"], fields))


def _watcher(bootstrap: str, topic: str) -> Consumer:
    watcher = Consumer({"bootstrap.servers": bootstrap, "group.id": "watcher", "log_level": 2})
    for number in range(load.partitions(watcher, topic)):
        watcher.get_watermark_offsets(TopicPartition(topic, number), timeout=30)
    return watcher


def _commands(bootstrap: str, topic: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 2})
    load.partitions(producer, topic)
    return producer


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """Bytes of a process in memory (PSS: what it shares is divided)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss in smaps_rollup")
