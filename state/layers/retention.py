"""Retention: the choice of layers that no retained checkpoint references and that may be deleted.

Invariant: suppose a layer of this worker became durable after its snapshot m and was replaced
before its snapshot n. Then checkpoints from m on and before n may reference it, and no others. For
a layer of another worker m is unknown, so any checkpoint before n may reference it. Guarantees that
a layer stays while one of these checkpoints is retained. Cost: one entry per layer of this worker,
and one per replaced layer until it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meander.state.keys.ids import LayerId
from meander.state.layers.topic import RecordLocation


class Retention:
    """A retention that records the layers one worker has replaced. `forget` lets compaction delete
    records.

    >>> from meander.state.keys.ids import ExecutionId, WorkerId
    >>> gone: list[int] = []
    >>> retention = Retention(lambda places: gone.extend(place.offset for place in places))
    >>> a, b, c = (LayerId(ExecutionId(1), WorkerId(0), n) for n in range(3))
    >>> retention.replaced(a, [RecordLocation(b"layer", 0, 1, 9)]); gone
    [1]
    >>> retention.freeze(1); retention.replaced(b, [RecordLocation(b"layer", 0, 2, 9)]); gone
    [1]
    >>> retention.freeze(2); retention.keep([1]); retention.written(c); gone
    [1]
    >>> retention.freeze(3); retention.keep([2]); gone
    [1, 2]
    >>> retention.replaced(c, [RecordLocation(b"layer", 0, 3, 9)])
    >>> retention.freeze(4); retention.keep([1, 3]); gone
    [1, 2]
    >>> retention.freeze(5); retention.keep([1, 4]); gone
    [1, 2, 3]
    """

    def __init__(self, forget: Callable[[Sequence[RecordLocation]], None]) -> None:
        self._forget = forget
        self._number = 0
        """The number of this worker's last snapshot."""
        self._named = False
        """Whether any checkpoint may name these layers."""
        self._written: dict[LayerId, int] = {}
        """The first checkpoint that may name each layer of this worker."""
        self._since: list[tuple[int, Sequence[RecordLocation]]] = []
        """The layers replaced since the last snapshot, with the first checkpoint that may name
        each."""
        self._replaced: list[tuple[int, int, Sequence[RecordLocation]]] = []
        """The layers replaced before it, with the first and the last checkpoint that may name
        each."""

    def welcome(self, number: int) -> None:
        """Start from a checkpoint, or join a flow that has taken `number` checkpoints."""
        self._number = max(self._number, number)
        self._named |= number > 0

    def freeze(self, number: int) -> None:
        """Record the snapshot for a checkpoint, whose number exceeds all earlier ones."""
        self._replaced += [(first, number - 1, places) for first, places in self._since]
        self._since.clear()
        self._number, self._named = number, True

    def keep(self, kept: Sequence[int]) -> None:
        """Delete layers that none of the retained checkpoints names. The call lists those before
        the last."""
        for one in self._replaced:
            if not _named(one, kept):
                self._forget(one[2])
        self._replaced = [one for one in self._replaced if _named(one, kept)]

    def written(self, layer: LayerId) -> None:
        """Record a durable layer of this worker."""
        self._written[layer] = self._number

    def left(self, layer: LayerId) -> None:
        """Record that a layer belongs to another worker from now on."""
        self._written.pop(layer, None)

    def replaced(self, layer: LayerId, places: Sequence[RecordLocation]) -> None:
        """Record that no manifest of this worker names a layer any more."""
        first = self._written.pop(layer, 0)
        if self._named:
            self._since.append((first, places))
        else:
            self._forget(places)


def _named(one: tuple[int, int, Sequence[RecordLocation]], kept: Sequence[int]) -> bool:
    first, last, _ = one
    return any(first <= number <= last for number in kept)
