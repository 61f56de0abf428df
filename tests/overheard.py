"""What a flow's coordinator hears of the rulings of sources."""

from __future__ import annotations

from dataflow.controller import Controller
from dataflow.rulings import BEHIND_ALL, Ruling
from dataflow.wire import ProgressFrame, ProgressUpdate
from state.ids import WorkerId


def overheard(controller: Controller) -> list[Ruling]:
    """A list that grows with all that it hears from now on, but of partitions' ends."""
    heard: list[Ruling] = []
    progress = controller._progress
    take = progress.take

    def overhear(sender: WorkerId, update: ProgressUpdate) -> None:
        if isinstance(update, ProgressFrame):
            heard.extend(one for one in update.rulings if one.time != BEHIND_ALL)
        take(sender, update)

    progress.take = overhear  # type: ignore[method-assign]
    return heard
