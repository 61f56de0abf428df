"""The logics of collections: arrange, join and reduce, with the arrangements that they keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from meander.dataflow.collections import join, reduce
from meander.dataflow.collections.arrangement import Arrangement, ArrangementReader, settled
from meander.dataflow.records.loop_times import nested_time
from meander.state.collections.columns import Int64s
from meander.state.collections.description import LayerDescription
from meander.state.collections.layer import Layer, UpdateChunk, Updates
from meander.state.times.antichain import Antichain
from meander.state.times.time import END_TIME, MIN_TIME

Stored = tuple[int, Updates]
"""The number of an arrangement, and updates that it got."""
_NOTHING = np.empty(0, np.int64)


class _Arrangements:
    """The arrangements that a logic keeps, by number, and the updates that they got in a step."""

    def __init__(self, kept: Sequence[Arrangement], readers: Sequence[ArrangementReader]) -> None:
        self._kept, self._readers = kept, readers
        self._got: list[Stored] = []

    def start(self, position: Antichain) -> None:
        """Count all updates before a frontier as those of an earlier execution."""
        for arrangement in self._kept:
            arrangement.insert(Layer((), LayerDescription(arrangement.upper, position, position)))
        for reader in self._readers:
            reader.advance(position)

    def got(self, number: int, updates: Iterator[Updates]) -> None:
        """Note updates that an arrangement got."""
        self._got += [(number, some) for some in updates]

    def take_stored(self) -> list[Stored]:
        """Return the noted updates once."""
        got, self._got = self._got, []
        return got

    @property
    def passed(self) -> int:
        """Return an outer time that all readers on all workers have passed, or are at."""
        return END_TIME

    def between(self, number: int, first: int, last: int) -> Iterator[Updates]:
        """Yield the updates of an arrangement with hashes from `first` to `last`."""
        passed = self.passed
        return (settled(some, passed) for some in self._kept[number].between(first, last))

    def install(self, number: int, updates: Updates) -> None:
        """Add updates of earlier times to an arrangement."""
        self._kept[number].install(updates)

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
        return sum(arrangement.compact(fuel) for arrangement in self._kept) > 0


class _WithoutPending(_Arrangements):
    """A logic whose output follows from its input alone."""

    def __init__(
        self, depth: int, kept: Sequence[Arrangement], readers: Sequence[ArrangementReader]
    ) -> None:
        super().__init__(kept, readers)
        self.pending: tuple[Int64s, Int64s] = _NOTHING, np.empty((0, depth), np.int64)
        """Nothing."""
        self.has_pending = False

    def restore_pending(self, keys: Int64s, times: Int64s) -> None:
        """Do nothing, as no moment is pending."""


class ArrangeLogic(_WithoutPending):
    """An arrangement for other operators."""

    def __init__(self, depth: int, readers_passed: Callable[[], int]) -> None:
        """`readers_passed` returns the outer time that the readers on all workers have reached."""
        self.arrangement = Arrangement(depth)
        super().__init__(depth, [self.arrangement], [])
        self._depth, self._readers_passed = depth, readers_passed
        # A bin leaves the readers later than the arrangement, so its new owner must not advance
        # times that they still tell apart.
        self._least = self.arrangement.trace.reader()

    @property
    def passed(self) -> int:
        """Return an outer time that all readers on all workers have passed, or are at."""
        return self._readers_passed()

    def step(self, layers: Sequence[Layer]) -> Iterator[Updates]:
        """Yield the next layer."""
        (layer,) = layers
        self._advance()
        self.arrangement.insert(layer)
        self.got(0, layer.updates())
        yield from layer.updates()

    def compact(self, fuel: int) -> bool:
        """Merge some rows."""
        self._advance()
        return super().compact(fuel)

    def _advance(self) -> None:
        # Times before that of the readers stay before it.
        outer = max(self.passed - 1, MIN_TIME)
        self._least.advance(Antichain.of(nested_time(outer, (0,) * (self._depth - 1))))


class JoinLogic(_WithoutPending):
    """A join of two arrangements; it keeps those that no other operator keeps."""

    def __init__(
        self, function: join.Function, depth: int, shared: Sequence[Arrangement | None]
    ) -> None:
        """`shared` has the arrangement of each side that another operator keeps."""
        self._sides = [
            join.Side.own(depth) if one is None else join.Side.shared(one, depth) for one in shared
        ]
        own = [side.arrangement for side in self._sides if not side.is_shared]
        super().__init__(depth, own, [side.reader for side in self._sides])
        left, right = self._sides
        self._join = join.IncrementalJoin(left, right, function)

    def step(self, layers: Sequence[Layer]) -> Iterator[Updates]:
        """Yield the output for the next layers of both sides."""
        left, right = layers
        yield from self._join.step(left, right)
        own = [layer for side, layer in zip(self._sides, layers, strict=True) if not side.is_shared]
        for number, layer in enumerate(own):
            self.got(number, layer.updates())


class ReduceLogic(_Arrangements):
    """A reduction of an arrangement, and its output."""

    def __init__(
        self, name: str, function: reduce.Function, depth: int, shared: Arrangement | None,
        shown: reduce.Shown,
    ) -> None:  # fmt: skip
        """`shared` is the input where another operator keeps it; `shown` is its row for users."""
        arranged = Arrangement(depth) if shared is None else shared
        self._own = arranged if shared is None else None
        reader = arranged.reader(depth)
        self._reduction = reduce.Reduction(name, reader, function, depth, shown)
        own = [arranged] if shared is None else []
        super().__init__([self._reduction.output, *own], [reader, self._reduction.previous])

    @property
    def pending(self) -> tuple[Int64s, Int64s]:
        """Return the keys and times at which two changes of a key join later."""
        return self._reduction.pending

    @property
    def has_pending(self) -> bool:
        """Return whether two changes of a key join later."""
        return self._reduction.has_pending

    def step(self, layers: Sequence[Layer]) -> Iterator[Updates]:
        """Yield the output for the next layer."""
        (layer,) = layers
        if self._own is not None:
            self._own.insert(layer)
            self.got(1, layer.updates())
        for piece in self._reduction.step(layer):
            self.got(0, iter([piece]))
            yield piece

    def restore_pending(self, keys: Int64s, times: Int64s) -> None:
        """Add restored moments at which the output may change."""
        self._reduction.add_pending(keys, times)
