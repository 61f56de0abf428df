"""How long checkpoints of a back-pressured flow take, by policy and by what is in flight.

The flow's sources stop reading at a number of bytes, and a keyed operator sleeps for each record,
so that much is always in flight; a checkpoint is asked for once as much has come there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
from confluent_kafka import Producer
from matplotlib.figure import Figure

from benchmarks import load, running
from benchmarks.running import PARTITIONS, ROOT, Running, Said
from meander.dataflow.api.checkpointing import Policy

SLOW = ROOT / "benchmarks" / "slow.py"
MIB = 1 << 20
AGAIN = 5
"""Checkpoints of which the median counts, where each takes a moment."""
SETTLES = 1.0
"""Seconds between two."""
NEAR = 0.7
"""How much of what may be in flight has to be before a checkpoint is asked for: readers stop at
whole fetches."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is in flight, and what each record costs."""

    name: str
    bytes: int
    size: int
    """Of a record."""
    sleep: float
    """Seconds for each."""
    passes: bool
    """Whether it can be waited for that all of it has passed."""

    @property
    def allowed(self) -> int:
        """How much the flow may read: of few bytes a poll alone may bring as many again."""
        return self.bytes if self.bytes > MIB else self.bytes // 2

    @property
    def records(self) -> int:
        """So many make that up."""
        return self.bytes // self.size


# A poll hands out up to 3,000 records of each partition, so few bytes are small records.
LOADS = (
    Load("300kb", 300 << 10, 54, 0.008, passes=True),
    Load("1mb", MIB, 190, 0.008, passes=True),
    Load("10mb", 10 * MIB, 1024, 0.008, passes=True),
    Load("100mb", 100 * MIB, 1024, 0.008, passes=False),
)
RATES = 3
"""How often the topic's rate is measured beside each, of which the median counts."""


def durations(bootstrap: str, load_: Load, *, fan: bool) -> dict[str, float]:
    """Milliseconds by policy, what the unaligned ones have persisted, and by how much they exceed
    what a plain producer takes for as many bytes."""
    shape = "fan" if fan else "chain"
    rate = statistics.median(topic_rate(bootstrap) for _ in range(RATES))
    with _running(bootstrap, load_, fan) as flow:
        taken = [_unaligned(flow, load_)]
        for _ in range(AGAIN - 1):
            time.sleep(SETTLES)
            taken.append(_take(flow, "unaligned"))
        found = {
            "unaligned_ms": statistics.median(_number(one, "ms") for one in taken),
            "unaligned_write_ms": statistics.median(_number(one, "write_ms") for one in taken),
            "in_flight_bytes": statistics.median(_number(one, "in_flight_bytes") for one in taken),
            "in_flight": statistics.median(_number(one, "in_flight") for one in taken),
            "topic_bytes_per_s": rate,
        }
        found["excess_ms"] = found["unaligned_ms"] - 1000 * found["in_flight_bytes"] / rate
        if load_.passes:
            found["max_inflight_ms"] = _number(_take(flow, "unaligned_max_inflight"), "ms")
            found["aligned_ms"] = _number(_take(flow, "aligned"), "ms")
    return {f"{shape}_{load_.name}_{name}": value for name, value in found.items()}


def topic_rate(bootstrap: str, record: int = 256 << 10, bytes: int = 64 * MIB) -> float:
    """Bytes per second that a plain producer brings to a topic, acknowledged, in such records."""
    topic = f"rate-{uuid4().hex[:8]}"
    load.create(bootstrap, topic, partitions=1)
    producer = Producer({
        "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0,
        "queue.buffering.max.kbytes": 1 << 20,
    })  # fmt: skip
    load.partitions(producer, topic)
    began = time.monotonic()
    for _ in range(bytes // record):
        producer.produce(topic, b"." * record)
    producer.flush()
    took = time.monotonic() - began
    load.delete(bootstrap, topic)
    return bytes / took


def _unaligned(flow: Running, load_: Load) -> Said:
    """The first that has as much in flight as there is to be: the flow has only begun to read."""
    deadline = time.monotonic() + running.PATIENCE
    while time.monotonic() < deadline:
        time.sleep(SETTLES)
        one = _take(flow, "unaligned")
        if _number(one, "in_flight") >= NEAR * load_.records:
            return one
    raise AssertionError(f"never were {load_.records:,} records in flight")


def _take(flow: Running, policy: Policy) -> Said:
    id = uuid4().hex[:8]
    flow.give({"type": "checkpoint", "id": id, "policy": policy})
    said = flow.answer(id, "checkpointed", "checkpoint_failed", "rejected")
    assert said.type == "checkpointed", said.fields
    return said


def _number(said: Said, name: str) -> float:
    value = said.fields[name]
    assert isinstance(value, int | float)
    return float(value)


@contextmanager
def _running(bootstrap: str, load_: Load, fan: bool) -> Iterator[Running]:
    source = f"slow-{uuid4().hex[:8]}"
    sources = [source, f"{source}2"] if fan else [source]
    load.create(bootstrap, *sources, partitions=PARTITIONS)
    for one in sources:
        load.fill(bootstrap, one, 4 * load_.records // len(sources) + 10_000, size=load_.size)
    bench = {"SOURCE": source, "SLEEP": str(load_.sleep), "INFLIGHT": str(load_.allowed)}
    with running.flow(bootstrap, source, bench | ({"FAN": "on"} if fan else {}), module=SLOW) as it:
        yield it
    load.delete(bootstrap, *sources)


def curves(medians: Mapping[str, float]) -> Figure:
    """Durations over what is in flight, both on logarithmic axes; a dashed line is what a plain
    producer takes for these bytes."""
    figure = Figure(figsize=(8, 4.5), dpi=130, layout="constrained")
    axes = figure.subplots()
    for shape, colour in (("chain", "#1f6f8b"), ("fan", "#d97706")):
        for policy, style in (("unaligned", "-"), ("max_inflight", "--"), ("aligned", ":")):
            names = [f"{shape}_{one.name}" for one in LOADS]
            known = [name for name in names if f"{name}_{policy}_ms" in medians]
            bytes = [medians[f"{name}_in_flight_bytes"] / MIB for name in known]
            took = [medians[f"{name}_{policy}_ms"] for name in known]
            axes.plot(bytes, took, style, marker="o", color=colour, label=f"{shape}, {policy}")
    ends = np.array(axes.get_xlim()).clip(min=0.3)
    rate = statistics.median(
        rate for name, rate in medians.items() if name.endswith("topic_bytes_per_s")
    )
    axes.plot(ends, 1000 * ends * MIB / rate, color="#22303c", linewidth=1,
              label="a plain producer")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="MiB in flight", ylabel="milliseconds")
    axes.grid(color="#e3e7eb")
    axes.legend(frameon=False, fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.suptitle("How long a checkpoint takes", x=0.01, ha="left", fontweight="bold")
    return figure
