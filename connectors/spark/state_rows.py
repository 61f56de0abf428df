"""The states of one operator in a checkpoint as rows.

Guarantees the entries that a restart would install, once each, or an error that names the layer. A
task reads some of the bins, one after the other. Memory: one bin, and the deltas of a task's bins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql.datasource import InputPartition

from meander.connectors.spark.column_types import ColumnType
from meander.connectors.spark.views import Row
from meander.connectors.topics.checkpointed_bins import open_bins
from meander.connectors.topics.internal_topics import TopicNames
from meander.state.checkpoint.checkpoint import INITIAL_CUT, Checkpoint
from meander.state.keys.ids import Bin

PARTS = 4
"""The tasks that read the states of an operator."""
BATCH = 10_000
"""The entries of a batch."""
Entries = list[tuple[bytes, bytes]]
Rows = Callable[[Checkpoint, Entries], list[Row]]
OpenRows = Callable[[], Rows]
"""Opens the function that turns entries of one bin into rows; it travels to tasks."""


@dataclass(frozen=True, slots=True)
class _Bins(InputPartition):
    """The bins of one task."""

    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True)
class StateRows:
    """A source that reads the states of an operator in a checkpoint; implements `RowSource`."""

    settings: dict[str, str] = field(repr=False)
    names: TopicNames
    operator: str
    checkpoint: bytes = field(repr=False)
    columns: Mapping[str, ColumnType | None]
    open_rows: OpenRows
    whole_bins: bool
    """Whether rows depend on all entries of a bin."""

    @staticmethod
    def of(
        settings: dict[str, str],
        names: TopicNames,
        operator: str,
        checkpoint: Checkpoint,
        columns: Mapping[str, ColumnType | None],
        open_rows: OpenRows,
        *,
        whole_bins: bool = False,
    ) -> StateRows:
        """Return the source of an operator's states. It keeps only what they need."""
        cut = checkpoint.cut
        own = replace(
            checkpoint,
            manifests=tuple(one for one in checkpoint.manifests if one.operator == operator),
            cut=replace(
                INITIAL_CUT,
                deltas=tuple(one for one in cut.deltas if one.operator == operator),
                bundles=tuple(one for one in cut.bundles if one.operator == operator),
                arrangements=cut.arrangements,
                frontiers=cut.frontiers,
            ),
            parts=(),
        )
        return StateRows(
            settings, names, operator, own.to_bytes(), columns, open_rows, whole_bins
        )  # fmt: skip

    def parts(self) -> Sequence[InputPartition]:
        """Return the shares of the bins."""
        bins = sorted(one.bin for one in Checkpoint.from_bytes(self.checkpoint).manifests)
        return [_Bins(tuple(bins[n::PARTS])) for n in range(PARTS)]

    def rows(self, part: InputPartition) -> Iterator[list[Row]]:
        """Yield the rows of some bins."""
        assert isinstance(part, _Bins)
        checkpoint, rows = Checkpoint.from_bytes(self.checkpoint), self.open_rows()
        if not part.bins:
            return
        with open_bins(self.settings, self.names, checkpoint, self.operator) as bins:
            for entries in bins.entries(part.bins):
                step = len(entries) if self.whole_bins else BATCH
                for first in range(0, len(entries), step):
                    if found := rows(checkpoint, entries[first : first + step]):
                        yield found

    def sample(self, most: int) -> list[Row]:
        """Return the rows of the first bins, `most` at most."""
        found = list[Row]()
        for part in self.parts():
            for rows in self.rows(part):
                found += rows
                if len(found) >= most:
                    return found[:most]
        return found
