"""The layer loader: reads the layers of a bin from the state topic into a store.

Invariants: the store then holds the written entries byte for byte (I4), or LayerCorrupt is raised.
The memory of a bin is at most `memory_bound` (I6). A step installs at most its budget of entries,
or one table, and never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Final

from meander.schemas.errors import MeanderError
from meander.state.encoding.timers import Timers
from meander.state.keys.ids import LayerId
from meander.state.layers.chunk import Head, LayerChunk
from meander.state.layers.layer import Payloads, read_chunks, read_payloads
from meander.state.layers.manifest import LayerPointer, Manifest
from meander.state.layers.topic import StateTopic
from meander.state.store.sst_writer import TABLE_BYTES
from meander.state.store.store import IncomingTable, Store, ingest

AHEAD_BYTES: Final = 2 * TABLE_BYTES
"""The most bytes of its bin that a loader holds at once, unless one chunk exceeds them."""


class LayerLoader:
    """A loader that reads the layers of one bin from the state topic into a store.

    Where the first layers equal the `prefetched` layers in the store, the loader adds only the
    remaining layers. It then expects the timers of the last prefetched layer. Otherwise the layers
    replace the bin in the store. `timers`, `count` (installed keys) and `bytes` (from the topic)
    are complete once `step` has returned True. `ingest` may install several tables together before
    the next step. Raise MeanderError where the layers have another codec than the store.
    """

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        topic: StateTopic,
        prefetched: Sequence[LayerId] = (),
        timers: Timers = (),
        ingest: Callable[[IncomingTable], None] = lambda one: ingest([one]),
    ) -> None:
        for layer in manifest.layers:
            if layer.codec not in store.readable_codecs:
                raise MeanderError(
                    str(Head.of(manifest.operator, manifest.bin, layer)),
                    f"it was written with codec '{layer.codec}', and this worker's is "
                    f"'{store.codec_name}'",
                    "run every worker with the same flow",
                )
        first = [layer.id for layer in manifest.layers[: len(prefetched)]]
        self._prefetched = len(prefetched) if first == list(prefetched) else 0
        self.timers = list(timers) if self._prefetched else []
        self.count = self.bytes = 0
        self.is_waiting = False
        """Whether the last step did nothing, as the next chunk has not arrived."""
        self._layers = manifest.layers[self._prefetched :]
        self._locations = [location for layer in self._layers for location in layer.chunks]
        sizes = [location.size for location in self._locations]
        self._most = max([min(sum(sizes), AHEAD_BYTES), *sizes])
        self._store, self._manifest, self._topic = store, manifest, topic
        self._ingest = ingest
        self._done = False
        self._slices = self._run()

    def step(self, budget_entries: int) -> bool:
        """Do one slice of the work; return whether the bin is installed.

        Raise LayerCorrupt, and stop, where a chunk differs from the manifest.
        """
        self._budget, self.is_waiting = budget_entries, False
        next(self._slices, None)
        return self._done

    @property
    def memory_bound(self) -> int:
        """Return the most bytes that the loader may hold in memory."""
        return self._most

    def cancel(self) -> None:
        """Cancel the load; installed entries remain."""
        self._slices.close()
        self._most = 0

    def _run(self) -> Generator[None, None, None]:
        if not self._prefetched:
            self._store.drop(self._manifest.bin)
        try:
            with closing(read_payloads(self._topic, self._locations, AHEAD_BYTES)) as payloads:
                for layer in self._layers:
                    yield from self._install(layer, payloads)
            self._done = True
        finally:
            self._most = 0

    def _install(self, layer: LayerPointer, payloads: Payloads) -> Iterator[None]:
        head = Head.of(self._manifest.operator, self._manifest.bin, layer)
        self.timers = []  # a layer has all timers of its bin
        for chunk in read_chunks(head, layer, payloads):
            if chunk is None:
                self.is_waiting = True
                yield
            else:
                self.timers += chunk.timers
                yield from self._put(chunk)
        self.count += layer.count
        self.bytes += layer.bytes

    def _put(self, chunk: LayerChunk) -> Iterator[None]:
        keys, states = chunk.keys, chunk.states
        if chunk.table:
            self._ingest(IncomingTable(self._store, self._manifest.bin, chunk.table, chunk.tabled))
            yield
        while keys:
            n = self._budget
            self._store.install(self._manifest.bin, keys[:n], states[:n])
            keys, states = keys[n:], states[n:]
            yield
