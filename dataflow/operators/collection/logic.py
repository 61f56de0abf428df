"""The logics of collections: join, reduce, and consolidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from meander.dataflow.collections import join, reduce
from meander.state.collections.columns import Int64s
from meander.state.collections.layer import Layer, Updates
from meander.state.collections.trace import Trace


class JoinLogic:
    """A join of two arrangements, which it keeps."""

    def __init__(self, function: join.Function, depth: int) -> None:
        self._traces = Trace(depth), Trace(depth)
        self._join = join.Join(*self._traces, function)
        self.pending: Int64s = np.empty((0, depth), np.int64)
        """No times: the output of a join follows from its input alone."""

    def step(self, layers: Sequence[Layer]) -> Iterator[Updates]:
        """Yield the output for the next layers of both sides."""
        left, right = layers
        return self._join.step(left, right)

    def compact(self, fuel: int) -> bool:
        """Merge some rows of both sides."""
        return _compact(self._traces, fuel)


class ReduceLogic:
    """A reduction of an arrangement, which it keeps, and its output."""

    def __init__(self, name: str, function: reduce.Function, depth: int) -> None:
        self._arranged = Trace(depth)
        self._reduction = reduce.Reduction(name, self._arranged, function)

    @property
    def pending(self) -> Int64s:
        """Return the times at which two changes of a key join later."""
        return self._reduction.pending

    def step(self, layers: Sequence[Layer]) -> Iterator[Updates]:
        """Yield the output for the next layer."""
        (layer,) = layers
        self._arranged.insert(layer)
        yield from self._reduction.step(layer)

    def compact(self, fuel: int) -> bool:
        """Merge some rows of the input and of the output."""
        return _compact((self._arranged, self._reduction.output), fuel)


class ConsolidateLogic:
    """A consolidation, which gives each update of one time once, with the sum of its diffs."""

    def __init__(self, depth: int) -> None:
        self.pending: Int64s = np.empty((0, depth), np.int64)

    def step(self, layers: Sequence[Layer]) -> Iterator[Updates]:
        """Yield the rows of the layer, which is consolidated."""
        (layer,) = layers
        return layer.updates()

    def compact(self, fuel: int) -> bool:
        """Return False, as no trace is kept."""
        return False


def _compact(traces: Sequence[Trace], fuel: int) -> bool:
    return sum(trace.compact(fuel) for trace in traces) > 0
