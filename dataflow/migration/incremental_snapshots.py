"""Incremental snapshots: recent changes of a worker's bins go to the state topic (design 4).

Every `interval` seconds a round starts. It writes one layer for each changed bin, a few bins at a
time, in slices. It merges layers where a bin has too many. Guarantees that it skips bins that
leave, and for one round bins that are prepared to leave. No record waits for a snapshot, and no
guarantee follows from it: it only shortens moves. Between the layers it sweeps expired keys. Cost:
by the changed key; see docs/benchmarks.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

from meander.dataflow.control.reports import BinSizes, LayerUnreadableReport
from meander.dataflow.migration.migrator import Migrator, OutgoingState
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.keyed.expiry import Expiry
from meander.dataflow.operators.keyed.stateful import StatefulOperator
from meander.dataflow.operators.keyed.sweep import Sweep
from meander.dataflow.operators.ports import BaseOperator
from meander.dataflow.records.batch import Int64s
from meander.state.keys.ids import Bin
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.topic import LayerUnreadableError

ENTRIES = 512
"""The entries written or merged per bin and turn."""
AT_ONCE = 4
"""The bins written concurrently, so one is encoded while others become durable."""


class Snapshots(BaseOperator):
    """An operator that writes the incremental snapshots of one worker."""

    def __init__(
        self,
        context: OperatorContext,
        migrator: Migrator,
        outgoing: Sequence[OutgoingState],
        interval: float,
        expiries: Mapping[str, Expiry],
    ) -> None:
        """`expiries` are the times to live of operators whose keys expire."""
        self._migrator, self._outgoing, self._report = migrator, outgoing, context.report
        self._clock, self._interval, self._throttle = context.clock, interval, context.throttle
        self._next = self._clock.monotonic() + interval
        self._sweeps = [
            (one, Sweep(one.keyed, expiries[one.keyed.name]))
            for one in outgoing
            if one.keyed.name in expiries
        ]
        self._heat: dict[str, Int64s] = {}
        self._waiting: deque[tuple[OutgoingState, Bin]] = deque()
        self._writing: deque[tuple[OutgoingState, Bin, LayerWriter]] = deque()

    def schedule(self) -> bool:
        """Start a round when it is due, write a slice, merge a slice, and sweep a slice."""
        self._start_round()
        self._start_writing()
        written = self._write()
        due = (
            outgoing for outgoing in self._outgoing if outgoing.keyed.bin_layers.needs_compaction
        )
        merged = [self._merge(outgoing) for outgoing in due if self._throttle.open]
        swept = [self._sweep(*one) for one in self._sweeps if self._throttle.open]
        return written or any(merged) or any(swept)

    def wait_seconds(self) -> float | None:
        """Return a short time while anything is written, merged or swept, else the time until the
        next round."""
        if self._waiting or self._writing or any(sweep.busy for _, sweep in self._sweeps):
            return 0.001
        return max(0.0, self._next - self._clock.monotonic())

    def _start_round(self) -> None:
        now = self._clock.monotonic()
        if now < self._next or self._waiting or self._writing:
            return
        self._next = now + self._interval
        for outgoing in self._outgoing:
            self._report_bins(outgoing.keyed)
        for outgoing in self._outgoing:
            # The next owner would not have prefetched a layer that is written now.
            reported = self._migrator.pre_copies(outgoing.keyed.name).drain_reported()
            changed = outgoing.keyed.store.changed_bins()
            self._waiting.extend((outgoing, bin) for bin in changed if bin not in reported)

    def _report_bins(self, keyed: StatefulOperator) -> None:
        """Report the sizes of the bins here, and the records of each since the last report."""
        bins, known = keyed.bin_layers.bins, self._heat.get(keyed.name, 0)
        self._heat[keyed.name] = keyed.heat.copy()
        if bins:
            heat = (keyed.heat - known)[bins].tolist()
            sizes = map(keyed.bin_layers.size, bins)
            self._report(BinSizes(keyed.name, list(zip(bins, sizes, heat, strict=True))))

    def _start_writing(self) -> None:
        while self._waiting and len(self._writing) < AT_ONCE:
            outgoing, bin = self._waiting[0]
            if bin in outgoing.keyed.bin_layers.frozen:
                return
            self._waiting.popleft()
            # A bin that left since the start of the round has no changes here any more.
            if outgoing.keyed.store.has_changed(bin) and not self._is_moving(outgoing, bin):
                self._writing.append((outgoing, bin, outgoing.keyed.snapshot_writer(bin)))

    def _write(self) -> bool:
        """Write a slice of each bin while there is time; return whether any was written."""
        worked = False
        for one in self._throttle.pop_waiting(self._writing):
            outgoing, bin, writer = one
            if writer.cancelled:
                # A checkpoint or a move has cancelled it.
                self._waiting.append((outgoing, bin))
                continue
            worked = True
            if not writer.step(ENTRIES):
                self._writing.append(one)
        return worked

    def _merge(self, outgoing: OutgoingState) -> bool:
        """Merge a slice. The next round writes an unreadable layer again from the state, so a
        report is enough."""
        try:
            with self._throttle.measure():
                return outgoing.keyed.bin_layers.compact(ENTRIES)
        except LayerUnreadableError as error:
            self._report(LayerUnreadableReport(str(error)))
            return True

    def _sweep(self, outgoing: OutgoingState, sweep: Sweep) -> bool:
        """Sweep a slice. Return whether there was one."""
        with self._throttle.measure():
            return sweep.step(partial(_is_elsewhere, outgoing))

    def _is_moving(self, outgoing: OutgoingState, bin: Bin) -> bool:
        """Return whether a bin has left, or a pre-copy writes it now or later."""
        pre_copies = self._migrator.pre_copies(outgoing.keyed.name)
        return bin in outgoing.moving_bins or pre_copies.writes(bin)


def _is_elsewhere(outgoing: OutgoingState, bin: Bin) -> bool:
    """Return whether a bin leaves, has left or has not arrived."""
    incoming = outgoing.keyed.incoming
    if bin in outgoing.moving_bins or bin in incoming.prefetched:
        return True
    return any(handoff.manifest.bin == bin for handoff in incoming.handoffs)
