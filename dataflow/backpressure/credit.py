"""Credit: a worker sends on an edge to a peer until its credit is used up (I6).

Each edge and link has a window of bytes. Sent bytes use credit. A receiver returns credit once its
operator has taken a sixteenth of the window, so the return costs no frame per turn. A worker
without credit keeps its records and their capability. The last message may exceed the window, so a
message larger than the window passes too (I7).

Invariant: used = on the way + taken and not yet returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from meander.dataflow.graph.graph import EdgeId
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId, member_name

SHARE = 16


class Credit:
    """An account that holds one worker's credit with each peer, in both directions, and with
    itself.

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
        """Return whether the worker may send more."""
        return self._used[to, edge] < self._window

    def use(self, edge: EdgeId, to: WorkerId, size: int) -> None:
        """Count bytes that are sent to a peer."""
        self._used[to, edge] += size

    def regain(self, edge: EdgeId, by: WorkerId, size: int) -> None:
        """Count bytes that a peer's operator has taken. Raises MeanderError for more bytes than it
        was sent."""
        self._used[by, edge] -= size
        if self._used[by, edge] < 0:
            raise MeanderError(member_name(by), "it acknowledged more data than it was sent")

    def took(self, edge: EdgeId, sender: WorkerId, size: int) -> None:
        """Count bytes from a peer that an operator here has taken from its input."""
        self._taken[sender, edge] += size

    def owed(self) -> Iterator[tuple[WorkerId, EdgeId, int]]:
        """Yield the peers and edges whose credit is due, with the bytes to return."""
        for (sender, edge), size in list(self._taken.items()):
            if size * SHARE >= self._window:
                del self._taken[sender, edge]
                yield sender, edge, size

    def used(self, peer: WorkerId) -> int:
        """Return the bytes sent to a peer on all edges that it has not returned."""
        return sum(size for (to, _), size in self._used.items() if to == peer)

    def kept(self, peer: WorkerId) -> int:
        """Return the bytes from a peer on all edges that are taken and not yet returned."""
        return sum(size for (sender, _), size in self._taken.items() if sender == peer)
