"""Traces: the history of a collection as layers of geometrically decreasing size.

Guarantees that a cursor sees each update once, while merges run. Adjacent layers of one size class
merge progressively: each inserted row pays for `2 * factor` rows of every merge under way, so a
merge ends before another layer of its size is there. Invariant: descriptions are adjacent, and the
number of layers is logarithmic in the rows. Merging advances times to `since`, the meet of the
readers' frontiers, so updates that no reader tells apart cancel. Cost: each row is merged once per
size class.
"""

from __future__ import annotations

from collections.abc import Iterable

from meander.state.collections.cursor import Cursor, Run
from meander.state.collections.description import Description
from meander.state.collections.layer import Chunk, Layer
from meander.state.collections.merge import UNBOUNDED, Merge
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME

TAIL_ROWS = 1024
"""Layers of up to this size merge at once, in some microseconds."""
IMMEDIATE = 0
"""The factor by which each merge ends in the step that starts it."""


class Reader:
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
    >>> trace.insert(layer_of(some, Description(zero, one, zero)))
    >>> trace.cursor().gather(hashes_of(np.array([7]))).values.tolist()
    [10, 11]
    """

    def __init__(self, depth: int, factor: int = 2, by_estimate: bool = True) -> None:
        """Take the coordinates of a time, and the factor of merging, or `IMMEDIATE`."""
        self.depth, self._factor, self._by_estimate = depth, factor, by_estimate
        self._entries: list[Layer | Merge] = []
        self._runs: dict[int, tuple[tuple[Chunk, ...], Run]] = {}
        self.readers: list[Reader] = []
        zero = (MIN_TIME,) * depth
        self._since = self.upper = Antichain.of(zero[0] if depth == 1 else zero)
        """The frontier before which all updates are in the trace."""
        self.forced = 0
        """How often a merge had to end at once, as the next one needed it."""

    # -- readers

    def reader(self) -> Reader:
        """Return a reader that keeps apart all times that the trace still tells apart."""
        reader = Reader(self, self.since)
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
        self._entries.append(layer)
        self.work(UNBOUNDED if self._factor == IMMEDIATE else 2 * self._factor * len(layer))

    def work(self, fuel: int) -> int:
        """Merge up to `fuel` rows in each merge under way, and start merges; return the rows."""
        spent = sum(merge.step(fuel) for merge in self._merging())
        self._finish()
        while self._start():
            if self._factor == IMMEDIATE:
                spent += sum(merge.step(UNBOUNDED) for merge in self._merging())
            self._finish()
        return spent

    def compact(self, fuel: int) -> int:
        """Merge on where no updates come in, until one layer with times at `since` is left.

        Return the rows taken, 0 once nothing is left to do.
        """
        if not any(self._merging()) and not self._start(whatever=True):
            return 0
        spent = sum(merge.step(fuel) for merge in self._merging())
        self._finish()
        return max(spent, 1)

    def cursor(self) -> Cursor:
        """Return a cursor over all updates of the trace."""
        return Cursor(self._current_runs(), self.depth, self._by_estimate)

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

    def _merging(self) -> Iterable[Merge]:
        return (entry for entry in self._entries if isinstance(entry, Merge))

    def _finish(self) -> None:
        for place, entry in enumerate(self._entries):
            if isinstance(entry, Merge) and entry.finished:
                self._entries[place] = entry.result()

    def _start(self, whatever: bool = False) -> bool:
        """Start the merge of the youngest two layers that have to merge; return whether one
        started. `whatever` merges any two layers, or rewrites the last one."""
        for place in range(len(self._entries) - 1, 0, -1):
            earlier, later = self._entries[place - 1 : place + 1]
            if isinstance(later, Merge):
                continue
            if isinstance(earlier, Merge):
                if _class(len(later)) < _class(earlier.rows):
                    continue
                self.forced += 1
                earlier.step(UNBOUNDED)
                self._finish()
                return True
            if whatever or _class(len(earlier)) <= _class(len(later)):
                self._entries[place - 1 : place + 1] = [self._merge(earlier, later)]
                return True
        if whatever and len(self._entries) == 1 and self._outdated():
            (only,) = self._entries
            assert isinstance(only, Layer)
            upper = only.description.upper
            nothing = Layer((), Description(upper, upper, only.description.since))
            self._entries = [self._merge(only, nothing)]
            return True
        return False

    def _outdated(self) -> bool:
        """Whether the only layer tells times apart that no reader tells apart."""
        (only,) = self._entries
        return isinstance(only, Layer) and only.description.since != self.since

    def _merge(self, earlier: Layer, later: Layer) -> Merge:
        merge = Merge(earlier, later, self.since, self.depth)
        if merge.rows <= TAIL_ROWS:
            merge.step(UNBOUNDED)
        return merge

    def _current_runs(self) -> list[Run]:
        runs: dict[int, tuple[tuple[Chunk, ...], Run]] = {}
        for entry in self._entries:
            chunks = entry.chunks
            if not chunks:
                continue
            held = self._runs.get(id(entry))
            fresh = held is None or held[0] is not chunks
            runs[id(entry)] = (chunks, Run(chunks)) if fresh else held
        self._runs = runs
        return [run for _, run in runs.values()]


def _class(rows: int) -> int:
    return max(rows // TAIL_ROWS, 1).bit_length()
