"""One flow over three exchanges, and all that may differ from one run of it to the next.

Its sources rule as they do in any flow: partitions stand still and are moved on, records get the
times to which these have moved, and some are of the future. A `Run` keeps what was heard of that,
as the coordinator hears it. Run as a program it replays what it is given, and prints checksums.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any
from unittest import mock

from meander import Flow
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.timestamp_overrides import OverrideHistory, TimestampOverride
from meander.dataflow.exactly_once.commit_history import start_override
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.operators.source.operator import SourceOperator
from meander.dataflow.operators.source.partitions import SourcePartition
from meander.dataflow.records.loop_times import outer_time
from meander.dataflow.simulation import simulator
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import (
    NOW_MS,
    AddPartition,
    Command,
    Join,
    Leave,
    MovePartition,
    SimClock,
)
from meander.state.encoding import codec
from meander.testing import TestFlow
from tests.support.property import shapes
from tests.support.property.cases import Entry, random_command, random_partition
from tests.support.property.silences import silences_between_reads
from tests.support.sim.override_log import reported_overrides

SPAN = 3000
FOREVER = 1 << 62
"""A mark behind all times: nothing is ruled anew."""
Logs = tuple[tuple[tuple[Entry, ...], ...], tuple[tuple[Entry, ...], ...]]
"""Of both sources, per partition."""
Ordered = list[tuple[int, object, bytes]]
"""Time, place and value, in the total order."""


@dataclass(frozen=True)
class Variant:
    """What results must not depend on: who runs when, on how many workers, where bins are, when."""

    schedule: int
    workers: int
    bits: int
    now_ms: int
    commands: tuple[Command, ...]
    max_inflight: int
    options: SourceOptions
    """Of both sources: with some, time follows the clock in their silences."""


@dataclass(frozen=True)
class Mark:
    """What was known when the coordinator saw every sink's frontier come to a time."""

    time: int
    heard: tuple[TimestampOverride, ...]


@dataclass(frozen=True)
class Run:
    """What became of one run."""

    decided: Ordered
    """Its records, as their sources have timed them."""
    results: Ordered
    rulings: tuple[TimestampOverride, ...]
    """All that were journalled."""
    marks: tuple[Mark, ...]
    late_adjusted: int
    future_ignored: int
    clock_advances: int
    inflight: int
    """The most bytes that any worker had read and the sinks not passed."""

    def before(self, mark: int) -> tuple[Ordered, Ordered]:
        """What it has decided, and answered, before a time."""
        return _before(self.decided, mark), _before(self.results, mark)


def random_logs(seed: int) -> Logs:
    rng = random.Random(f"logs {seed}")
    keys = rng.choice([1, 3, 10])

    def partitions() -> tuple[tuple[Entry, ...], ...]:
        sizes = [rng.randint(0, 25) for _ in range(rng.randint(1, 3))]
        return tuple(random_partition(rng, size, SPAN, keys) for size in sizes)

    return partitions(), partitions()


def ascending_logs(seed: int) -> Logs:
    """No two records of a partition ask for the same time."""
    rng = random.Random(f"ascending {seed}")

    def partition() -> tuple[Entry, ...]:
        return tuple((ms, {"k": ms % 3, "v": ms % 7}) for ms in sorted(rng.sample(range(SPAN), 60)))

    return (partition(), partition()), (partition(),)


def random_variant(rng: random.Random) -> Variant:
    workers, bits = rng.randint(1, 5), rng.choice([0, 1, 3, 6])
    commands: list[Command] = [
        random_command(rng, n, workers, bits, SPAN) for n in range(rng.choice([0, 0, 2, 5]))
    ]
    for n in range(rng.choice([0, 0, 1, 3])):
        source, partition = rng.choice(["source", "source-2"]), rng.randrange(3)
        move_partition = MovePartition(f"h{n}", source, partition, rng.randrange(workers))
        staff: list[Command] = [Join(), Leave(f"l{n}", rng.randrange(workers)), move_partition]
        commands.append(rng.choice(staff))
    rng.shuffle(commands)
    # Of a clock that stands among the records' times most are of the future.
    # A source that follows the clock comes to its times, and all are before `FOREVER`.
    now = rng.choice([NOW_MS + rng.randrange(1 << 38), rng.randrange(SPAN)])
    inflight = rng.choice([300, 64 << 20])
    silence = rng.choice([None, 0.00001, 0.001])
    options = SourceOptions(advance_after=silence)
    return Variant(rng.getrandbits(32), workers, bits, now, tuple(commands), inflight, options)


def watched(
    logs: Logs, variant: Variant, past: OverrideHistory, new: tuple[Entry, ...] | None = None
) -> Run:
    """Run the flow to its end; `new` is a partition that comes to the second source meanwhile."""
    flow = Flow("f", bins=variant.bits, max_inflight=variant.max_inflight)
    sink, decided = ListSink(), ListSink()
    one, two = (flow.source(ListSource(log, variant.options)) for log in logs)
    for source in (one, two):
        source.sink(decided)
    gathered = one.flat_map(doubled).key_by(shapes.key).process("a", nothing, gather, ring)
    left, right = (stream.key_by(lambda value: value["v"] % 3) for stream in (gathered, two))
    paired = left.connect(right, "b", list, shapes.remember, shapes.answer, shapes.ring)
    last = paired.flat_map(doubled).key_by(lambda value: abs(value["v"]) % 4)
    last.fold("c", shapes.empty, shapes.trail).sink(sink)
    unheard: dict[TimestampOverride, int] = {}
    """Moves of partitions, and where these stood before."""
    rule = SourceOperator._override

    def watch(source: SourceOperator, lane: SourcePartition, time: int) -> None:
        if time > lane.time:
            place = lane.number, lane.next_offset
            unheard[TimestampOverride(source._origin, *place, time)] = lane.time
        rule(source, lane, time)

    growth = () if new is None else (AddPartition("source-2", new),)
    commands = [*variant.commands[:1], *growth, *variant.commands[1:]]
    marks: dict[int, Mark] = {}
    inflight = told = 0
    with (
        mock.patch.object(simulator, "SimClock", partial(SimClock, variant.now_ms)),
        mock.patch.object(SourceOperator, "_override", watch),
        silences_between_reads(),
        TestFlow(flow, variant.workers, variant.schedule, commands=commands, past=past) as run,
    ):
        heard = reported_overrides(run.sim.coordinator)
        while not run.sim.done:
            run.act()
            while told < len(heard):
                unheard.pop(heard[told], None)
                told += 1
            inflight = max(inflight, *(worker.inflight for worker in run.workers))
            frontiers = run.sim.coordinator.frontiers().values()
            times = [outer_time(time) for frontier in frontiers for time in frontier]
            if times and min(times) not in marks:
                marks[min(times)] = Mark(min(times), (*heard, *begun(run)))
            ahead = [move for move, stood in unheard.items() if not times or stood < min(times)]
            assert not ahead, f"the sinks' frontier has passed where {ahead} moved unheard"
        assert not run.dead_letters, "nothing fails"
        counters, rulings = run.counters, (*heard, *begun(run))
    return Run(
        in_order(decided), in_order(sink), rulings, tuple(marks.values()),
        counters["late_adjusted"], counters["future_ignored"],
        counters["clock_advances"], inflight,
    )  # fmt: skip


def begun(run: TestFlow) -> list[TimestampOverride]:
    """What was decided of partitions that came."""
    orders = (one for one in run.sim.decisions if isinstance(one, ReassignPartition))
    return [start_override(one) for one in orders if one.offset is not None]


def in_order(sink: ListSink) -> Ordered:
    return sorted(
        (r.time, (r.origin, r.partition, r.offset, r.index), codec.encode(r.value))
        for r in sink.results
    )


def _before(ordered: Ordered, mark: int) -> Ordered:
    return [one for one in ordered if one[0] < mark]


def checksum(ordered: Ordered) -> str:
    return sha256(codec.encode([*ordered])).hexdigest()


def doubled(value: Any) -> list[Any]:
    return [{**value, "v": value["v"] + i} for i in range(1 + value["v"] % 2)]


def nothing() -> set[str]:
    return set()


def gather(context: Any, state: set[str], value: Any) -> set[str]:
    state.add(f"word {value['v']}")
    context.emit({"k": value["k"], "v": value["v"], "seen": frozenset(state)})
    if value["v"] % 3 == 0:
        context.timer(context.time_ms + 40 + value["v"])
    return state


def ring(context: Any, state: set[str]) -> set[str]:
    context.emit({"k": context.key, "v": len(state), "seen": None})
    return set(sorted(state)[1:])


def main(given: Iterable[tuple[int, list[list[int]]]]) -> None:
    """Replay the logs of some seeds, each with what was ruled about them."""
    checksums = [str(hash("a word"))]
    for seed, rulings in given:
        past = OverrideHistory(FOREVER, [TimestampOverride(*ruling) for ruling in rulings])  # type: ignore[arg-type]
        variant = random_variant(random.Random(f"elsewhere {seed}"))
        run = watched(random_logs(seed), variant, past)
        checksums.append(checksum(run.decided + run.results))
    sys.stdout.write("\n".join(checksums))


if __name__ == "__main__":
    main(json.load(sys.stdin))
