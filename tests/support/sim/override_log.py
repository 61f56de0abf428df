"""What a flow's coordinator hears of the rulings of sources."""

from __future__ import annotations

from meander.dataflow.control.timestamp_overrides import BEHIND_ALL, TimestampOverride
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.wire import ProgressFrame, ProgressUpdate
from meander.state.keys.ids import WorkerId


def reported_overrides(coordinator: Coordinator) -> list[TimestampOverride]:
    """A list that grows with all that it hears from now on, but of partitions' ends."""
    heard: list[TimestampOverride] = []
    progress = coordinator.progress
    take = progress.receive

    def overhear(sender: WorkerId, update: ProgressUpdate) -> None:
        if isinstance(update, ProgressFrame):
            heard.extend(one for one in update.overrides if one.time != BEHIND_ALL)
        take(sender, update)

    progress.receive = overhear  # type: ignore[method-assign]
    return heard
