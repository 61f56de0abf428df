"""A keyed count whose keys may be called back; MEANDER_BENCH_CALLS chooses how.

`none` has no function for timers and emits a result per record, `unused` has one and sets no timer,
`each` sets a timer per record and emits a result per timer.
"""

from __future__ import annotations

from benchmarks.counting import asked
from benchmarks.load import KEY
from meander import Flow, KafkaSink, KafkaSource
from meander.dataflow.operators.keyed.logic import Context

LATER = 5
"""Milliseconds until a timer is due, and so, of a history with a record a millisecond, how many of
its last timers are not."""


def key_of(record: bytes) -> bytes:
    """Its first bytes."""
    return record[:KEY]


def emit(context: Context, state: int, record: bytes) -> int:
    """One more, and the result at once."""
    context.emit(b"%d" % (state + 1))
    return state + 1


def remind(context: Context, state: int, record: bytes) -> int:
    """One more, and the result later."""
    context.timer(context.time_ms + LATER)
    return state + 1


def ring(context: Context, state: int) -> int:
    """The result."""
    context.emit(b"%d" % state)
    return state


step = remind if asked("CALLS") == "each" else emit
on_timer = None if asked("CALLS", "none") == "none" else ring
flow = Flow("bench")
keyed = flow.source(KafkaSource(asked("SOURCE", "in"), value="bytes")).key_by(key_of)
counts = keyed.process("count", int, step, on_timer)
counts.sink(KafkaSink(asked("PREFIX") + "out", "bytes", headers=False))
