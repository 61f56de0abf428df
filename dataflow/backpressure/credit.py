"""Credit: a worker sends on an edge to a peer until its credit is used up (I6).

Each edge and link has a window of bytes. Sent bytes use credit. A receiver returns credit once its
operator has consumed a sixteenth of the window, so the return costs no frame per turn. A worker
without credit keeps its records and their capability. The last message may exceed the window, so a
message larger than the window passes too (I7).

Invariant: used = on the way + consumed and not yet returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from meander.dataflow.graph.graph import EdgeId
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId, member_name

SHARE = 16


class Credit:
    """An account of one worker's credit with each peer, in both directions, and with itself.

    >>> here, there, edge = Credit(160), Credit(160), EdgeId(3)
    >>> here.use(edge, WorkerId(1), 200); here.has_credit(edge, WorkerId(1))
    False
    >>> there.note_consumed(edge, WorkerId(0), 200)
    >>> for _, edge, size in there.pop_due(): here.restore(edge, WorkerId(1), size)
    >>> here.has_credit(edge, WorkerId(1)), here.used(WorkerId(1))
    (True, 0)
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._used: Counter[tuple[WorkerId, EdgeId]] = Counter()
        self._consumed: Counter[tuple[WorkerId, EdgeId]] = Counter()

    def has_credit(self, edge: EdgeId, to: WorkerId) -> bool:
        """Return whether the worker may send to a peer on an edge."""
        return self._used[to, edge] < self._window

    def use(self, edge: EdgeId, to: WorkerId, size: int) -> None:
        """Count bytes sent to a peer."""
        self._used[to, edge] += size

    def restore(self, edge: EdgeId, by: WorkerId, size: int) -> None:
        """Restore credit that a peer has returned. Raises MeanderError for more bytes than the
        worker has sent."""
        self._used[by, edge] -= size
        if self._used[by, edge] < 0:
            raise MeanderError(member_name(by), "it acknowledged more data than it was sent")

    def note_consumed(self, edge: EdgeId, sender: WorkerId, size: int) -> None:
        """Count bytes from a peer that an operator of this worker has consumed."""
        self._consumed[sender, edge] += size

    def pop_due(self) -> Iterator[tuple[WorkerId, EdgeId, int]]:
        """Yield the peers and edges to which credit is due, with the bytes to return."""
        for (sender, edge), size in list(self._consumed.items()):
            if size * SHARE >= self._window:
                del self._consumed[sender, edge]
                yield sender, edge, size

    def used(self, peer: WorkerId) -> int:
        """Return the bytes sent to a peer on all edges without returned credit."""
        return sum(size for (to, _), size in self._used.items() if to == peer)

    def unreturned(self, peer: WorkerId) -> int:
        """Return the bytes consumed from a peer on all edges whose credit is not returned."""
        return sum(size for (sender, _), size in self._consumed.items() if sender == peer)
