"""Random schedules of a join and a reduction, and the run that computes both anew at each time.

A step names times by their distance from the upper frontier, so a schedule without some of its
steps is a schedule as well.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from meander.dataflow.collections import join as joins
from meander.dataflow.collections import reduce as reductions
from meander.dataflow.collections.arrangement import Arrangement
from meander.dataflow.collections.count import TotalCount
from meander.dataflow.collections.join import IncrementalJoin, Side
from meander.dataflow.collections.reduce import Function, Reduction
from meander.state.collections import cursor as cursors
from meander.state.collections import merge as merges
from meander.state.collections import trace as traces
from meander.state.collections.columns import Int64s
from meander.state.collections.description import LayerDescription
from meander.state.collections.layer import Layer, Updates
from meander.state.collections.merge import layer_of
from meander.state.times.antichain import Antichain
from tests.support.collections.columns import (
    INNER,
    KEYS,
    VALUES,
    Sums,
    all_keys,
    box,
    frontier,
    joined,
    next_frontier,
    outer_of,
    patched,
    sums,
    time_of,
)
from tests.support.property.shrinking import fewest

LEFT, RIGHT, INPUT = range(3)
"""The sides of the join, and the input of the reduction."""
LOOK_BACK = 3
"""How many outer times before the upper frontier are looked at."""


@dataclass(frozen=True)
class Add:
    """A row of the next batch of one collection, if its time lies there."""

    collection: int
    key: int
    value: int
    time: tuple[int, ...]
    """How far before the upper frontier, and the inner times."""
    diff: int


@dataclass(frozen=True)
class Remove:
    """The removal of a row of the reduction's input, at a time at or after that of the row."""

    which: int
    inner: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """All take their next batches, up to a frontier."""

    inner: tuple[int, ...]
    alone: bool


@dataclass(frozen=True)
class Compact:
    """The traces merge while nothing comes."""

    fuel: int


@dataclass(frozen=True)
class CollectionSchedule:
    """The steps of a join and of a reduction."""

    seed: int
    depth: int
    function: str
    factor: int
    ahead: int
    """How many steps the arrangements take at once before their readers; 0 where the join and the
    reduction keep them."""
    chunk_rows: int
    tail_rows: int
    piece_rows: int
    steps: tuple[Add | Remove | Step | Compact, ...]

    def __str__(self) -> str:
        first = f"seed {self.seed}: depth {self.depth}, {self.function}, factor {self.factor}"
        first += f", {self.ahead} steps ahead"
        first += f", rows of chunks {self.chunk_rows}, tails {self.tail_rows}"
        return "\n  ".join([f"{first}, pieces {self.piece_rows}", *map(str, self.steps)])


def random_schedule(seed: int) -> CollectionSchedule:
    rng = random.Random(f"collections {seed}")
    depth = rng.choice([1, 2, 2, 3])
    steps: list[Add | Remove | Step | Compact] = []

    def inner(most: int = INNER) -> tuple[int, ...]:
        return tuple(rng.randrange(most) for _ in range(depth - 1))

    for _ in range(rng.choice([2, 5, 12])):
        for collection in (LEFT, RIGHT, INPUT):
            for _ in range(rng.choice([0, 1, 4, 10])):
                diff = 1 if collection == INPUT else rng.choice([1, 1, -1])
                time = rng.choice([0, 0, 1, 2, -1, -2]), *inner()
                steps.append(
                    Add(collection, rng.randrange(KEYS), rng.randrange(VALUES), time, diff)
                )
        steps += [Remove(rng.randrange(100), inner()) for _ in range(rng.choice([0, 1, 4]))]
        steps.append(Step(inner(3), rng.random() < 0.3))
        if rng.random() < 0.3:
            steps.append(Compact(rng.randint(1, 20)))
    return CollectionSchedule(
        seed, depth, rng.choice([*FUNCTIONS]), rng.choice([traces.IMMEDIATE, 1, 2]),
        rng.choice([0, 0, 1, 2, 3]), rng.choice([1, 2, 8, 1 << 17]), rng.choice([1, 4, 1024]),
        rng.choice([1, 3, 100]),
        tuple(steps),
    )  # fmt: skip


def shortest(
    schedule: CollectionSchedule, fails: Callable[[CollectionSchedule], bool]
) -> CollectionSchedule:
    """Leave out steps as long as the schedule still fails."""
    steps = fewest(schedule.steps, lambda some: fails(replace(schedule, steps=some)))
    return replace(schedule, steps=steps)


def run(schedule: CollectionSchedule) -> Counter[str]:
    """All steps, after each of them both outputs held against those computed anew."""
    constants = [
        (merges, "CHUNK_ROWS", schedule.chunk_rows),
        (traces, "TAIL_ROWS", schedule.tail_rows),
        (cursors, "PIECE_ROWS", schedule.piece_rows),
        (joins, "PIECE_ROWS", schedule.piece_rows),
    ]
    with patched(constants):
        return CollectionRun(schedule).run()


def paired(keys: Int64s, left: Int64s, right: Int64s) -> tuple[Int64s, Int64s]:
    return keys, left * VALUES + right


# -- the functions of reductions, of the counts of one key's values


def least(counts: list[int]) -> dict[int, int]:
    return {min(value for value, count in enumerate(counts) if count): 1} if any(counts) else {}


def total(counts: list[int]) -> dict[int, int]:
    return {sum(counts): 1} if sum(counts) else {}


def each_once(counts: list[int]) -> dict[int, int]:
    return {value: 1 for value, count in enumerate(counts) if count}


def least_two(counts: list[int]) -> dict[int, int]:
    return dict([(value, count) for value, count in enumerate(counts) if count][:2])


FUNCTIONS: dict[str, tuple[Function, Callable[[list[int]], dict[int, int]]]] = {
    "minimum": (reductions.minimum, least),
    "count": (reductions.count, total),
    "distinct": (reductions.distinct, each_once),
    "top": (reductions.top(2), least_two),
}
MOST = 200
"""The values of a reduction's output are below that."""


class CollectionRun:
    """A join and a reduction beside the lists of all their updates."""

    def __init__(self, schedule: CollectionSchedule) -> None:
        self.schedule, self.depth = schedule, schedule.depth
        self.arrangements = [Arrangement(self.depth, schedule.factor) for _ in range(3)]
        function, self.reference = FUNCTIONS[schedule.function]
        readers = [one.reader(self.depth) for one in self.arrangements]
        sides = zip(self.arrangements, readers, strict=True)
        left, right, _ = (Side(*side, schedule.ahead > 0) for side in sides)
        self.join = IncrementalJoin(left, right, paired)
        self.reduction: Reduction | TotalCount
        if schedule.function == "count" and self.depth == 1:
            self.reduction = TotalCount("r", lambda key, value: (key, value))
        else:
            self.reduction = Reduction("r", readers[INPUT], function, self.depth)
        self.waiting: list[list[Layer]] = []
        """The layers of steps that the arrangements are ahead."""
        self.inputs = [Updates.of([], self.depth) for _ in range(3)]
        self.pairs = self.reduced = Updates.of([], self.depth)
        self.outer, self.lower = 0, self.arrangements[LEFT].upper
        self.added = list[Add | Remove]()
        self.live = list[tuple[int, int, tuple[int, ...]]]()
        """The rows of the reduction's input that have not been removed."""
        self.happened = Counter[str]()

    def run(self) -> Counter[str]:
        for step in self.schedule.steps:
            match step:
                case Step(inner, alone):
                    self._step(frontier(self.outer, inner, alone))
                    if len(self.waiting) >= self.schedule.ahead:
                        self._take()
                        self._check()
                case Compact(fuel):
                    for arrangement in (*self.arrangements, self.reduction.output):
                        arrangement.compact(fuel)
                case _:
                    self.added.append(step)
        self._take()
        self._check()
        return self.happened

    def _step(self, wanted: Antichain) -> None:
        upper = next_frontier(self.lower, wanted)

        def due(time: tuple[int, ...]) -> bool:
            return self.lower.less_equal(time_of(time)) and not upper.less_equal(time_of(time))

        rows: list[list[tuple[int, int, tuple[int, ...], int]]] = [[], [], []]
        for one in self.added:
            match one:
                case Add(collection, key, value, (back, *others), diff):
                    time = (max(self.outer - back, 0), *others)
                    if due(time):
                        rows[collection].append((key, value, time, diff))
                        if collection == INPUT:
                            self.live.append((key, value, time))
                case Remove(which, others) if self.live:
                    key, value, since = self.live[which % len(self.live)]
                    time = tuple(map(max, since, (self.outer, *others)))
                    if due(time):
                        rows[INPUT].append((key, value, time, -1))
                        self.live.remove((key, value, since))
                case _:
                    pass
        batches = [Updates.of(some, self.depth) for some in rows]
        layers = [
            layer_of(batch, LayerDescription(self.lower, upper, self.lower)) for batch in batches
        ]
        self.inputs = [joined(some, self.depth) for some in zip(self.inputs, batches, strict=True)]
        self.waiting.append(layers)
        self.added, self.lower = [], upper
        self.outer = outer_of(upper)
        self.happened["rows"] += sum(map(len, batches))

    def _take(self) -> None:
        """Let the arrangements take what waits at once, and their readers step by step."""
        for number, arrangement in enumerate(self.arrangements if self.schedule.ahead else ()):
            layers = [layers[number] for layers in self.waiting]
            if layers:
                updates = joined([u for layer in layers for u in layer.updates()], self.depth)
                lower, upper = layers[0].description.lower, layers[-1].description.upper
                arrangement.insert(layer_of(updates, LayerDescription(lower, upper, lower)))
        for step in self.waiting:
            self._follow(step)
        self.waiting = []

    def _follow(self, layers: list[Layer]) -> None:
        pairs = [*self.join.step(layers[LEFT], layers[RIGHT])]
        assert all(0 < len(piece) <= self.schedule.piece_rows for piece in pairs)
        self.pairs = joined([self.pairs, *pairs], self.depth)
        if not self.schedule.ahead:
            self.arrangements[INPUT].insert(layers[INPUT])
        layer = layers[INPUT]
        if isinstance(self.reduction, Reduction):
            changes = [*self.reduction.step(layer)]
            self._check_pending(self.reduction)
        else:
            batch = joined([*layer.updates()], self.depth)
            changes = [*self.reduction.step(batch, layer.description)]
        self.reduced = joined([self.reduced, *changes], self.depth)
        self.happened["changes"] += sum(map(len, changes))
        self.happened["pairs"] += sum(map(len, pairs))

    def _check_pending(self, reduction: Reduction) -> None:
        pending = reduction._pending
        moments = {*zip(pending.hashes.tolist(), map(tuple, pending.times.tolist()), strict=True)}
        assert len(moments) == len(pending.times), "a key is pending twice at one time"
        self.happened["pending times"] += len(moments)

    def _check(self) -> None:
        times = [
            time
            for time in box(max(self.outer - LOOK_BACK, 0), self.outer + 2, self.depth)
            if not self.lower.less_equal(time_of(time))
        ]
        left, right, into = (sums(updates, times) for updates in self.inputs)
        products = (left[:, :, :, None] * right[:, :, None, :]).reshape(len(times), KEYS, -1)
        assert np.array_equal(sums(self.pairs, times, VALUES**2), products), "the join differs"
        found = sums(self.reduced, times, MOST)
        assert np.array_equal(found, self._recomputed(into)), "the reduction differs"
        self.happened["times"] += len(times)
        self._check_output()

    def _recomputed(self, into: Sums) -> Sums:
        wanted = np.zeros((len(into), KEYS, MOST), np.int64)
        for time, of_keys in enumerate(into.tolist()):
            for key, counts in enumerate(of_keys):
                assert min(counts) >= 0, "the schedule removes what is not there"
                for value, count in self.reference(counts).items():
                    wanted[time, key, value] = count
        return wanted

    def _check_output(self) -> None:
        """The output trace holds what has been yielded."""
        since = self.reduction.output.trace.since
        times = [
            time
            for time in box(self.outer, self.outer + 2, self.depth)
            if since.less_equal(time_of(time))
        ]
        keys, hashes = all_keys()
        rows = self.reduction.previous.gather(hashes, self.lower)
        held = Updates(keys[rows.query], rows.values, rows.times, rows.diffs)
        assert np.array_equal(sums(held, times, MOST), sums(self.reduced, times, MOST))
