"""The state restore loads the states of one worker from the layers on the state topic into its
stores.

Guarantees that all states are installed before any operator runs, so every record meets the history
of its key. Guarantees that the states are those that were written (I4); otherwise the flow ends
with the name of the layer. A step installs a slice of several bins, so heartbeats continue and
fetching overlaps installing. Cost: 2 to 3 us per small entry.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.keyed.stateful import StatefulOperator
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.delta_bundles import Bundle, Delta, decode_deltas
from meander.state.encoding.timers import Timers
from meander.state.keys.ids import Bin, CheckpointId
from meander.state.layers.layer import DeltaEntries, merge_deltas, read_payloads
from meander.state.layers.layer_loader import AHEAD_BYTES, LayerLoader
from meander.state.layers.manifest import Manifest
from meander.state.layers.topic import StateTopic
from meander.state.store.store import IncomingTable, ingest

log = LineLogger(__name__)

ENTRIES = 2048
"""The entries installed per bin and step."""
AT_ONCE_BYTES = 32 << 20
"""The most bytes of concurrently loaded bins in memory: one sweep reads what is requested together,
and one step ingests what arrives together."""
LONGEST = 0.02
"""The seconds of a step, without the ingestion at its end."""
EVERY = 5.0
"""The seconds between two log lines."""


class StateRestore:
    """A restore of one worker's states; call `step` until `done`."""

    def __init__(
        self,
        at: CheckpointId,
        operators: Iterable[StatefulOperator],
        manifests: Iterable[Manifest],
        deltas: Iterable[Delta],
        bundles: Sequence[Bundle],
        topic: StateTopic,
        in_flight: StateTopic,
        clock: Clock,
    ) -> None:
        self._deltas = {(one.operator, one.bin): one.entries for one in deltas}
        self._bundles = bundles
        self._bundled = defaultdict[tuple[str, Bin], list[DeltaEntries]](list)
        self._reading = read_payloads(in_flight, [one.location for one in bundles], AHEAD_BYTES)
        self._unread = deque(bundles)
        self._at, self._operators = at, {keyed.name: keyed for keyed in operators}
        self._left = deque(manifests)
        self._survived = self._rollback()
        self._topic, self._clock = topic, clock
        self._installing: deque[tuple[Manifest, LayerLoader]] = deque()
        self._tables: list[IncomingTable] = []
        layers = [
            layer
            for manifest in self._left
            if (manifest.operator, manifest.bin) not in self._survived
            for layer in manifest.layers
        ]
        self._keys = sum(layer.count for layer in layers)
        self._loaded = 0
        sizes = [*(layer.bytes for layer in layers), *(one.location.size for one in bundles)]
        self.read, self.total = 0, sum(sizes)
        """The bytes read, and their total."""
        self._started_at = self._logged_at = clock.monotonic()

    @property
    def done(self) -> bool:
        """Whether all states are installed."""
        return not (self._left or self._installing or self._unread)

    @property
    def left(self) -> list[Manifest]:
        """The manifests of the bins that are not installed."""
        return [*self._left, *(manifest for manifest, _ in self._installing)]

    @property
    def deltas(self) -> list[Delta]:
        """The deltas of these bins."""
        left = self._places_left
        return [Delta(*at, rest) for at, rest in self._deltas.items() if at in left]

    @property
    def bundles(self) -> list[Bundle]:
        """The bundles with deltas of these bins."""
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
        """Install a slice of each bin under way; return whether anything was done.

        Raise `LayerCorrupt` where a layer differs from what was written.
        """
        if self._unread:
            return self._read_bundles()
        before = len(self._left), self._loaded
        bytes_held = sum(loader.memory_bound for _, loader in self._installing)
        while self._left and bytes_held < AT_ONCE_BYTES:
            manifest = self._left.popleft()
            if (timers := self._survived.get((manifest.operator, manifest.bin))) is not None:
                self._installed(manifest, timers)
                continue
            store = self._operators[manifest.operator].store
            loader = LayerLoader(store, manifest, self._topic, ingest=self._tables.append)
            self._installing.append((manifest, loader))
            bytes_held += loader.memory_bound
        self._install()
        self._log_progress()
        return before != (len(self._left), self._loaded)

    def _install(self) -> None:
        """Install slices of as many bins as the time allows, in turn."""
        until = self._clock.monotonic() + LONGEST
        for _ in range(len(self._installing)):
            manifest, loader = self._installing.popleft()
            if loader.step(ENTRIES):
                self._installed(manifest, loader.timers)
                self._loaded += loader.count
                self.read += loader.bytes
            else:
                self._installing.append((manifest, loader))
            if self._clock.monotonic() > until:
                break
        ingest(self._tables)
        self._tables.clear()

    def _read_bundles(self) -> bool:
        """Read the bundles that have arrived while there is time; return whether there was one."""
        until, before = self._clock.monotonic() + LONGEST, len(self._unread)
        while self._unread and self._clock.monotonic() <= until:
            if (data := next(self._reading)) is None:
                break
            bundle = self._unread.popleft()
            self.read += bundle.location.size
            bins = {*bundle.bins}
            for operator, bin, remainder in decode_deltas(data):
                if bin in bins:
                    self._bundled[operator, bin].append(remainder)
        return len(self._unread) < before

    def _rollback(self) -> dict[tuple[str, Bin], Timers]:
        """Return surviving bins to the checkpoint and drop all others; return the timers of the
        bins."""
        found = dict[tuple[str, Bin], Timers]()
        for name, keyed in self._operators.items():
            wanted = {manifest.bin for manifest in self._left if manifest.operator == name}
            timers = keyed.store.rollback(self._at, keyed.store.rollback_bins(self._at) & wanted)
            found.update(((name, bin), some) for bin, some in timers.items())
        return found

    def _installed(self, manifest: Manifest, timers: Timers) -> None:
        keyed = self._operators[manifest.operator]
        keyed.bin_layers.adopt(manifest)
        at = manifest.operator, manifest.bin
        remainder = self._deltas.get(at) or merge_deltas(self._bundled.pop(at, ()))
        keyed.incoming.add_delta(manifest.bin, remainder, timers)

    def _log_progress(self) -> None:
        now = self._clock.monotonic()
        if not self.done and now < self._logged_at + EVERY:
            return
        self._logged_at = now
        seconds = now - self._started_at
        rate = self._loaded / seconds if seconds else 0.0
        if self.done:
            log.info(
                "state_restored",
                keys=self._loaded,
                seconds=round(seconds, 1),
                bins_retained=len(self._survived),
            )
        elif rate:
            log.info(
                "state_restore_progressed",
                keys=self._loaded,
                total=self._keys,
                keys_per_second=round(rate),
                seconds_left=round((self._keys - self._loaded) / rate),
            )
