"""Which layers may leave the state topic: those that no kept checkpoint can name.

Invariant: what was replaced here before this worker froze for checkpoint n is in no checkpoint from
n on, so it may go once all earlier ones are retired. Guarantees that nothing goes before. Cost: one
entry per replaced layer until then; without checkpoints none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from state.topic import Place


class Retention:
    """What one worker has replaced; `forget` lets compaction take records.

    >>> gone: list[int] = []
    >>> retention = Retention(lambda places: gone.extend(place.offset for place in places))
    >>> retention.replaced([Place(b"layer", 0, 1, 9)]); gone
    [1]
    >>> retention.freeze(1); retention.replaced([Place(b"layer", 0, 2, 9)]); gone
    [1]
    >>> retention.freeze(2); retention.keep([1]); gone
    [1]
    >>> retention.freeze(3); retention.keep([2]); gone
    [1, 2]
    """

    def __init__(self, forget: Callable[[Sequence[Place]], None]) -> None:
        self._forget = forget
        self._number = 0
        """The checkpoint for which this worker has frozen last."""
        self._oldest: int | None = None
        """The oldest one that is kept, or about to be."""
        self._replaced: list[tuple[int, Sequence[Place]]] = []

    def welcome(self, number: int) -> None:
        """This worker begins with one, or joins a flow that has taken so many."""
        if number:
            self.freeze(number)

    def freeze(self, number: int) -> None:
        """This worker freezes for a checkpoint."""
        self._number = number
        self._oldest = number if self._oldest is None else self._oldest

    def keep(self, kept: Sequence[int]) -> None:
        """Of the checkpoints before the last these are kept."""
        self._oldest = min(kept, default=self._number)
        gone = [places for until, places in self._replaced if until < self._oldest]
        self._replaced = [one for one in self._replaced if one[0] >= self._oldest]
        for places in gone:
            self._forget(places)

    def replaced(self, places: Sequence[Place]) -> None:
        """A layer is in no manifest here any more."""
        if self._oldest is None:
            self._forget(places)
        else:
            self._replaced.append((self._number, places))
