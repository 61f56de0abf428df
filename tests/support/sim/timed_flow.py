"""A flow whose partitions' times a test watches."""

from __future__ import annotations

from meander import Flow
from meander.dataflow.control.timestamp_overrides import NO_OVERRIDES, OverrideHistory
from meander.dataflow.interfaces import SourceOptions
from meander.state.times.time import from_millis
from tests.support.sim.manual_flow import ManualFlow, ManualSink, ManualSource, lane_times
from tests.support.sim.override_log import reported_overrides
from tests.support.sim.start import Start

IDLE = 0.002


def at(ms: int, sequence: int = 0) -> int:
    return from_millis(ms, sequence)


class TimedFlow:
    """A flow whose records are shown as they leave the source, and again after a fold on one key,
    where they wait for the flow's time."""

    def __init__(
        self,
        start: Start,
        partitions: int = 1,
        workers: int = 1,
        options: SourceOptions | None = None,
        waits: bool = True,
        control_lead: float = 0.0,
        past: OverrideHistory = NO_OVERRIDES,
        record_size: int = 100,
    ) -> None:
        self.source = ManualSource(partitions, options, record_size)
        self.raw, self.folded = ManualSink(), ManualSink()
        flow = Flow("f", bins=1, control_lead=control_lead)
        stream = flow.source(self.source)
        stream.sink(self.raw, "raw")
        if waits:
            stream.key_by(lambda v: 0).fold("n", lambda: 0, pass_on).sink(self.folded, "folded")
        self.run: ManualFlow = start(flow, workers, past=past)
        self.rulings = reported_overrides(self.run.sim.coordinator)
        for feed in self.source.feeds:
            feed.busy = True
        self.run.run_until_idle()

    def idle(self, *partitions: int) -> None:
        for partition in partitions:
            self.source.feeds[partition].busy = False

    def give(self, partition: int, *records: tuple[int, object]) -> None:
        self.source.give(partition, *records)
        self.run.run_until_idle()

    def times(self) -> list[int]:
        """The logical times of the records in the order of their partition and offset."""
        ordered = sorted(self.raw.results, key=lambda r: (r.partition, r.offset))
        return [result.time for result in ordered]

    @property
    def lanes(self) -> dict[int, int]:
        return lane_times(self.run)


def pass_on(n: int, value: object) -> tuple[int, object]:
    return n + 1, value
