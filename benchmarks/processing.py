"""A keyed count by a process function; MEANDER_BENCH_* choose what it does with each record.

CALLS is about timers: `none` has no function for them and emits a result per record, `unused` has
one and sets no timer, `each` sets a timer per record and emits a result per timer. Each record has
its worker sleep for SLEEP seconds, or with WORK compute for as long. FAN has two sources connected
there, else one leads there. INFLIGHT is how many bytes all workers together may have read and not
passed on; DELIVERY, POLICY and CHECKPOINTS are the flow's own.
"""

from __future__ import annotations

import time

from benchmarks.counting import asked, checkpoints, delivery, key_of
from benchmarks.running import WORKERS
from meander import Flow, KafkaSink, KafkaSource
from meander.dataflow.operators.keyed.context import Context

LATER = 5
"""Milliseconds until a timer is due, and so, of a history with a record a millisecond, how many of
its last timers are not."""
SLEEP, WORK, CALLS = float(asked("SLEEP", "0")), bool(asked("WORK")), asked("CALLS", "none")


def count(context: Context, state: int, record: bytes) -> int:
    """One more, after a while; the result at once, or by a timer."""
    if WORK:
        until = time.perf_counter() + SLEEP
        while time.perf_counter() < until:
            pass
    elif SLEEP:
        time.sleep(SLEEP)
    if CALLS == "each":
        context.timer(context.time_ms + LATER)
    else:
        context.emit(b"%d" % (state + 1))
    return state + 1


def ring(context: Context, state: int) -> int:
    """The result."""
    context.emit(b"%d" % state)
    return state


flow = Flow(
    "bench", max_inflight=int(asked("INFLIGHT")) // WORKERS if asked("INFLIGHT") else None,
    delivery=delivery, checkpoints=checkpoints,
)  # fmt: skip
first = flow.source(KafkaSource(asked("SOURCE", "in"), value="bytes")).key_by(key_of)
on_timer = None if CALLS == "none" else ring
if asked("FAN"):
    second = flow.source(KafkaSource(asked("SOURCE", "in") + "2", value="bytes"), "second")
    results = first.connect(second.key_by(key_of), "count", int, count, count)
else:
    results = first.process("count", int, count, on_timer)
results.sink(KafkaSink(asked("PREFIX") + "out", "bytes", origin=False, time="wall"))
