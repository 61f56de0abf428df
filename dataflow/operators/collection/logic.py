"""The logics of collections: join and reduce, with the traces that they keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from meander.dataflow.collections import join, reduce
from meander.state.collections.columns import Int64s
from meander.state.collections.description import Description
from meander.state.collections.layer import Layer, Updates
from meander.state.collections.merge import layer_of
from meander.state.collections.trace import Trace

Stored = tuple[int, Updates]
"""The number of a trace, and updates that it got."""


class _Traces:
    """The traces of a logic by number, and the updates that they got in a step."""

    def __init__(self, *traces: Trace) -> None:
        self._all = traces
        self._got: list[Stored] = []

    def got(self, trace: int, updates: Iterator[Updates]) -> None:
        """Note updates that a trace got."""
        self._got += [(trace, some) for some in updates]

    def take_stored(self) -> list[Stored]:
        """Return the noted updates once."""
        got, self._got = self._got, []
        return got

    def install(self, trace: int, updates: Updates) -> None:
        """Add updates of earlier times to a trace."""
        _insert(self._all[trace], updates)

    def remove(self, first: int, last: int) -> None:
        """Cancel the updates of the keys with hashes from `first` to `last`. Merges drop them."""
        for trace in self._all:
            for updates in trace.between(first, last):
                _insert(trace, replace(updates, diffs=-updates.diffs))

    def compact(self, fuel: int) -> bool:
        """Merge some rows of each trace."""
        return sum(trace.compact(fuel) for trace in self._all) > 0


def _insert(trace: Trace, updates: Updates) -> None:
    description = Description(trace.upper, trace.upper, trace.since)
    trace.insert(layer_of(updates, description))


class JoinLogic(_Traces):
    """A join of two arrangements."""

    def __init__(self, function: join.Function, depth: int) -> None:
        left, right = Trace(depth), Trace(depth)
        super().__init__(left, right)
        self._join = join.Join(left, right, function)
        self.pending: tuple[Int64s, Int64s] = np.empty(0, np.int64), np.empty((0, depth), np.int64)
        """Nothing: the output of a join follows from its input alone."""

    def step(self, layers: Sequence[Layer]) -> Iterator[Updates]:
        """Yield the output for the next layers of both sides."""
        left, right = layers
        yield from self._join.step(left, right)
        for number, layer in enumerate(layers):
            self.got(number, layer.updates())

    def restore_pending(self, keys: Int64s, times: Int64s) -> None:
        """Do nothing, as no moment is pending."""


class ReduceLogic(_Traces):
    """A reduction of an arrangement, and its output."""

    def __init__(self, name: str, function: reduce.Function, depth: int) -> None:
        self._arranged = Trace(depth)
        self._reduction = reduce.Reduction(name, self._arranged, function)
        super().__init__(self._arranged, self._reduction.output)

    @property
    def pending(self) -> tuple[Int64s, Int64s]:
        """Return the keys and times at which two changes of a key join later."""
        return self._reduction.pending

    def step(self, layers: Sequence[Layer]) -> Iterator[Updates]:
        """Yield the output for the next layer."""
        (layer,) = layers
        self._arranged.insert(layer)
        self.got(0, layer.updates())
        for piece in self._reduction.step(layer):
            self.got(1, iter([piece]))
            yield piece

    def restore_pending(self, keys: Int64s, times: Int64s) -> None:
        """Add restored moments at which the output may change."""
        self._reduction.add_pending(keys, times)
