"""How long a backlog takes: the yardstick's processes, and a flow of Meander's.

Both read the same topic from its beginning to its end and put a result per record on another. The
time runs from when all processes are ready until the last result is on its topic.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from benchmarks import load

ROOT = Path(__file__).parent.parent
PARTITIONS = 4


def yardstick(bootstrap: str, source: str, processes: int) -> float:
    """Records per second of so many processes of the plain loop."""
    sink = f"yardstick-{uuid4().hex[:8]}"
    load.create(bootstrap, sink, partitions=PARTITIONS)
    command = [sys.executable, "-m", "benchmarks.yardstick", bootstrap, source, sink]
    started = [
        subprocess.Popen(
            [*command, str(PARTITIONS), str(number), str(processes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for number in range(processes)
    ]  # fmt: skip
    for process in started:
        assert _line(process) == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [json.loads(_line(process)) for process in started]
    for process in started:
        process.wait()
    load.delete(bootstrap, sink)
    began, ended = min(one["began"] for one in told), max(one["ended"] for one in told)
    return float(sum(one["records"] for one in told) / (ended - began))


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def flow(bootstrap: str, source: str, records: int, workers: int, **bench: str) -> float:
    """Records per second of the counting flow; `bench` are its MEANDER_BENCH_ variables."""
    prefix = f"bench-{uuid4().hex[:8]}."
    load.create(bootstrap, f"{prefix}out", partitions=PARTITIONS)
    environment = os.environ | {
        f"MEANDER_BENCH_{name.upper()}": value for name, value in bench.items()
    }
    environment |= {"MEANDER_BENCH_PREFIX": prefix, "MEANDER_BENCH_SOURCE": source}
    environment["MEANDER_BOOTSTRAP"] = bootstrap
    module = str(ROOT / "benchmarks" / "counting.py")
    words = ["run", module, "--workers", str(workers), "--prefix", prefix, "--json"]
    with subprocess.Popen(
        [Path(sys.executable).with_name("meander"), *words],
        env=environment, stdout=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        started = next((line for line in running.stdout if '"started"' in line), None)
        assert started is not None, "the flow did not start"
        began = time.monotonic()
        _until(lambda: _written(bootstrap, f"{prefix}out") >= records)
        seconds = time.monotonic() - began
        running.terminate()
        running.stdout.read()
    load.delete(bootstrap, f"{prefix}out")
    return records / seconds


def _written(bootstrap: str, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    ends = {TopicPartition(topic, n): OffsetSpec.latest() for n in range(PARTITIONS)}  # type: ignore[no-untyped-call]
    return sum(answer.result().offset for answer in admin.list_offsets(ends).values())


def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.05)
