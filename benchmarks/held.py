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

from benchmarks import load, raw, running
from benchmarks.report import DOCS
from benchmarks.running import PARTITIONS, PROCESSING, Running
from meander.app.measurement.plot import BLUE, INK, ORANGE, canvas
from meander.dataflow.api.checkpointing import Policy
from meander.schemas.status import Checkpointed

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
FIGURES = {
    "unaligned_ms": "ms", "unaligned_write_ms": "write_ms", "in_flight_bytes": "in_flight_bytes",
    "in_flight": "in_flight",
}  # fmt: skip
"""Medians over the unaligned checkpoints, and what the event of each calls it."""
SHAPES = "chain", "fan"
RATES = 3
"""How often the topic's rate is measured beside each, of which the median counts."""


def durations(bootstrap: str) -> dict[str, float]:
    """Of all shapes and sizes; of the figures that are asked for the worst counts."""
    found = dict[str, float]()
    for load_ in LOADS:
        for shape in SHAPES:
            found |= _durations(bootstrap, load_, shape)
    return found | figures(found)


def figures(found: Mapping[str, float]) -> dict[str, float]:
    """What is asked for: of shapes and sizes the worst."""
    small = [f"{shape}_{LOADS[0].name}" for shape in SHAPES]
    return {
        "unaligned_ms_300kb": found["chain_300kb_unaligned_ms"],
        "aligned_over_unaligned": min(
            found[f"{one}_aligned_ms"] / found[f"{one}_unaligned_ms"] for one in small
        ),
        "unaligned_excess_ms": max(
            value for name, value in found.items() if name.endswith("_excess_ms")
        ),
    }


def _durations(bootstrap: str, load_: Load, shape: str) -> dict[str, float]:
    """Milliseconds by policy, what the unaligned ones have persisted, and by how much they exceed
    what a plain producer takes for as many bytes."""
    rate = statistics.median(raw.topic_rate(bootstrap) for _ in range(RATES))
    with _running(bootstrap, load_, shape) as flow:
        taken = [_unaligned(flow, load_)]
        for _ in range(AGAIN - 1):
            time.sleep(SETTLES)
            taken.append(_take(flow, "unaligned"))
        found = {"topic_bytes_per_s": rate} | {
            name: statistics.median(getattr(one, field) for one in taken)
            for name, field in FIGURES.items()
        }
        found["excess_ms"] = found["unaligned_ms"] - 1000 * found["in_flight_bytes"] / rate
        if load_.passes:
            found["max_inflight_ms"] = _take(flow, "unaligned_max_inflight").ms
            found["aligned_ms"] = _take(flow, "aligned").ms
    return {f"{shape}_{load_.name}_{name}": value for name, value in found.items()}


def _unaligned(flow: Running, load_: Load) -> Checkpointed:
    """The first that has as much in flight as there is to be: the flow has only begun to read."""
    deadline = time.monotonic() + running.PATIENCE
    while time.monotonic() < deadline:
        time.sleep(SETTLES)
        one = _take(flow, "unaligned")
        if one.in_flight >= NEAR * load_.records:
            return one
    raise AssertionError(f"never were {load_.records:,} records in flight")


def _take(flow: Running, policy: Policy) -> Checkpointed:
    id = uuid4().hex[:8]
    flow.give(type="checkpoint", id=id, policy=policy)
    return flow.end(id, Checkpointed)[1]


@contextmanager
def _running(bootstrap: str, load_: Load, shape: str) -> Iterator[Running]:
    source = f"slow-{uuid4().hex[:8]}"
    sources = [source, f"{source}2"] if shape == "fan" else [source]
    load.create(bootstrap, *sources, partitions=PARTITIONS)
    for one in sources:
        load.fill(bootstrap, one, 4 * load_.records // len(sources) + 10_000, size=load_.size)
    bench = {
        "SLEEP": str(load_.sleep),
        "INFLIGHT": str(load_.allowed),
        "FAN": "on" * (shape == "fan"),
    }
    with running.flow(bootstrap, source, bench, module=PROCESSING) as flow:
        yield flow
    load.delete(bootstrap, source)


def draw(medians: Mapping[str, float]) -> None:
    """Draw durations over what is in flight, both on logarithmic axes; a line is what a plain
    producer takes for these bytes."""
    rates = [one for name, one in medians.items() if name.endswith("topic_bytes_per_s")]
    if not rates:
        return
    figure, axes = canvas("How long a checkpoint takes", 8, 4.5)
    for shape, colour in zip(SHAPES, (BLUE, ORANGE), strict=True):
        for policy, style in (("unaligned", "-"), ("max_inflight", "--"), ("aligned", ":")):
            names = [f"{shape}_{one.name}" for one in LOADS]
            known = [name for name in names if f"{name}_{policy}_ms" in medians]
            bytes = [medians[f"{name}_in_flight_bytes"] / MIB for name in known]
            took = [medians[f"{name}_{policy}_ms"] for name in known]
            axes.plot(bytes, took, style, marker="o", color=colour, label=f"{shape}, {policy}")
    ends = np.array(axes.get_xlim()).clip(min=0.3)
    plain = 1000 * ends * MIB / statistics.median(rates)
    axes.plot(ends, plain, color=INK, linewidth=1, label="a plain producer")
    axes.set(xscale="log", yscale="log", xlabel="MiB in flight", ylabel="milliseconds")
    axes.grid(axis="both")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(DOCS / "checkpoints-durations.png")
