"""One flow whose sources decide nothing, and all that may differ from one run of it to the next.

No partition is ever idle, none waits long enough to be moved and no record is of the future, so the
logs alone say at which times records apply. Run as a program it prints the checksum of a seed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any
from unittest import mock

from dataflow import Flow, sim
from dataflow.migrate.command import Migrate
from dataflow.protocols import Partition, SourceOptions
from dataflow.sim import NOW_MS, SimClock
from dataflow.testing import ListReader, ListSink, ListSource, TestFlow
from state import codec
from state.ids import WorkerId
from tests.property import shapes
from tests.property.cases import Entry, random_command, random_partition

SPAN = 3000
Logs = tuple[tuple[tuple[Entry, ...], ...], tuple[tuple[Entry, ...], ...]]
"""Of both sources, per partition."""


class SteadySource(ListSource):
    """Has more to come until its end, so that nobody moves its partitions."""

    def __init__(self, partitions: Sequence[Sequence[tuple[int, object]]]) -> None:
        super().__init__(partitions, SourceOptions(idle_after=1e9, max_skew=1e9))

    def reader(self, worker: WorkerId, workers: int, rng: random.Random) -> ListReader:
        mine = [Partition(p) for p in range(len(self.partitions)) if p % workers == worker]
        return SteadyReader(self, mine, rng)


class SteadyReader(ListReader):
    def idle(self, partition: Partition) -> bool:
        return False


@dataclass(frozen=True)
class Variant:
    """What results must not depend on: who runs when, on how many workers, where bins are, when."""

    schedule: int
    workers: int
    bits: int
    now_ms: int
    commands: tuple[Migrate, ...]


PLAIN = Variant(0, 2, 3, NOW_MS, ())


def random_logs(seed: int) -> Logs:
    rng = random.Random(f"logs {seed}")
    keys = rng.choice([1, 3, 10])

    def partitions() -> tuple[tuple[Entry, ...], ...]:
        sizes = [rng.randint(0, 25) for _ in range(rng.randint(1, 3))]
        return tuple(random_partition(rng, size, SPAN, keys) for size in sizes)

    return partitions(), partitions()


def random_variant(rng: random.Random) -> Variant:
    workers, bits = rng.randint(1, 5), rng.choice([0, 1, 3, 6])
    commands = [
        random_command(rng, n, workers, bits, SPAN) for n in range(rng.choice([0, 0, 2, 5]))
    ]
    now = NOW_MS + rng.randrange(1 << 40)
    return Variant(rng.getrandbits(32), workers, bits, now, tuple(commands))


def results(logs: Logs, variant: Variant) -> tuple[list[object], list[object]]:
    """What a run decides about the records' times, and its results in the total order."""
    flow, sink, decided = Flow("f", bins=variant.bits), ListSink(), ListSink()
    one, two = (flow.source(SteadySource(log)) for log in logs)
    for source in (one, two):
        source.sink(decided)
    gathered = one.flat_map(doubled).key_by(shapes.key).process("a", nothing, gather, ring)
    left, right = (stream.key_by(lambda value: value["v"] % 3) for stream in (gathered, two))
    paired = left.connect(right, "b", list, shapes.remember, shapes.answer, shapes.ring)
    last = paired.flat_map(doubled).key_by(lambda value: abs(value["v"]) % 4)
    last.fold("c", shapes.empty, shapes.trail).sink(sink)
    with (
        mock.patch.object(sim, "SimClock", partial(SimClock, variant.now_ms)),
        TestFlow(flow, variant.workers, variant.schedule, variant.commands) as run,
    ):
        run.run()
        assert not run.dead_letters, "nothing fails"
    return in_order(decided), in_order(sink)


def in_order(sink: ListSink) -> list[object]:
    return [
        *sorted(
            ((r.time, r.origin, r.partition, r.offset, r.index), codec.encode(r.value))
            for r in sink.results
        )
    ]


def checksum(ordered: list[object]) -> str:
    return sha256(codec.encode(ordered)).hexdigest()


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


if __name__ == "__main__":
    _, found = results(random_logs(int(sys.argv[1])), PLAIN)
    sys.stdout.write(f"{len(found)} {checksum(found)} {hash('a word')}\n")
