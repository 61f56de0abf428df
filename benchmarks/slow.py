"""A flow that is back-pressured by a slow operator; MEANDER_BENCH_* choose how.

Each record has its worker sleep for SLEEP seconds in a keyed operator, or with WORK compute for as
long. FAN has two sources connected there, else one leads there. INFLIGHT is how many bytes all
workers together may have read and not passed on; DELIVERY, POLICY and CHECKPOINTS are the flow's
own.
"""

from __future__ import annotations

import time

from benchmarks.counting import asked
from benchmarks.load import KEY
from benchmarks.running import WORKERS
from meander import Checkpointing, Flow, KafkaSink, KafkaSource
from meander.dataflow.api.checkpointing import POLICIES
from meander.dataflow.operators.keyed.logic import Context

SLEEP, WORK = float(asked("SLEEP", "0.01")), bool(asked("WORK"))


def key_of(record: bytes) -> bytes:
    """Its first bytes."""
    return record[:KEY]


def slowly(context: Context, state: int, record: bytes) -> int:
    """One more, after a while."""
    if WORK:
        until = time.perf_counter() + SLEEP
        while time.perf_counter() < until:
            pass
    else:
        time.sleep(SLEEP)
    context.emit(b"%d" % (state + 1))
    return state + 1


(policy,) = (one for one in POLICIES if one == asked("POLICY", "unaligned"))
every = float(asked("CHECKPOINTS")) if asked("CHECKPOINTS") else None
flow = Flow(
    "bench", max_inflight=int(asked("INFLIGHT", str(1 << 20))) // WORKERS,
    delivery="exactly_once" if asked("DELIVERY") == "exactly_once" else "at_least_once",
    checkpoints=Checkpointing(every, policy=policy),
)  # fmt: skip
first = flow.source(KafkaSource(asked("SOURCE", "in"), value="bytes")).key_by(key_of)
if asked("FAN"):
    second = flow.source(KafkaSource(asked("SOURCE", "in") + "2", value="bytes"), "second")
    results = first.connect(second.key_by(key_of), "slow", int, slowly, slowly)
else:
    results = first.process("slow", int, slowly)
results.sink(KafkaSink(asked("PREFIX") + "out", "bytes", headers=False))
