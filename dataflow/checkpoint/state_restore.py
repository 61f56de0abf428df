"""The states with which a worker begins: out of layers on the state topic into its stores.

Guarantees that nothing is scheduled before all of them are installed, so every record meets its
key's history, and that they are those that were written (I4), or the flow ends with the layer's
name. Fuelled: a step installs a slice of each of some bins, so that the worker is heard of
meanwhile, and fetching one bin overlaps installing another. Cost: 2 to 3 us a small entry.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.keyed.operator import KeyedOperator
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.delta_bundles import Bundle, Delta, from_bytes
from meander.state.encoding.timers import Timers
from meander.state.keys.ids import Bin, CheckpointId
from meander.state.layers.layer import DeltaEntries, overlaid, payloads
from meander.state.layers.layer_loader import AHEAD_BYTES, LayerLoader
from meander.state.layers.manifest import Manifest
from meander.state.layers.topic import StateTopic
from meander.state.store.store import IncomingTable, ingest

log = LineLogger(__name__)

ENTRIES = 2048
"""Entries installed per bin and step."""
AT_ONCE_BYTES = 32 << 20
"""How much of bins that are installed side by side may be in memory: what is asked for together is
read in one sweep, and what comes together is taken in at once."""
LONGEST = 0.02
"""Seconds of a step, but for what is taken in then."""
EVERY = 5.0
"""Seconds between two lines of the log."""


class StateRestore:
    """What one worker loads before it begins; `step` until `done`."""

    def __init__(
        self,
        at: CheckpointId,
        operators: Iterable[KeyedOperator],
        manifests: Iterable[Manifest],
        lacking: Iterable[Delta],
        bundles: Sequence[Bundle],
        topic: StateTopic,
        in_flight: StateTopic,
        clock: Clock,
    ) -> None:
        self._lacking = {(one.operator, one.bin): one.remainder for one in lacking}
        self._bundles = bundles
        self._bundled = defaultdict[tuple[str, Bin], list[DeltaEntries]](list)
        self._reading = payloads(in_flight, [one.place for one in bundles], AHEAD_BYTES)
        self._unread = deque(bundles)
        self._at, self._operators = at, {keyed.name: keyed for keyed in operators}
        self._left = deque(manifests)
        self._here = self._go_back()
        self._topic, self._clock = topic, clock
        self._installing: deque[tuple[Manifest, LayerLoader]] = deque()
        self._tables: list[IncomingTable] = []
        layers = [
            layer
            for manifest in self._left
            if (manifest.operator, manifest.bin) not in self._here
            for layer in manifest.layers
        ]
        self._keys = sum(layer.count for layer in layers)
        self._loaded = 0
        sizes = [*(layer.bytes for layer in layers), *(one.place.size for one in bundles)]
        self.read, self.total = 0, sum(sizes)
        """Bytes, and of how many."""
        self._began = self._said = clock.monotonic()

    @property
    def done(self) -> bool:
        """Whether all is installed."""
        return not (self._left or self._installing or self._unread)

    @property
    def left(self) -> list[Manifest]:
        """The bins that are not installed, as they lie on the topic."""
        return [*self._left, *(manifest for manifest, _ in self._installing)]

    @property
    def lacking(self) -> list[Delta]:
        """What the layers of these lack."""
        left = self._places_left
        return [Delta(*at, rest) for at, rest in self._lacking.items() if at in left]

    @property
    def bundles(self) -> list[Bundle]:
        """Where it lies what others of these lack."""
        left = self._places_left
        some = (
            one._replace(bins=tuple(bin for bin in one.bins if (one.operator, bin) in left))
            for one in self._bundles
        )
        return [one for one in some if one.bins]

    @property
    def _places_left(self) -> set[tuple[str, Bin]]:
        return {(manifest.operator, manifest.bin) for manifest in self.left}

    def step(self) -> bool:
        """Install a slice of each bin under way; whether a bin was begun or finished, or any key
        installed. Raises LayerCorrupt where a layer is not what was written."""
        if self._unread:
            return self._read()
        before = len(self._left), self._loaded
        held = sum(installation.held for _, installation in self._installing)
        while self._left and held < AT_ONCE_BYTES:
            manifest = self._left.popleft()
            if (timers := self._here.get((manifest.operator, manifest.bin))) is not None:
                self._installed(manifest, timers)
                continue
            store = self._operators[manifest.operator].store
            installation = LayerLoader(store, manifest, self._topic, ingest=self._tables.append)
            self._installing.append((manifest, installation))
            held += installation.held
        self._install()
        self._tell()
        return before != (len(self._left), self._loaded)

    def _install(self) -> None:
        """A slice of as many bins as there is time for, in turn."""
        until = self._clock.monotonic() + LONGEST
        for _ in range(len(self._installing)):
            manifest, installation = self._installing.popleft()
            if installation.step(ENTRIES):
                self._installed(manifest, installation.timers)
                self._loaded += installation.count
                self.read += installation.bytes
            else:
                self._installing.append((manifest, installation))
            if self._clock.monotonic() > until:
                break
        ingest(self._tables)
        self._tables.clear()

    def _read(self) -> bool:
        """As many bundles as are here and there is time for; whether there was one."""
        until, before = self._clock.monotonic() + LONGEST, len(self._unread)
        while self._unread and self._clock.monotonic() <= until:
            if (data := next(self._reading)) is None:
                break
            bundle = self._unread.popleft()
            self.read += bundle.place.size
            bins = {*bundle.bins}
            for operator, bin, remainder in from_bytes(data):
                if bin in bins:
                    self._bundled[operator, bin].append(remainder)
        return len(self._unread) < before

    def _go_back(self) -> dict[tuple[str, Bin], Timers]:
        """Have what is here of an earlier life, of the bins that are to be loaded, be what the
        checkpoint says, and drop all else; with its timers."""
        found = dict[tuple[str, Bin], Timers]()
        for name, keyed in self._operators.items():
            wanted = {manifest.bin for manifest in self._left if manifest.operator == name}
            timers = keyed.store.go_back(self._at, keyed.store.known(self._at) & wanted)
            found.update(((name, bin), some) for bin, some in timers.items())
        return found

    def _installed(self, manifest: Manifest, timers: Timers) -> None:
        keyed = self._operators[manifest.operator]
        keyed.trace.adopt(manifest)
        at = manifest.operator, manifest.bin
        remainder = self._lacking.get(at) or overlaid(self._bundled.pop(at, ()))
        keyed.arrivals.add(manifest.bin, remainder, timers)

    def _tell(self) -> None:
        now = self._clock.monotonic()
        if not self.done and now < self._said + EVERY:
            return
        self._said = now
        seconds = now - self._began
        rate = self._loaded / seconds if seconds else 0.0
        if self.done:
            log.info(
                "state_restored",
                keys=self._loaded,
                seconds=round(seconds, 1),
                bins_retained=len(self._here),
            )
        elif rate:
            log.info(
                "state_restore_progressed",
                keys=self._loaded,
                total=self._keys,
                keys_per_second=round(rate),
                seconds_left=round((self._keys - self._loaded) / rate),
            )
