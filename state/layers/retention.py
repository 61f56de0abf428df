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
    """What one worker has replaced; `forget` lets compaction take records.

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
        """The checkpoint for which this worker has frozen last."""
        self._named = False
        """Whether there may be checkpoints that name what is here."""
        self._written: dict[LayerId, int] = {}
        """Of each layer of its own the first checkpoint that can name it."""
        self._since: list[tuple[int, Sequence[RecordLocation]]] = []
        """What was replaced since this worker has frozen, and the first that can name it."""
        self._replaced: list[tuple[int, int, Sequence[RecordLocation]]] = []
        """What was replaced before that: the first and the last."""

    def welcome(self, number: int) -> None:
        """This worker begins with one, or joins a flow that has taken so many."""
        self._number = max(self._number, number)
        self._named |= number > 0

    def freeze(self, number: int) -> None:
        """This worker freezes for a checkpoint, of a greater number than any there is."""
        self._replaced += [(first, number - 1, places) for first, places in self._since]
        self._since.clear()
        self._number, self._named = number, True

    def keep(self, kept: Sequence[int]) -> None:
        """Of the checkpoints before the last these are kept."""
        for one in self._replaced:
            if not _named(one, kept):
                self._forget(one[2])
        self._replaced = [one for one in self._replaced if _named(one, kept)]

    def written(self, layer: LayerId) -> None:
        """A layer of this worker's is durable."""
        self._written[layer] = self._number

    def left(self, layer: LayerId) -> None:
        """A layer is another worker's from now on."""
        self._written.pop(layer, None)

    def replaced(self, layer: LayerId, places: Sequence[RecordLocation]) -> None:
        """A layer is in no manifest here any more."""
        first = self._written.pop(layer, 0)
        if self._named:
            self._since.append((first, places))
        else:
            self._forget(places)


def _named(one: tuple[int, int, Sequence[RecordLocation]], kept: Sequence[int]) -> bool:
    first, last, _ = one
    return any(first <= number <= last for number in kept)
