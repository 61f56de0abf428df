"""Credit: how much a worker may send on an edge to a peer before the peer has taken it (I6).

Each edge and link has a window of bytes. What is sent uses it up; a receiver gives back what its
operator has taken off its input, a sixteenth of the window at a time, so that the account costs no
frame per turn. Whoever has none left keeps what it would send, and with it the capability. A
message is one piece: the last that the window covers in part may go beyond it, so one that is
larger than the window passes too (I7). Invariant: used = on the way + taken and not yet given back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from meander.dataflow.graph.graph import EdgeId
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId, member_name

SHARE = 16


class Credit:
    """One worker's account with each peer, both ways, and with itself.

    >>> here, there, edge = Credit(160), Credit(160), EdgeId(3)
    >>> here.use(edge, WorkerId(1), 200); here.left(edge, WorkerId(1))
    False
    >>> there.took(edge, WorkerId(0), 200)
    >>> for _, edge, size in there.owed(): here.regain(edge, WorkerId(1), size)
    >>> here.left(edge, WorkerId(1)), here.used(WorkerId(1))
    (True, 0)
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._used: Counter[tuple[WorkerId, EdgeId]] = Counter()
        self._taken: Counter[tuple[WorkerId, EdgeId]] = Counter()

    def left(self, edge: EdgeId, to: WorkerId) -> bool:
        """Whether more may be sent."""
        return self._used[to, edge] < self._window

    def use(self, edge: EdgeId, to: WorkerId, size: int) -> None:
        """Count what is sent to a peer."""
        self._used[to, edge] += size

    def regain(self, edge: EdgeId, by: WorkerId, size: int) -> None:
        """A peer's operator has taken some. Raises MeanderError if it never got as much."""
        self._used[by, edge] -= size
        if self._used[by, edge] < 0:
            raise MeanderError(member_name(by), "it acknowledged more data than it was sent")

    def took(self, edge: EdgeId, sender: WorkerId, size: int) -> None:
        """Count what an operator here has taken off its input, of what a peer sent."""
        self._taken[sender, edge] += size

    def owed(self) -> Iterator[tuple[WorkerId, EdgeId, int]]:
        """Whom to give back credit now, and how much."""
        for (sender, edge), size in list(self._taken.items()):
            if size * SHARE >= self._window:
                del self._taken[sender, edge]
                yield sender, edge, size

    def used(self, peer: WorkerId) -> int:
        """Bytes sent to a peer, on all edges, that it has not given back."""
        return sum(size for (to, _), size in self._used.items() if to == peer)

    def kept(self, peer: WorkerId) -> int:
        """Bytes taken of what a peer sent, on all edges, that have not been given back to it."""
        return sum(size for (sender, _), size in self._taken.items() if sender == peer)
