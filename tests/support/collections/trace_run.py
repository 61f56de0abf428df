"""Random schedules of a trace: what is inserted, given up, merged and read, in which order.

A step names times by their distance from the upper frontier, so a schedule without some of its
steps is a schedule as well.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from math import ceil, log2
from typing import Any
from unittest import mock

import numpy as np

from meander.state.collections import cursor as cursors
from meander.state.collections import merge as merges
from meander.state.collections import trace as traces
from meander.state.collections.cursor import Cursor
from meander.state.collections.description import LayerDescription
from meander.state.collections.layer import UpdateChunk, Updates
from meander.state.collections.merge import Merge, layer_of
from meander.state.collections.trace import Trace, TraceReader
from meander.state.times.antichain import Antichain
from meander.state.times.time import join, meet
from tests.support.collections.columns import (
    INNER,
    KEYS,
    VALUES,
    all_keys,
    box,
    frontier,
    joined,
    next_frontier,
    outer_of,
    patched,
    rows_of,
    sums,
    time_of,
)
from tests.support.property.shrinking import fewest

Inner = tuple[int, ...]
LOOK_BACK = 4
"""How many outer times before the upper frontier are looked at."""
FUEL = traces.FUEL
"""Of each merge, for one inserted row."""


@dataclass(frozen=True)
class Add:
    """A row of the next layer, if its time lies there."""

    key: int
    value: int
    offset: int
    inner: Inner
    diff: int


@dataclass(frozen=True)
class Insert:
    """A layer of what has been added, and the distance to its upper frontier."""

    width: int
    inner: Inner
    alone: bool


@dataclass(frozen=True)
class Open:
    """One more reader."""


@dataclass(frozen=True)
class Advance:
    """A reader gives up times."""

    which: int
    back: int
    inner: Inner
    alone: bool


@dataclass(frozen=True)
class Close:
    """A reader gives up all times."""

    which: int


@dataclass(frozen=True)
class Work:
    fuel: int


@dataclass(frozen=True)
class Compact:
    fuel: int


@dataclass(frozen=True)
class Read:
    """A cursor is opened now and read some steps later."""

    later: int


Step = Add | Insert | Open | Advance | Close | Work | Compact | Read


@dataclass(frozen=True)
class TraceSchedule:
    """The steps of one trace."""

    seed: int
    depth: int
    factor: int
    by_estimate: bool
    scale: int
    """By which values are multiplied: they exceed 32 bits in some schedules."""
    chunk_rows: int
    tail_rows: int
    piece_rows: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        first = f"seed {self.seed}: depth {self.depth}, factor {self.factor}, scale {self.scale}"
        first += f", by estimate {self.by_estimate}, rows of chunks {self.chunk_rows}"
        first += f", tails {self.tail_rows}, pieces {self.piece_rows}"
        return "\n  ".join([first, *map(str, self.steps)])


def random_schedule(seed: int) -> TraceSchedule:
    rng = random.Random(f"trace {seed}")
    depth = rng.choice([1, 1, 2, 2, 3])
    sizes = rng.choice([(0, 1, 3, 20), (0, 1), (1, 2, 4, 8, 16, 32), (20, 60)])
    steps: list[Step] = []
    for _ in range(rng.choice([6, 20, 50])):
        steps += _random_steps(rng, depth, sizes)
    return TraceSchedule(
        seed, depth, rng.choice([traces.IMMEDIATE, 1, 2, 4]), rng.random() < 0.5,
        rng.choice([1, 1, 1 << 40]), rng.choice([1, 2, 3, 8, 64]),
        rng.choice([1, 1, 2, 4, 16, 1024]), rng.choice([1, 3, 100]), tuple(steps),
    )  # fmt: skip


def _random_steps(rng: random.Random, depth: int, sizes: tuple[int, ...]) -> list[Step]:
    def inner(most: int = INNER) -> Inner:
        return tuple(rng.randrange(most) for _ in range(depth - 1))

    kind = rng.choices(range(7), [10, 1, 6, 0.5, 2, 1, 4])[0]
    match kind:
        case 0:
            width = rng.choice([0, 1, 1, 3])
            added = [
                Add(
                    rng.randrange(KEYS), rng.randrange(VALUES), rng.randint(0, width + 1), inner(),
                    rng.choice([1, 1, 1, -1, -1, 2]),
                )
                for _ in range(rng.choice(sizes))
            ]  # fmt: skip
            return [*added, Insert(width, inner(3), rng.random() < 0.3)]
        case 1:
            return [Open()]
        case 2:
            return [
                Advance(rng.randrange(4), rng.choice([0, 0, 1, 3]), inner(3), rng.random() < 0.3)
            ]
        case 3:
            return [Close(rng.randrange(4))]
        case 4:
            return [Work(rng.randint(0, 30))]
        case 5:
            return [Compact(rng.randint(1, 30))]
        case _:
            return [Read(rng.choice([0, 1, 4, 12, 50]))]


def shortest(schedule: TraceSchedule, fails: Callable[[TraceSchedule], bool]) -> TraceSchedule:
    """Leave out steps as long as the schedule still fails."""
    steps = fewest(schedule.steps, lambda some: fails(replace(schedule, steps=some)))
    return replace(schedule, steps=steps)


def run(schedule: TraceSchedule) -> Counter[str]:
    """From the first step to the last compaction, all held against the list of updates; what
    happened."""
    constants = [
        (merges, "CHUNK_ROWS", schedule.chunk_rows),
        (traces, "TAIL_ROWS", schedule.tail_rows),
        (cursors, "PIECE_ROWS", schedule.piece_rows),
    ]
    with patched(constants):
        return TraceRun(schedule).run()


@dataclass(frozen=True)
class _Held:
    """A cursor, what the trace held when it was opened, and when it will be read."""

    cursor: Cursor
    updates: Updates
    since: Antichain
    outer: int
    due: int


class TraceRun:
    """A trace beside the list of all its updates."""

    def __init__(self, schedule: TraceSchedule) -> None:
        self.schedule, self.depth = schedule, schedule.depth
        self.trace = Trace(self.depth, schedule.factor, schedule.by_estimate)
        self.updates = Updates.of([], self.depth)
        self.added = list[Add]()
        self.outer, self.held = 0, list[_Held]()
        self.readers = list[tuple[TraceReader, Antichain]]()
        """Each beside the frontier to which it has advanced."""
        self.since = self.trace.since
        self.shared: dict[int, tuple[UpdateChunk, bytes]] = {}
        self.most = 0
        """The most rows that the trace has held."""
        self.taken = list[int]()
        """The rows of each step of a merge since the last insert began."""
        self.happened = Counter[str]()

    def run(self) -> Counter[str]:
        step = Merge.step

        def metered(merge: Merge, fuel: int) -> int:
            spent = step(merge, fuel)
            self.taken.append(spent)
            return spent

        with mock.patch.object(Merge, "step", metered):
            for number, one in enumerate(self.schedule.steps):
                self._do(number, one)
                self._check_layers()
                self._read_due(number)
            self._read_due(len(self.schedule.steps) + 100)
            self._come_to_an_end()
        for chunk, before in self.shared.values():
            assert _digest(chunk) == before, "a chunk has changed"
        return self.happened

    def _do(self, number: int, step: Step) -> None:
        trace, readers = self.trace, self.readers
        match step:
            case Add():
                self.added.append(step)
            case Insert():
                self._insert(step)
            case Open():
                readers.append((trace.reader(), self.since))
            case Advance(which, back, inner, alone) if readers:
                self._advance(which % len(readers), frontier(self.outer - back, inner, alone))
            case Close(which) if len(readers) > 1:
                readers.pop(which % len(readers))[0].close()
            case Work(fuel):
                trace.work(fuel)
            case Compact(fuel):
                trace.compact(fuel)
            case Read(later):
                held = trace.cursor(), self.updates, self.since, self.outer, number + later
                self.held.append(_Held(*held))
            case _:
                pass

        if readers:
            self.since = reduce(Antichain.meet, [since for _, since in readers])
        assert set(trace.since) == set(self.since)

    def _advance(self, place: int, since: Antichain) -> None:
        reader, before = self.readers[place]
        if before.dominates(since):
            reader.advance(since)
            self.readers[place] = reader, since

    def _insert(self, step: Insert) -> None:
        trace, lower, scale = self.trace, self.trace.upper, self.schedule.scale
        upper = next_frontier(lower, frontier(self.outer + step.width, step.inner, step.alone))
        rows = [
            (one.key, one.value, time, one.diff)
            for one in self.added
            if lower.less_equal(time_of(time := (self.outer + one.offset, *one.inner)))
            and not upper.less_equal(time_of(time))
        ]
        updates = Updates.of(rows, self.depth)
        scaled = Updates(updates.keys, updates.values * scale, updates.times, updates.diffs)
        layer = layer_of(scaled, LayerDescription(lower, upper, trace.since))
        self.updates = joined([self.updates, updates], self.depth)
        self.added, self.outer, self.taken = [], outer_of(upper), []
        before = len(trace.layers)
        trace.insert(layer)
        self._check_work(len(layer), before)

    def _check_work(self, rows: int, before: int) -> None:
        """An insert takes rows in proportion to its own, for each merge."""
        self.happened["rows"] += rows
        self.happened["taken"] += sum(self.taken)
        if self.schedule.factor == traces.IMMEDIATE:
            return
        fuel = FUEL * self.schedule.factor * rows
        most = max(fuel + self._longest(), 2 * traces.TAIL_ROWS)
        assert all(taken <= most for taken in self.taken), f"{self.taken} for {rows} rows"
        assert len(self.taken) <= 2 * (before + 1), f"{len(self.taken)} steps of merges"

    def _longest(self) -> int:
        """The most rows of one key and value, which a merge takes at once."""
        pairs = Counter(zip(self.updates.keys.tolist(), self.updates.values.tolist(), strict=True))
        return max(pairs.values(), default=0)

    def _check_layers(self) -> None:
        layers = self.trace.layers
        descriptions = [layer.description for layer in layers]
        for earlier, later in pairwise(descriptions):
            assert earlier.followed_by(later)
        assert not descriptions or descriptions[-1].upper.dominates(self.trace.upper)
        for layer in layers:
            for chunk in layer.chunks:
                if id(chunk) not in self.shared:
                    self.shared[id(chunk)] = chunk, _digest(chunk)
        self.most = max(self.most, len(self.trace))
        bound = 1 + ceil(max(0.0, log2(max(self.most, 1) / traces.TAIL_ROWS)))
        assert len(layers) <= bound, f"{len(layers)} layers, {self.most} rows at most"
        self.happened["layers at once"] = max(self.happened["layers at once"], len(layers))

    def _read_due(self, number: int) -> None:
        due = [held for held in self.held if held.due <= number]
        self.held = [held for held in self.held if held.due > number]
        for held in due:
            self._check_read(held)

    def _check_read(self, held: _Held) -> None:
        keys, hashes = all_keys()
        pieces = [*held.cursor.pieces(hashes)]
        assert all(len(piece) <= self.schedule.piece_rows for piece in pieces)
        times = [
            time
            for time in box(max(held.outer - LOOK_BACK, 0), held.outer + 2, self.depth)
            if held.since.less_equal(time_of(time))
        ]
        wanted = sums(held.updates, times)
        for rows in ([held.cursor.gather(hashes)], pieces):
            found = joined(
                [
                    Updates(
                        keys[piece.query], self._unscaled(piece.values), piece.times, piece.diffs
                    )
                    for piece in rows
                ],
                self.depth,
            )
            assert np.array_equal(sums(found, times), wanted), "an accumulation differs"
        self.happened["reads"] += 1

    def _unscaled(self, values: Any) -> Any:
        assert not (values % self.schedule.scale).any()
        return values // self.schedule.scale

    def _come_to_an_end(self) -> None:
        """All readers ask for the times from the upper frontier on, and nothing comes."""
        upper = self.trace.upper
        for place in range(len(self.readers)):
            self._advance(place, upper)
        rests = 0
        while self.trace.compact(10):
            rests += 1
            assert rests < 10_000, "a compaction has no end"
            self._check_layers()
        (layer,) = self.trace.layers or (None,)
        found = [*rows_of(layer.updates())] if layer else []
        left = {(key, value, time): diff for key, value, time, diff in found}
        assert len(left) == len(found), "equal rows are not added up"
        wanted = Counter[tuple[int, int, tuple[int, ...]]]()
        for key, value, time, diff in rows_of([self.updates]):
            wanted[key, value * self.schedule.scale, _advanced(time, self.trace.since)] += diff
        assert left == {row: diff for row, diff in wanted.items() if diff}
        self.happened["rows left"] += len(left)


def _advanced(time: tuple[int, ...], since: Antichain) -> tuple[int, ...]:
    if not since:
        return time
    found = reduce(meet, [join(time_of(time), element) for element in since])
    return (found,) if isinstance(found, int) else found


def _digest(chunk: UpdateChunk) -> bytes:
    parts = chunk.static, chunk.dynamic
    columns = [c for part in parts for c in (part.hashes, part.offsets, part.values)]
    return b"|".join(c.tobytes() for c in [*columns, chunk.floor, chunk.times, chunk.diffs])
