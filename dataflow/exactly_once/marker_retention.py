"""Marker retention: it deletes commit markers that no restart needs, so that restarts stay fast.

Guarantees that a marker is deleted only when every retained checkpoint was started after all
results before a time T were committed. The marker already lay on its topic then, and no marker had
reached T. So none of its results is in flight in those checkpoints, and its timestamp overrides are
in their positions. Cost: one query per checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meander.dataflow.records.loop_times import outer_time
from meander.state.times.antichain import Antichain

Ask = Callable[[], Callable[[], int | None]]
"""Starts a query for the end of the markers; the returned function gives the answer once it has
come."""


class MarkerRetention:
    """A retention of the commit markers of one execution; `forget` deletes those before an
    offset."""

    def __init__(self, ask: Ask, forget: Callable[[int], None]) -> None:
        self._ask, self._forget = ask, forget
        self._asked: Callable[[], int | None] | None = None
        self._known: tuple[int, int] | None = None
        """The end of the markers, and T when the answer came."""
        self._unneeded: dict[int, int] = {}
        """By checkpoint, the offset before which a restart from it needs no markers."""
        self._forgotten = 0

    def start_checkpoint(self, number: int, sinks: Iterable[Antichain]) -> None:
        """Note the start of a checkpoint; the sinks have committed what their frontiers have
        passed."""
        if self._known is not None:
            end, before = self._known
            if all(outer_time(one) >= before for frontier in sinks for one in frontier):
                self._unneeded[number] = end
        self._asked, self._known = self._ask(), None

    def poll(self, time: int) -> None:
        """Handle the answer to a query; no marker so far is later than `time`."""
        if self._asked is not None and (end := self._asked()) is not None:
            self._asked, self._known = None, (end, time)

    def retain_from(self, oldest: int) -> None:
        """Delete markers that only earlier checkpoints need."""
        end = self._unneeded.get(oldest, 0)
        if end > self._forgotten:
            self._forgotten = end
            self._forget(end)
        self._unneeded = {n: one for n, one in self._unneeded.items() if n >= oldest}


def _unknown() -> None:
    return None


def without_markers() -> MarkerRetention:
    """Return the retention of a flow without markers."""
    return MarkerRetention(lambda: _unknown, lambda _: None)
