"""Which marks no restart needs any more, so that they are read as fast after a week as at first.

Guarantees that a mark is forgotten only once each checkpoint that is kept was begun when all before
a time T was known to be out, where no mark had come to T when the mark lay on its topic already:
then nothing that it tells of is in flight there, and what was ruled with it is in the positions of
sources. Cost: one question per checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meander.dataflow.records.loop_times import outer
from meander.state.times.antichain import Antichain

Ask = Callable[[], Callable[[], int | None]]
"""Begins to ask where the marks end; the answer, once it is there."""


class MarkerRetention:
    """Of one life; `forget` is given an offset before which nothing is needed."""

    def __init__(self, ask: Ask, forget: Callable[[int], None]) -> None:
        self._ask, self._forget = ask, forget
        self._asked: Callable[[], int | None] | None = None
        self._known: tuple[int, int] | None = None
        """Where the marks ended, and T as that was heard."""
        self._unneeded: dict[int, int] = {}
        """By checkpoint: the marks before there are not needed where it is gone on from."""
        self._forgotten = 0

    def begins(self, number: int, out: Iterable[Antichain]) -> None:
        """A checkpoint is begun; what the frontiers `out` have passed is committed, as far as is
        known."""
        if self._known is not None:
            end, before = self._known
            if all(outer(one) >= before for frontier in out for one in frontier):
                self._unneeded[number] = end
        self._asked, self._known = self._ask(), None

    def look(self, time: int) -> None:
        """No mark so far is later than `time`."""
        if self._asked is not None and (end := self._asked()) is not None:
            self._asked, self._known = None, (end, time)

    def kept(self, oldest: int) -> None:
        """Earlier checkpoints are not gone on from any more."""
        end = self._unneeded.get(oldest, 0)
        if end > self._forgotten:
            self._forgotten = end
            self._forget(end)
        self._unneeded = {n: one for n, one in self._unneeded.items() if n >= oldest}


def _unknown() -> None:
    return None


def untrimmed() -> MarkerRetention:
    """Of a flow that has no marks."""
    return MarkerRetention(lambda: _unknown, lambda _: None)
