"""The flow that is measured: a keyed count, one result per record; MEANDER_BENCH_* choose how."""

from __future__ import annotations

import os

from connectors import KafkaSink, KafkaSource
from dataflow import Flow
from dataflow.operators.columns import count
from dataflow.operators.keyed import Order


def step(state: int, _: bytes) -> tuple[int, int]:
    """One more."""
    return state + 1, state + 1


def written(number: object) -> bytes:
    """A count as text."""
    return str(number).encode()


order: Order = "arrival" if os.environ.get("MEANDER_BENCH_ORDER") == "arrival" else "time"
source, prefix = (
    os.environ.get("MEANDER_BENCH_SOURCE", "in"),
    os.environ.get("MEANDER_BENCH_PREFIX", ""),
)
flow = Flow("bench")
records = flow.source(KafkaSource(source, value="bytes"))
keyed = records.key_by(bytes)
if os.environ.get("MEANDER_BENCH_FOLD") == "columns":
    counted = keyed.fold("count", count(), order=order)
else:
    counted = keyed.fold("count", lambda: 0, step, order=order)
counted.sink(KafkaSink(f"{prefix}out", value=written, headers=False))
