"""Retention: the choice of layers that no retained checkpoint references and that may be deleted.

Invariant: suppose a layer of this worker became durable after its snapshot m and was replaced
before its snapshot n. Then checkpoints from m on and before n may reference it, and no others. For
a layer of another worker m is unknown, so any checkpoint before n may reference it. Guarantees that
a layer remains while one of these checkpoints is retained. Cost: one entry per layer of this
worker, and one per replaced layer until it is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meander.state.keys.ids import LayerId
from meander.state.layers.topic import RecordLocation


class Retention:
    """A retention that records the layers one worker has replaced. `delete` lets compaction delete
    records.

    >>> from meander.state.keys.ids import ExecutionId, WorkerId
    >>> deleted: list[int] = []
    >>> retention = Retention(lambda places: deleted.extend(place.offset for place in places))
    >>> a, b, c = (LayerId(ExecutionId(1), WorkerId(0), n) for n in range(3))
    >>> at_1, at_2, at_3 = ([RecordLocation(b"layer", 0, offset, 9)] for offset in (1, 2, 3))
    >>> retention.replace(a, at_1); deleted
    [1]
    >>> retention.record_snapshot(1); retention.replace(b, at_2); deleted
    [1]
    >>> retention.record_snapshot(2); retention.retain([1]); retention.record_durable(c); deleted
    [1]
    >>> retention.record_snapshot(3); retention.retain([2]); deleted
    [1, 2]
    >>> retention.replace(c, at_3)
    >>> retention.record_snapshot(4); retention.retain([1, 3]); deleted
    [1, 2]
    >>> retention.record_snapshot(5); retention.retain([1, 4]); deleted
    [1, 2, 3]
    """

    def __init__(self, delete: Callable[[Sequence[RecordLocation]], None]) -> None:
        self._delete = delete
        self._number = 0
        """The number of this worker's last snapshot."""
        self._referenced = False
        """Whether any checkpoint may name these layers."""
        self._durable: dict[LayerId, int] = {}
        """The first checkpoint that may name each layer of this worker."""
        self._since: list[tuple[int, Sequence[RecordLocation]]] = []
        """The layers replaced since the last snapshot, with the first checkpoint that may name
        each."""
        self._replaced: list[tuple[int, int, Sequence[RecordLocation]]] = []
        """The layers replaced before it, with the first and the last checkpoint that may name
        each."""

    def start_after(self, number: int) -> None:
        """Start from a checkpoint, or join a flow that has taken `number` checkpoints."""
        self._number = max(self._number, number)
        self._referenced |= number > 0

    def record_snapshot(self, number: int) -> None:
        """Record the snapshot for a checkpoint, whose number exceeds all earlier numbers."""
        self._replaced += [(first, number - 1, locations) for first, locations in self._since]
        self._since.clear()
        self._number, self._referenced = number, True

    def retain(self, retained: Sequence[int]) -> None:
        """Delete layers that no retained checkpoint names, by the numbers of all retained
        checkpoints before the last."""
        for one in self._replaced:
            if not _is_referenced(one, retained):
                self._delete(one[2])
        self._replaced = [one for one in self._replaced if _is_referenced(one, retained)]

    def record_durable(self, layer: LayerId) -> None:
        """Record a durable layer of this worker."""
        self._durable[layer] = self._number

    def release(self, layer: LayerId) -> None:
        """Record that a layer belongs to another worker from now on."""
        self._durable.pop(layer, None)

    def replace(self, layer: LayerId, locations: Sequence[RecordLocation]) -> None:
        """Record that no manifest of this worker names a layer any more."""
        first = self._durable.pop(layer, 0)
        if self._referenced:
            self._since.append((first, locations))
        else:
            self._delete(locations)


def _is_referenced(one: tuple[int, int, Sequence[RecordLocation]], retained: Sequence[int]) -> bool:
    first, last, _ = one
    return any(first <= number <= last for number in retained)
