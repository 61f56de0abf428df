"""A flow while it is measured: its processes, their CPU time and their memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition

from benchmarks import load

ROOT = Path(__file__).parent.parent
PARTITIONS = 2
WORKERS = 2
SETTINGS = {"linger.ms": "5"}
"""Of drains: Kafka's own default of 5 ms, as the others have it too."""
_UP = re.compile(r"worker \d+ is up: process (\d+)")


@dataclass(frozen=True, slots=True)
class Running:
    """A flow that has started."""

    bootstrap: str
    topic: str
    """Of its results."""
    workers: tuple[int, ...]
    """Their processes."""

    watcher: Consumer
    """Connected already: a new client may take seconds where all cores are at work."""

    def results(self) -> int:
        """How many records its results' topic has."""
        places = [TopicPartition(self.topic, n) for n in range(PARTITIONS)]
        ends = [self.watcher.get_watermark_offsets(place, timeout=30) for place in places]
        return sum(end for _, end in ends)


@contextmanager
def flow(bootstrap: str, source: str, kafka: dict[str, str], **bench: str) -> Iterator[Running]:
    """The counting flow from its start to the block's end; `bench` are its MEANDER_BENCH_
    variables, `kafka` librdkafka's settings."""
    prefix = f"bench-{uuid4().hex[:8]}."
    load.create(bootstrap, f"{prefix}out", partitions=PARTITIONS)
    words = ["run", str(ROOT / "benchmarks" / "counting.py"), "--workers", str(WORKERS),
             "--prefix", prefix, "--no-metrics", "--json"]  # fmt: skip
    for name, value in kafka.items():
        words += ["--set", f"{name}={value}"]
    bench |= {"PREFIX": prefix, "SOURCE": source}
    environment = os.environ | {f"MEANDER_BENCH_{name}": value for name, value in bench.items()}
    environment |= {"MEANDER_BOOTSTRAP": bootstrap, "PYTHONPATH": str(ROOT)}
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            [Path(sys.executable).with_name("meander"), *words],
            env=environment, stdout=subprocess.PIPE, stderr=said, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        try:
            started = any('"started"' in line for line in process.stdout)
            said.seek(0)
            log = said.read()
            assert started, f"the flow did not start: {log}"
            workers = tuple(map(int, _UP.findall(log)))
            # Events go on; a driver whose events nobody reads comes to a halt.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            with closing(_watcher(bootstrap, f"{prefix}out")) as watcher:
                yield Running(bootstrap, f"{prefix}out", workers, watcher)
        finally:
            process.terminate()
            process.wait()
    load.delete(bootstrap, f"{prefix}out")


def _watcher(bootstrap: str, topic: str) -> Consumer:
    watcher = Consumer({"bootstrap.servers": bootstrap, "group.id": "watcher", "log_level": 2})
    for number in range(PARTITIONS):
        watcher.get_watermark_offsets(TopicPartition(topic, number), timeout=30)
    return watcher


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


def until(holds: Callable[[], bool], seconds: float = 0.05) -> None:
    """Returns once it holds."""
    while not holds():
        time.sleep(seconds)
