"""The flow that is measured: a keyed count, one result per record; MEANDER_BENCH_* choose how.

A record is a key of `load.KEY` bytes and, where latency is measured, when it was due; its result
repeats that. F=off leaves out what lets bins move, as a measure of what that costs: no record waits
for commands to be ruled out, and none may be given. HOME is how many of the workers have bins at
the start, in place of all; SERVICE what each worker serves per second of the records that were due
(see `Service`); BINS, LEAD, SNAPSHOTS, LATENCY, DELIVERY, CHECKPOINTS and POLICY are the flow's
own; SHARE is a fixed share of the workers' time for what is moved ahead, whatever the latency.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from benchmarks.load import KEY
from meander import Checkpointing, Flow, KafkaSink, KafkaSource
from meander.dataflow.api.nodes import Guarantee
from meander.dataflow.backpressure import throttle
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.operators.keyed.columns import count
from meander.dataflow.operators.keyed.operator import Order
from meander.dataflow.runtime.operator_factory import OperatorFactory
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.antichain import Antichain

GRAIN = 0.001
"""Seconds that a worker may be ahead: shorter sleeps take longer than they are asked to."""
BEHIND = 0.02
"""Seconds that a worker may be behind and make up for: sleeps end late where cores are few, and a
worker that lost that time each time would serve less than its rate."""


def asked(name: str, default: str = "") -> str:
    """How it is to be run."""
    return os.environ.get(f"MEANDER_BENCH_{name}", default)


def key_of(record: bytes) -> bytes:
    """Its first bytes."""
    return record[:KEY]


def step(state: int, record: bytes) -> tuple[int, bytes]:
    """One more; the result repeats when the record was due."""
    return state + 1, b"%d%b" % (state + 1, record[KEY:])


def served(state: int, record: bytes) -> tuple[int, bytes]:
    """As `step`, at the worker's service rate; what is only to fill the state is not held up."""
    if len(record) > KEY:
        service.take()
    return step(state, record)


class Service:
    """A service rate for one worker, by timer: no more but for what `BEHIND` is worth.

    Workers that are added here bring no cores with them, so what is to get faster by them must not
    need any: each record takes its worker so long, as if the worker had a core of its own, and the
    machine sleeps meanwhile.
    """

    def __init__(
        self,
        rate: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._each, self._now, self._sleep = 1 / rate, now, sleep
        self._free = 0.0

    def take(self) -> None:
        """Serve one record."""
        now = self._now()
        self._free = max(self._free, now - BEHIND) + self._each
        if self._free - now > GRAIN:
            self._sleep(self._free - now)


def unmovable() -> None:
    """Have every time count as passed by all commands."""

    def none(_: OperatorFactory) -> Antichain:
        return Antichain()

    OperatorFactory._control = none  # type: ignore[assignment, method-assign]


def at_share(share: float) -> None:
    """Have what is moved ahead take as much of the workers' time whatever comes of it."""
    throttle.LEAST = throttle.FIRST = throttle.MOST = share


def at_home(workers: int) -> None:
    """Have all bins on the first workers, as if they had moved there."""

    def first_owner(space: BinSpace, bin: Bin, _: int) -> WorkerId:
        return WorkerId(bin * workers >> space.bits)

    BinSpace.first_owner = first_owner  # type: ignore[assignment, method-assign]


if asked("F") == "off":
    unmovable()
if asked("SHARE"):
    at_share(float(asked("SHARE")))
if asked("HOME"):
    at_home(int(asked("HOME")))
counted = step
if asked("SERVICE"):
    service, counted = Service(float(asked("SERVICE"))), served
order: Order = "processing" if asked("ORDER") == "processing" else "event"
delivery: Guarantee = "exactly_once" if asked("DELIVERY") == "exactly_once" else "at_least_once"
checkpoints = Checkpointing(
    float(asked("CHECKPOINTS")) if asked("CHECKPOINTS") else None,
    "aligned" if asked("POLICY") == "aligned" else "unaligned",
)
flow = Flow(
    "bench", bins=int(asked("BINS", "8")), control_lead=float(asked("LEAD", "0.25")),
    snapshot_interval=float(asked("SNAPSHOTS", "10")),
    migration_latency=float(asked("LATENCY", "0.3")),
    delivery=delivery, checkpoints=checkpoints,
)  # fmt: skip
records = flow.source(KafkaSource(asked("SOURCE", "in"), value="bytes"))
keyed = records.key_by(key_of)
out = asked("PREFIX") + "out"
if asked("FOLD") == "columns":
    fold: ColumnFold = count()
    keyed.fold("count", fold, order=order).sink(KafkaSink(out, origin=False, time="wall"))
else:
    counts = keyed.fold("count", lambda: 0, counted, order=order)
    counts.sink(KafkaSink(out, "bytes", origin=False, time="wall"))
