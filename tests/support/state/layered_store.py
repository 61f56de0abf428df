"""A store whose layers a test writes by hand."""

from __future__ import annotations

from itertools import count

from meander.state.encoding.codec import encode, seal
from meander.state.keys.ids import Bin, ExecutionId, LayerId, WorkerId
from meander.state.layers.bin_layers import BinLayers
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.manifest import Manifest
from meander.state.store.store import Store
from tests.support.state.memory_topic import BIN, MemoryTopic, drive
from tests.support.state.store_access import put


class LayeredStore:
    """A trace that is driven by hand; each layer's upper time is one later than the one before."""

    def __init__(self, store: Store, topic: MemoryTopic, worker: int = 1) -> None:
        self.store, self.topic = store, topic
        layers = (LayerId(ExecutionId(2), WorkerId(worker), n) for n in count())
        self.trace = BinLayers("per_plane", store, topic, lambda: next(layers))
        self.now = 0

    def set(self, first: int, count: int, state: object, bin: Bin = BIN) -> None:
        keys = [encode((int(bin), n)) for n in range(first, first + count)]
        for start in range(0, count, 500):
            some = keys[start : start + 500]
            put(self.store, [bin] * len(some), some, [seal(state)] * len(some))

    def begin(
        self, bin: Bin = BIN, timers: list[tuple[int, bytes]] | None = None, *, renew: bool = False
    ) -> LayerWriter:
        self.now += 1
        return self.trace.write(bin, self.now, timers or [], rebase=renew)

    def write(
        self, bin: Bin = BIN, timers: list[tuple[int, bytes]] | None = None, *, renew: bool = False
    ) -> Manifest:
        extraction = self.begin(bin, timers, renew=renew)
        drive(extraction.step, 100)
        return extraction.manifest

    def merge(self) -> None:
        drive(lambda budget: not self.trace.compact(budget), 100)
