"""The pre-copy on workers: most of a bin reaches the state topic before the bin leaves.

Guarantees that the reported layers of a bin stay until it has left or its move is cancelled, so its
next owner can prefetch them. These layers lack only a small delta: a further layer is written first
while records continue. Later changes move with the bin. Cost: as for a snapshot of the bin; no
record waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from meander.dataflow.control.reports import BinPreCopied
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.keyed.stateful import StatefulOperator
from meander.state.keys.ids import Bin
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.manifest import Manifest

ENTRIES = 512
"""The entries written per bin and turn, about half a millisecond."""


class PreCopyWriter:
    """A writer of the bins of one colocation group ahead of their moves."""

    def __init__(self, context: OperatorContext, operators: Sequence[StatefulOperator]) -> None:
        self._operators, self._throttle, self._report = operators, context.throttle, context.report
        self._waiting: deque[tuple[StatefulOperator, Bin]] = deque()
        self._writing: deque[tuple[StatefulOperator, Bin, LayerWriter]] = deque()
        self._numbers: dict[Bin, int] = {}
        """The preparation of each bin whose layers have to stay."""
        self._reported: set[Bin] = set()
        """The bins whose layers have been reported since the last `drain_reported`."""

    @property
    def busy(self) -> bool:
        """Whether anything is being written."""
        return bool(self._waiting or self._writing)

    def writes(self, bin: Bin) -> bool:
        """Return whether a bin is being written, or will be."""
        under_way = (*self._waiting, *((keyed, bin) for keyed, bin, _ in self._writing))
        return any(one == bin for _, one in under_way)

    def drain_reported(self) -> set[Bin]:
        """Return the bins whose layers have been reported since the last call."""
        reported, self._reported = self._reported, set()
        return reported

    def start(self, number: int, bin: Bin) -> None:
        """Start the pre-copy of a bin."""
        self._numbers[bin] = number
        for keyed in self._operators:
            keyed.bin_layers.pin(bin)
            frozen = bin in keyed.bin_layers.frozen
            if not frozen and (manifest := keyed.small_delta_manifest(bin)) is not None:
                self._report_precopied(manifest)
            else:
                self._waiting.append((keyed, bin))

    def cancel(self, bin: Bin) -> None:
        """Cancel the pre-copy of a bin that stays."""
        if bin in self._numbers:
            for keyed, writing, _ in self._writing:
                if writing == bin:
                    keyed.bin_layers.cancel(bin)
            self.finish(bin)
            for keyed in self._operators:
                keyed.bin_layers.unpin(bin)

    def finish(self, bin: Bin) -> None:
        """End the pre-copy of a bin that leaves now; the migrator writes the rest."""
        self._numbers.pop(bin, None)
        self._waiting = deque(one for one in self._waiting if one[1] != bin)
        self._writing = deque(one for one in self._writing if one[1] != bin)

    def restart(self) -> None:
        """Give up unfinished layers and write them later."""
        self._waiting.extendleft((keyed, bin) for keyed, bin, _ in self._writing)
        self._writing.clear()

    def step(self) -> bool:
        """Write a slice; return whether anything was done."""
        ready = deque(one for one in self._waiting if one[1] not in one[0].bin_layers.frozen)
        worked = bool(ready)
        while ready and self._throttle.open and self._throttle.precopy_memory.open:
            keyed, bin = one = ready.popleft()
            self._waiting.remove(one)
            with self._throttle.measure():
                writer = self._throttle.precopy_memory.admit(keyed.snapshot_writer(bin))
            self._writing.append((keyed, bin, writer))
        return self._write() or worked

    def _write(self) -> bool:
        """Write a slice of each bin while there is time; return whether any was written."""
        worked = False
        for one in self._throttle.pop_waiting(self._writing):
            worked = True
            if one[2].step(ENTRIES):
                self._report_precopied(one[2].manifest)
            else:
                self._writing.append(one)
        return worked

    def _report_precopied(self, manifest: Manifest) -> None:
        self._reported.add(manifest.bin)
        number, data = self._numbers[manifest.bin], manifest.to_bytes()
        self._report(BinPreCopied(number, manifest.operator, manifest.bin, data))
