"""Traces: the history of a collection as layers of geometrically decreasing size.

Guarantees that a cursor sees each update once, while merges run. A level holds one layer of at most
`TAIL_ROWS * 2**level` rows, or the merge of two. Each inserted row pays for `FUEL * factor` rows of
every merge under way, so a merge ends before another layer comes to its level. Invariant: higher
levels hold older layers, and each level up to the logarithm of the most rows at a time, in
`TAIL_ROWS`, holds one at most. Merging advances times to `since`, the meet of the readers'
frontiers, so updates that no reader tells apart cancel. Cost: each row is merged once per level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

from meander.state.collections.cursor import Cursor, Run
from meander.state.collections.description import LayerDescription
from meander.state.collections.layer import Layer, UpdateChunk, Updates
from meander.state.collections.merge import UNBOUNDED, Merge
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME

TAIL_ROWS = 1024
"""The most rows of a layer at level 0, where layers merge at once, in some microseconds."""
FUEL = 8
"""The least rows of each merge under way for which an inserted row has to pay."""
FACTOR = 2
"""The default factor, by which a trace has at most about twice the rows of its live updates. With 1
it has more: more updates come in while the largest merge is under way."""
IMMEDIATE = 0
"""The factor by which each merge ends in the step that starts it."""


class TraceReader:
    """A reader of a trace, which keeps times at or after its frontier apart."""

    def __init__(self, trace: Trace, since: Antichain) -> None:
        self._trace, self._since = trace, since

    @property
    def since(self) -> Antichain:
        """Return the frontier of the times that this reader still asks for."""
        return self._since

    def advance(self, since: Antichain) -> None:
        """Give up the times before a frontier; it is not before the present one."""
        assert self._since.dominates(since), "a reader never goes back"
        self._since = since

    def close(self) -> None:
        """Give up all times."""
        self._trace.readers.remove(self)


class Trace:
    """A trace of updates (key, value, time, diff), in layers that operators share.

    >>> import numpy as np
    >>> from meander.state.collections.layer import Updates
    >>> from meander.state.collections.merge import layer_of
    >>> from meander.state.collections.kernels import hashes_of
    >>> zero, one = Antichain.of(0), Antichain.of(1)
    >>> trace = Trace(depth=1)
    >>> some = Updates.of([(7, 10, (0,), 1), (7, 11, (0,), 1), (8, 10, (0,), 1)])
    >>> trace.insert(layer_of(some, LayerDescription(zero, one, zero)))
    >>> trace.cursor().gather(hashes_of(np.array([7]))).values.tolist()
    [10, 11]
    """

    def __init__(self, depth: int, factor: int = FACTOR, by_estimate: bool = True) -> None:
        """Take the coordinates of a time, and the factor of merging, or `IMMEDIATE`."""
        self.depth, self._factor, self._by_estimate = depth, factor, by_estimate
        self._levels: dict[int, Layer | Merge] = {}
        self._runs: dict[int, tuple[tuple[UpdateChunk, ...], Run]] = {}
        self.readers: list[TraceReader] = []
        zero = (MIN_TIME,) * depth
        self._since = self.upper = Antichain.of(zero[0] if depth == 1 else zero)
        """The frontier before which all updates are in the trace."""
        self._covered = self.upper
        """The frontier up to which layers cover the history; later intervals have no updates."""

    # -- readers

    def reader(self) -> TraceReader:
        """Return a reader that keeps apart all times that the trace still tells apart."""
        reader = TraceReader(self, self.since)
        self.readers.append(reader)
        return reader

    @property
    def since(self) -> Antichain:
        """Return the frontier from which on times are told apart."""
        if self.readers:
            self._since = self.readers[0].since
            for reader in self.readers[1:]:
                self._since = self._since.meet(reader.since)
        return self._since

    # -- layers

    def insert(self, layer: Layer) -> None:
        """Add the layer of the next updates, and do a share of the merges under way."""
        description = layer.description
        assert self.upper == description.lower, "layers follow each other without a gap"
        self.upper = description.upper
        if not len(layer):
            return
        # The layers without rows since the last one left no trace but this.
        layer = Layer(layer.chunks, replace(description, lower=self._covered))
        self._covered = description.upper
        fuel = UNBOUNDED if self._factor == IMMEDIATE else FUEL * self._factor * len(layer)
        self.work(fuel)
        level = _level(len(layer))
        # Smaller layers are older than this one, so they rise to its level. The fuel covers that.
        while self._levels and (youngest := min(self._levels)) < level:
            self._place(self._take(youngest), youngest + 1, fuel)
        self._place(layer, level, fuel)

    def work(self, fuel: int) -> int:
        """Merge up to `fuel` rows in each merge under way, and start merges; return the rows."""
        return sum(self._step(level, merge, fuel) for level, merge in self._merging)

    def compact(self, fuel: int) -> int:
        """Merge on where no updates come in, until one layer with times at `since` is left.

        Return the rows taken, 0 once nothing is left to do.
        """
        return max(self.work(fuel), 1) if self._merging or self._start() else 0

    def cursor(self, more: Sequence[Run] = ()) -> Cursor:
        """Return a cursor over all updates of the trace, and those of more runs."""
        return Cursor([*self._current_runs(), *more], self.depth, self._by_estimate)

    def between(self, first: int, last: int) -> Iterator[Updates]:
        """Yield the rows of the hashes from `first` to `last`, both included."""
        for layer in self.layers:
            for chunk in layer.chunks:
                if chunk.first <= last and chunk.last >= first:
                    yield chunk.between(first, last).updates()

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Return the layers, with a merge under way as its chunks at present."""
        return tuple(
            Layer(entry.chunks, entry.description) if isinstance(entry, Merge) else entry
            for entry in self._entries
        )

    def __len__(self) -> int:
        return sum(map(len, self.layers))

    @property
    def nbytes(self) -> int:
        """Return the bytes of all columns."""
        return sum(entry.nbytes for entry in self._entries)

    @property
    def _entries(self) -> list[Layer | Merge]:
        """Return what the levels hold, the oldest first."""
        return [self._levels[level] for level in sorted(self._levels, reverse=True)]

    @property
    def _merging(self) -> list[tuple[int, Merge]]:
        """Return the merges under way with their levels, the oldest first."""
        merging = [(at, entry) for at, entry in self._levels.items() if isinstance(entry, Merge)]
        return sorted(merging, key=itemgetter(0), reverse=True)

    def _place(self, layer: Layer, level: int, fuel: int) -> int:
        """Put a layer at a level, or merge it with the older one there; return the rows taken."""
        if level not in self._levels:
            self._levels[level] = layer
            return 0
        held = self._take(level)
        if len(held) and len(layer):
            return self._step(level, self._merge(held, layer), fuel)
        # The one without rows costs nothing.
        full = held if len(held) else layer
        description = held.description.then(layer.description, full.description.since)
        self._levels[level] = Layer(full.chunks, description)
        return 0

    def _step(self, level: int, merge: Merge, fuel: int) -> int:
        """Do a share of the merge at a level; its result goes where its rows fit."""
        spent = merge.step(fuel if level else UNBOUNDED)
        if not merge.finished:
            self._levels[level] = merge
            return spent
        self._levels.pop(level, None)
        result = merge.result()
        below = max((other for other in self._levels if other < level), default=-1)
        return spent + self._place(result, max(below + 1, _level(len(result))), fuel)

    def _take(self, level: int) -> Layer:
        layer = self._levels.pop(level)
        assert isinstance(layer, Layer), "a merge ends before another layer comes to its level"
        return layer

    def _start(self) -> bool:
        """Merge the youngest two layers, or rewrite the last one whose times lie before `since`;
        return whether that was necessary."""
        match sorted(self._levels):
            case [younger, older, *_]:
                later = self._take(younger)
                self._levels[older] = self._merge(self._take(older), later)
            case [only]:
                layer = self._take(only)
                upper, since = layer.description.upper, layer.description.since
                if since == self.since:
                    self._levels[only] = layer
                    return False
                nothing = Layer((), LayerDescription(upper, upper, since))
                self._levels[only] = self._merge(layer, nothing)
            case _:
                return False
        return True

    def _merge(self, earlier: Layer, later: Layer) -> Merge:
        return Merge(earlier, later, self.since, self.depth)

    def _current_runs(self) -> list[Run]:
        runs: dict[int, tuple[tuple[UpdateChunk, ...], Run]] = {}
        for entry in self._entries:
            chunks = entry.chunks
            if not chunks:
                continue
            held = self._runs.get(id(entry))
            if held is None or held[0] is not chunks:
                held = chunks, Run(chunks)
            runs[id(entry)] = held
        self._runs = runs
        return [run for _, run in runs.values()]


def _level(rows: int) -> int:
    """Return the least level whose layers may have so many rows."""
    return (max(rows - 1, 0) // TAIL_ROWS).bit_length()
