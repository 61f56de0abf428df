"""A sink in this process, which hands each result to a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meander.dataflow.interfaces import SinkSpec, SinkWriter, WorkerContext
from meander.dataflow.records.batch import Batch
from meander.state.encoding import codec

Show = Callable[[Sequence[object], Sequence[object]], None]
"""Takes the keys and the values of some results; a key is None in a stream without keys."""


class Collector(SinkSpec):
    """A sink that calls a function with results; implements `SinkSpec`."""

    def __init__(self, show: Show) -> None:
        self._show = show

    def open(self, context: WorkerContext) -> SinkWriter:
        """Return the writer."""
        return CollectingWriter(self._show)


class CollectingWriter:
    """A writer whose results are durable at once; implements `SinkWriter`."""

    full = False

    def __init__(self, show: Show) -> None:
        self._show, self._written = show, 0

    def write(self, batch: Batch) -> int:
        """Hand out the results of a batch; return its ticket."""
        keys = [None] * len(batch) if batch.keys is None else [*map(codec.decode, batch.keys)]
        self._show(keys, [*batch.values])
        self._written += 1
        return self._written

    def delivered(self) -> int:
        """Return the last ticket."""
        return self._written

    def close(self) -> None:
        """Do nothing, as no resource is open."""
