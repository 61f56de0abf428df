"""What is on its way from worker to worker, in bytes: each link has a bound (I6).

A receiver says how much data it has taken off a link, a sixteenth of the bound at a time; what a
sender has not been told of counts as unread. Progress is not counted and is never held back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dataflow.bound import Bound
from schemas.errors import MeanderError
from state.ids import WorkerId, member_name

SHARE = 16


class Unread:
    """The account of one worker's links, both ways.

    >>> here, there = Unread(160), Unread(160)
    >>> here.sent(WorkerId(1), 100); there.took(WorkerId(0), 100)
    >>> [here.acknowledged(WorkerId(1), size) for _, size in there.owed()], here.by_peer[1]
    ([None], 0)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.by_peer: Counter[WorkerId] = Counter()
        """Sent, and not yet acknowledged."""
        self.taken: Counter[WorkerId] = Counter()
        """Taken off a link, and not yet acknowledged to the sender."""

    def sent(self, to: WorkerId, size: int) -> None:
        """Count what goes to a peer. Raises MeanderError where too much waits already."""
        self.by_peer[to] += size
        bound = Bound(f"the link to {member_name(to)}", self._most)
        bound.check(self.by_peer[to], "data wait for that worker to take them")

    def acknowledged(self, by: WorkerId, size: int) -> None:
        """A peer has taken some. Raises MeanderError if it never got as much."""
        self.by_peer[by] -= size
        if self.by_peer[by] < 0:
            raise MeanderError(member_name(by), "it acknowledged more data than it was sent")

    def took(self, sender: WorkerId, size: int) -> None:
        """Count what has come from a peer."""
        self.taken[sender] += size

    def owed(self) -> Iterator[tuple[WorkerId, int]]:
        """Whom to tell now how much has been taken."""
        for sender, size in list(self.taken.items()):
            if size * SHARE >= self._most:
                del self.taken[sender]
                yield sender, size
