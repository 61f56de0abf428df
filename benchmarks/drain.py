"""How long a backlog takes: the yardstick's processes, and a flow of Meander's.

Both read the same topic from its beginning to its end and put a result per record on another. The
time runs from when all processes are ready until the last result is on its topic.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from uuid import uuid4

from benchmarks import load, running
from benchmarks.running import PARTITIONS, ROOT


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


def flow(bootstrap: str, source: str, records: int, **bench: str) -> float:
    """Records per second of the counting flow on two workers."""
    with running.flow(bootstrap, source, bench, kafka=running.SETTINGS) as flow:
        began = time.monotonic()
        flow.until_results(records, 0.02)
        return records / (time.monotonic() - began)
