"""Sources and sinks by the public interface on simulated workers.

Guarantees that a flow reads and writes outside as it does on real workers, without threads: the
seed chooses when a partition is read, how many records a read may give, and when results leave.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from meander.connectors.custom.partition_list import names_of
from meander.connectors.custom.reader import PartitionsReader
from meander.connectors.custom.sink import Sink, encode_batch, open_part
from meander.connectors.custom.source import Source
from meander.connectors.testing.in_memory import POLL_SIZES
from meander.dataflow.exactly_once.checksum import Checksum
from meander.dataflow.interfaces import Chunk, DeadLetterTopic, Partition
from meander.dataflow.records.batch import Batch
from meander.dataflow.simulation.in_memory import DelayedWriter
from meander.schemas.errors import SetupError
from meander.state.keys.ids import WorkerId


class SimulatedReader(PartitionsReader):
    """A reader that reads when the loop polls it. `share` returns its partitions, given the number
    of all. `ending` returns whether no records will follow, and `room` how many it may return."""

    def __init__(
        self,
        source: Source[Any],
        share: Callable[[int], Sequence[Partition]],
        dead: DeadLetterTopic,
        rng: random.Random,
        ending: Callable[[], bool],
        room: Callable[[], int],
    ) -> None:
        names = names_of(source)
        positions = dict.fromkeys(share(len(names)), 0)
        super().__init__(source, names, positions, dead, until_end=True, ending=ending)
        self.total = len(names)
        self._rng, self._room = rng, room

    def poll(self) -> list[Chunk]:
        """Return some records of some partitions."""
        if self._rng.random() < 0.1:
            self._list()
        for one in self._open.values():
            if not one.buffered and self._rng.random() < 0.5:
                self._read(one, self._rng.choice(POLL_SIZES))
        return self._chunks(max(0, self._room()))


class PartWriter(DelayedWriter):
    """A writer of one worker's part, which gets a batch some turns later."""

    def __init__(self, sink: Sink, worker: WorkerId, rng: random.Random) -> None:
        super().__init__(rng)
        self._sink, self._part = sink, open_part(sink, worker)

    def prepared(self, batch: Batch) -> Callable[[], None]:
        """Return the function that writes a batch. Raise RowError for a row that does not fit."""
        return partial(self._part.write, encode_batch(self._sink, batch))

    def checksum(self, batch: Batch) -> Checksum:
        """Raise SetupError, as the sink has no transactions."""
        raise SetupError(
            f"sink {self._sink.label!r}", "only a KafkaSink supports transactions",
            "give the flow delivery='at_least_once', or the sink a topic",
        )  # fmt: skip

    def close(self) -> None:
        """Close the part."""
        self._part.close()
