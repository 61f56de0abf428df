"""The logics of collections, with the arrangements that they keep: arrange, join, count, reduce."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from meander.dataflow.collections import join, reduce
from meander.dataflow.collections.arrangement import Arrangement, ArrangementReader, settled
from meander.dataflow.collections.count import DEPTH, TotalCount
from meander.dataflow.records.loop_times import nested_time
from meander.state.collections.columns import Int64s
from meander.state.collections.description import LayerDescription
from meander.state.collections.layer import Layer, UpdateChunk, Updates
from meander.state.collections.merge import layer_of
from meander.state.keys.ids import Bin
from meander.state.times.antichain import Antichain
from meander.state.times.time import END_TIME, MIN_TIME

Stored = tuple[int, Updates]
"""The number of an arrangement, and updates that it got."""
Passed = Callable[[], int]
"""Returns an outer time that the readers of an operator's arrangements have reached on all workers;
`END_TIME` at the end of the input."""
_NOTHING = np.empty(0, np.int64)


class _Arrangements:
    """The arrangements that a logic keeps, by number, and the updates that they got in a step."""

    def __init__(
        self,
        depth: int,
        kept: Sequence[Arrangement],
        readers: Sequence[ArrangementReader],
        passed: Passed,
    ) -> None:
        self._depth, self._kept, self._readers, self._passed = depth, kept, readers, passed
        # A worker may be ahead of others, and a bin leaves an arrangement before its readers. So
        # readers elsewhere, and views of a checkpoint, tell apart times that readers here do not.
        self._least = [arrangement.trace.reader() for arrangement in kept]
        self._since = MIN_TIME
        self._got: list[Stored] = []
        self.shared: Mapping[int, ArrangementReader] = {}
        """By input the reader of an arrangement that another operator keeps."""

    def step(self, batches: Sequence[Updates], description: LayerDescription) -> Iterator[Updates]:
        """Yield the updates of the output for the next updates of each input."""
        self._advance()
        yield from self._step(batches, description)

    def _step(self, batches: Sequence[Updates], at: LayerDescription) -> Iterator[Updates]:
        raise NotImplementedError

    def start(self, position: Antichain) -> None:
        """Count all updates before a frontier as those of an earlier execution."""
        for arrangement in self._kept:
            arrangement.insert(Layer((), LayerDescription(arrangement.upper, position, position)))
        for reader in self._readers:
            reader.advance(position)

    def got(self, number: int, updates: Iterator[Updates]) -> None:
        """Note updates that an arrangement got."""
        self._got += [(number, some) for some in updates]

    def _passed_on(self, pieces: Iterator[Updates]) -> Iterator[Updates]:
        """Yield the pieces of the output, and note that its arrangement gets them."""
        for piece in pieces:
            self.got(0, iter([piece]))
            yield piece

    def take_stored(self) -> list[Stored]:
        """Return the noted updates once."""
        got, self._got = self._got, []
        return got

    def between(self, number: int, first: int, last: int) -> tuple[int, Iterator[Updates]]:
        """Return an outer time, and the updates of an arrangement with hashes from `first` to
        `last`. They tell only later outer times apart."""
        since = self._since
        return since, (settled(some, since) for some in self._kept[number].between(first, last))

    def install(self, number: int, bin: Bin, updates: Updates, at: Antichain) -> None:
        """Add the updates of a bin that is here from a frontier on to an arrangement."""
        self._kept[number].install(bin, updates, at)

    def remove(self, first: int, last: int, at: int) -> None:
        """Cancel the updates of the keys with hashes from `first` to `last` at an outer time."""
        for arrangement in self._kept:
            arrangement.remove(first, last, at)

    @property
    def chunks(self) -> list[list[UpdateChunk]]:
        """Return the chunks of each arrangement, by number."""
        return [arrangement.chunks for arrangement in self._kept]

    def compact(self, fuel: int) -> bool:
        """Merge some rows of each arrangement."""
        self._advance()
        return sum(arrangement.compact(fuel) for arrangement in self._kept) > 0

    def _advance(self) -> None:
        """Give up the outer times before the last one that all workers have completed."""
        passed = self._passed()
        # At the end of the input no row comes that would need the room.
        if passed == END_TIME or passed - 1 <= self._since:
            return
        self._since = passed - 1
        for reader in self._least:
            reader.advance(Antichain.of(nested_time(self._since, (0,) * (self._depth - 1))))


class _WithoutPending(_Arrangements):
    """A logic whose output follows from its input alone."""

    has_pending = False

    @property
    def pending(self) -> tuple[Int64s, Int64s]:
        """Return nothing."""
        return _NOTHING, np.empty((0, self._depth), np.int64)

    def restore_pending(self, keys: Int64s, times: Int64s) -> None:
        """Do nothing, as no moment is pending."""


class ArrangeLogic(_WithoutPending):
    """An arrangement for other operators."""

    def __init__(self, depth: int, passed: Passed) -> None:
        self.arrangement = Arrangement(depth)
        super().__init__(depth, [self.arrangement], [], passed)

    def _step(self, batches: Sequence[Updates], at: LayerDescription) -> Iterator[Updates]:
        (batch,) = batches
        layer = layer_of(batch, at)
        self.arrangement.insert(layer)
        self.got(0, layer.updates())
        yield from layer.updates()


class JoinLogic(_WithoutPending):
    """A join of two arrangements; it keeps those that no other operator keeps."""

    def __init__(
        self,
        function: join.Function,
        depth: int,
        shared: Sequence[Arrangement | None],
        passed: Passed,
    ) -> None:
        """`shared` has the arrangement of each side that another operator keeps."""
        self._sides = [
            join.Side.own(depth) if one is None else join.Side.shared(one, depth) for one in shared
        ]
        own = [side.arrangement for side in self._sides if not side.is_shared]
        super().__init__(depth, own, [side.reader for side in self._sides], passed)
        self.shared = {n: side.reader for n, side in enumerate(self._sides) if side.is_shared}
        left, right = self._sides
        self._join = join.IncrementalJoin(left, right, function)

    def _step(self, batches: Sequence[Updates], at: LayerDescription) -> Iterator[Updates]:
        layers = left, right = [layer_of(one, at) for one in batches]
        yield from self._join.step(left, right)
        own = [layer for side, layer in zip(self._sides, layers, strict=True) if not side.is_shared]
        for number, layer in enumerate(own):
            self.got(number, layer.updates())


class CountLogic(_WithoutPending):
    """A count outside of loops, which keeps its output alone."""

    def __init__(self, name: str, shown: reduce.Shown, passed: Passed) -> None:
        self._count = TotalCount(name, shown)
        super().__init__(DEPTH, [self._count.output], [self._count.previous], passed)

    def _step(self, batches: Sequence[Updates], at: LayerDescription) -> Iterator[Updates]:
        (batch,) = batches
        yield from self._passed_on(self._count.step(batch, at))


class ReduceLogic(_Arrangements):
    """A reduction of an arrangement, and its output."""

    def __init__(
        self,
        name: str,
        function: reduce.Function,
        depth: int,
        shared: Arrangement | None,
        shown: reduce.Shown,
        passed: Passed,
    ) -> None:
        """`shared` is the input where another operator keeps it; `shown` is its row for users."""
        arranged = Arrangement(depth) if shared is None else shared
        self._own = arranged if shared is None else None
        reader = arranged.reader(depth)
        self._reduction = reduce.Reduction(name, reader, function, depth, shown)
        own = [arranged] if shared is None else []
        readers = [reader, self._reduction.previous]
        super().__init__(depth, [self._reduction.output, *own], readers, passed)
        self.shared = {} if shared is None else {0: reader}

    @property
    def pending(self) -> tuple[Int64s, Int64s]:
        """Return the keys and times at which two changes of a key join later."""
        return self._reduction.pending

    @property
    def has_pending(self) -> bool:
        """Return whether two changes of a key join later."""
        return self._reduction.has_pending

    def _step(self, batches: Sequence[Updates], at: LayerDescription) -> Iterator[Updates]:
        (batch,) = batches
        layer = layer_of(batch, at)
        if self._own is not None:
            self._own.insert(layer)
            self.got(1, layer.updates())
        yield from self._passed_on(self._reduction.step(layer))

    def restore_pending(self, keys: Int64s, times: Int64s) -> None:
        """Add restored moments at which the output may change."""
        self._reduction.add_pending(keys, times)
