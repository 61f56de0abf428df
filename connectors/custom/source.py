"""The interface for sources: partitions with positions, and a reader for each of them.

Guarantees that a record is read again after a restart, unless a checkpoint holds its effects. A
position is the place of a record in its partition, such as a row or byte offset; checkpoints keep
the position of the next record. Kafka has both, as offsets. Cost: a thread per source and worker,
and a tuple per record besides the reading.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import TypeVar

from meander.connectors.custom.partition_list import (
    PartitionNames,
    expect_same,
    key_of,
    names_of,
    partition_list,
)
from meander.connectors.custom.reader import ThreadedReader
from meander.connectors.custom.records import PartitionReader
from meander.connectors.kafka.source.source import NO_READERS, assigned
from meander.dataflow.api.nodes import SourceNode
from meander.dataflow.interfaces import (
    DeadLetterTopic,
    Partition,
    Readers,
    Rests,
    SourceOptions,
    SourceSpec,
    WorkerContext,
)

T = TypeVar("T", default=Any)
"""The type of a source's values."""
DEFAULT_OPTIONS = SourceOptions()


class Source(SourceSpec[T], ABC):
    """A source of partitions, each an ordered log; implements `SourceSpec`. A subclass names the
    partitions and opens a reader of one of them.

    A worker reads its share of the partitions. Other workers, and later runs, read on from the
    positions of checkpoints and moves.

    >>> from meander import Flow, KafkaSink, PartitionReader, Source, SourceRecord
    >>> from meander.testing import TestFlow
    >>> class Numbers(Source[int]):
    ...     def partitions(self):
    ...         return ["even", "odd"]
    ...     def open_partition(self, name, position, until_end):
    ...         return NumbersReader(name == "odd", position)
    >>> class NumbersReader:
    ...     def __init__(self, first, position):
    ...         self.first, self.position = first, position
    ...     def read(self, most):
    ...         rows = range(self.position, min(self.position + most, 3))
    ...         self.position = rows.stop if rows else self.position
    ...         return [SourceRecord(row, 2 * row + self.first, time_ms=row) for row in rows]
    ...     def close(self):
    ...         pass
    >>> flow = Flow("numbers")
    >>> flow.source(Numbers()).sink(KafkaSink("numbers"))
    >>> with TestFlow(flow) as run:
    ...     run.run()
    >>> sorted(run.values("numbers"))
    [0, 1, 2, 3, 4, 5]
    """

    options: SourceOptions = DEFAULT_OPTIONS

    @abstractmethod
    def partitions(self) -> Sequence[str]:
        """Return the names of the partitions. A name keeps its place in the list, on every worker
        and in every run; new names follow behind. Workers call it once a second."""

    @abstractmethod
    def open_partition(self, name: str, position: int, until_end: bool) -> PartitionReader[T]:
        """Return a reader of a partition from the first record at or behind a position; 0 is the
        start. A run `until_end` reads the records of now, and ends with the first empty read."""

    @property
    def label(self) -> str:
        """Return the name of the source in errors and dead letters."""
        return type(self).__name__

    def open(
        self,
        context: WorkerContext,
        dead: DeadLetterTopic,
        rests: Rests | None = None,
        readers: Readers = NO_READERS,
    ) -> ThreadedReader:
        """Return this worker's reader of the given rests, or of its share of all partitions in a
        first run. Raise SetupError where this worker finds other partitions than the driver."""
        names = names_of(self)
        key, _, own = partition_list(self.label, names).partition(" ")
        expect_same(self.label, context.topics.get(key, own), names)
        share = assigned(self.label, len(names), context.worker, context.workers, readers)
        if rests is not None:
            # A running flow learns of later partitions, except in a bounded run.
            share = [p for p in share if p not in rests] if context.until_end else []
        positions = dict.fromkeys(share, 0)
        found = rests or {}
        positions |= {Partition(p): rest.offset for p, rest in found.items() if rest is not None}
        return ThreadedReader(self, names, positions, dead, context.until_end, context.wakeup)


def partition_names(
    sources: Iterable[SourceNode], topics: Mapping[str, str]
) -> dict[str, PartitionNames]:
    """Return the names of the partitions of a flow's sources by this interface, by source. `topics`
    holds what the decision log knows of them."""
    return {
        node.name: PartitionNames(node.spec, topics.get(key_of(node.spec.label), ""))
        for node in sources
        if isinstance(node.spec, Source)
    }
