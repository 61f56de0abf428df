"""What a back-pressured flow brings to its end: with checkpoints or without, and while its workers
are killed, one every ten seconds.

A keyed operator takes its time for each record, so the flow is back-pressured all the time; results
count when a reader of what is committed sees them, so exactly once each counts once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks import load, running
from benchmarks.running import PARTITIONS, PROCESSING, WORKERS, Running
from meander.schemas.status import Recovering

RECORD = 190
"""Bytes of one."""
EVERY = 10.0


class Finished(NamedTuple):
    """What a reader of what is committed has seen."""

    per_minute: float
    repeats: int
    """Results that it has seen before."""
    lost: int
    """Those that it has not seen, of a key of which it has seen a later one."""


def finished(
    bootstrap: str, seconds: float, each: float, how: Mapping[str, str], *, killing: bool
) -> Finished:
    """Of a flow that takes so many seconds for `each` record."""
    bench = {"SLEEP": str(each), "INFLIGHT": str(1 << 20), **how}
    with load.topic(bootstrap, "killed", PARTITIONS) as source:
        load.fill(bootstrap, source, int(2 * seconds * WORKERS / each), size=RECORD)
        with running.flow(bootstrap, source, bench, module=PROCESSING) as flow:
            flow.until_results(1)
            before, began = len(_committed(flow)), time.monotonic()
            for number in itertools.count(1):
                time.sleep(max(0.0, began + min(number * EVERY, seconds) - time.monotonic()))
                if number * EVERY >= seconds:
                    break
                if killing:
                    executions = len(flow.events(Recovering))
                    kill(flow.current()[number % WORKERS])
                    flow.until_more(Recovering, executions)
            found = _committed(flow)
            took = time.monotonic() - began
    once = {*found}
    # The n-th of a key says that it is the n-th.
    last = dict(sorted(once))
    return Finished(
        60 * (len(found) - before) / took, len(found) - len(once), sum(last.values()) - len(once)
    )


def kill(process: int) -> None:
    """Kill a worker at once."""
    # It may have gone by itself, as the execution that it was of has ended.
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _committed(flow: Running) -> list[tuple[bytes, int]]:
    """The results that a reader of what is committed sees: a key, and the how many-th it is."""
    with load.reading(flow.bootstrap, flow.topic) as messages:
        return [(bytes(m.key() or b""), int(m.value() or 0)) for m in messages]
