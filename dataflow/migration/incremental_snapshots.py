"""Brings what has changed in a worker's bins to the state topic, again and again (design 4).

Every `interval` seconds a round begins: each bin with changes gets one more layer, a few bins at a
time, a slice per turn, and layers that have become too many are merged. Guarantees that a bin which
leaves is left alone, and one that is prepared for it for a round. Nothing is waited for, and
nothing is promised yet: what is on the topic only makes moves short. Cost: by the key changed; see
docs/benchmarks.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from meander.dataflow.migration.migrator import Migrator, OutgoingState
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.keyed.operator import KeyedOperator
from meander.dataflow.operators.ports import BaseOperator
from meander.dataflow.records.batch import Int64s
from meander.state.keys.ids import Bin
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.topic import LayerUnreadable

ENTRIES = 512
"""Entries written of a bin, or merged, per turn."""
AT_ONCE = 4
"""Bins written side by side, so that one is encoded while others become durable."""


class Snapshots(BaseOperator):
    """Those of one worker."""

    def __init__(
        self,
        context: OperatorContext,
        migrator: Migrator,
        outlets: Sequence[OutgoingState],
        interval: float,
    ) -> None:
        self._migrator, self._outlets, self._report = migrator, outlets, context.report
        self._clock, self._interval, self._pace = context.clock, interval, context.throttle
        self._next = self._clock.monotonic() + interval
        self._heat: dict[str, Int64s] = {}
        self._waiting: deque[tuple[OutgoingState, Bin]] = deque()
        self._writing: deque[tuple[OutgoingState, Bin, LayerWriter]] = deque()

    def schedule(self) -> bool:
        """Begin a round when it is time, write a little, merge a little."""
        self._begin_round()
        self._begin_writing()
        written = self._write()
        due = (outlet for outlet in self._outlets if outlet.keyed.trace.merges)
        tended = [self._tend(outlet) for outlet in due if self._pace.open]
        return written or any(tended)

    def wait_seconds(self) -> float | None:
        """Soon while anything is being written or merged, else until the next round."""
        if self._waiting or self._writing:
            return 0.001
        return max(0.0, self._next - self._clock.monotonic())

    def _begin_round(self) -> None:
        now = self._clock.monotonic()
        if now < self._next or self._waiting or self._writing:
            return
        self._next = now + self._interval
        for outlet in self._outlets:
            self._tell(outlet.keyed)
        for outlet in self._outlets:
            # A layer that came now would not have been fetched ahead.
            told = self._migrator.preparing(outlet.keyed.name).take_told()
            changed = outlet.keyed.store.changed()
            self._waiting.extend((outlet, bin) for bin in changed if bin not in told)

    def _tell(self, keyed: KeyedOperator) -> None:
        """Say how large the bins here are, and how many records each has had since it was said."""
        bins, known = keyed.trace.bins, self._heat.get(keyed.name, 0)
        self._heat[keyed.name] = keyed.heat.copy()
        if bins:
            heat = (keyed.heat - known)[bins].tolist()
            sizes = map(keyed.trace.size, bins)
            told = [[int(bin), *one] for bin, *one in zip(bins, sizes, heat, strict=True)]
            self._report({"event": "bins", "operator": keyed.name, "bins": told})

    def _begin_writing(self) -> None:
        while self._waiting and len(self._writing) < AT_ONCE:
            outlet, bin = self._waiting[0]
            if bin in outlet.keyed.trace.frozen:
                return
            self._waiting.popleft()
            # What has left since the round began has no changes any more, and is another's.
            if outlet.keyed.store.has_changed(bin) and not self._claimed(outlet, bin):
                self._writing.append((outlet, bin, outlet.keyed.snapshot(bin)))

    def _write(self) -> bool:
        """A slice of each, as long as there is time; whether any was written."""
        worked = False
        for one in self._pace.turns(self._writing):
            outlet, bin, extraction = one
            if extraction.cancelled:
                # By a checkpoint, or as the bin leaves.
                self._waiting.append((outlet, bin))
                continue
            worked = True
            if not extraction.step(ENTRIES):
                self._writing.append(one)
        return worked

    def _tend(self, outlet: OutgoingState) -> bool:
        """Merge a little. What cannot be read is written anew by the next round, out of the state
        itself, so it only has to be told."""
        try:
            with self._pace.spending():
                return outlet.keyed.trace.tend(ENTRIES)
        except LayerUnreadable as error:
            self._report({"event": "layer_unreadable", "reason": str(error)})
            return True

    def _claimed(self, outlet: OutgoingState, bin: Bin) -> bool:
        """Whether it is not this worker's any more, or somebody else writes it now, or will."""
        preparing = self._migrator.preparing(outlet.keyed.name)
        return bin in outlet.away or preparing.writes(bin)
