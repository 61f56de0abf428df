"""How a checkpoint comes to rest: its parts first, then the record that makes it a checkpoint.

Guarantees that the record is written once all parts are durable, so a writer that dies in between
leaves no checkpoint, and parts that no checkpoint names. A checkpoint that fits into one record has
no parts. Cost: one more round trip to the broker for a checkpoint in parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from meander.dataflow.checkpoint.upload import Places, Sending
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.layers.parts import cut
from meander.state.layers.topic import Appendable

Append = Callable[[bytes], Callable[[], int | None]]
"""Begins to write a record, returns its offset once it is durable."""


class Recorded(NamedTuple):
    """A checkpoint that is durable."""

    offset: int
    """Where its record lies."""
    checkpoint: Checkpoint
    """With its parts."""


class Recording:
    """One checkpoint on its way to its topics."""

    def __init__(self, checkpoint: Checkpoint, in_flight: Appendable, append: Append) -> None:
        self._append, self._data = append, checkpoint.to_bytes()
        self._sending = Sending[Checkpoint](in_flight, _lying)
        self._checkpoint = checkpoint
        self._placed: Callable[[], int | None] | None = None
        """Where the record lies, once it is being written."""
        if len(cut(self._data)) == 1:
            self._placed = append(self._data)
        else:
            self._sending.send(checkpoint.key, self._data, checkpoint)

    def recorded(self) -> Recorded | None:
        """Go on as far as may be; return the checkpoint once it is durable."""
        if self._placed is None:
            self._sending.look()
            for whole in self._sending.placed:
                self._checkpoint = whole
                self._placed = self._append(whole.head(self._data))
        offset = None if self._placed is None else self._placed()
        return None if offset is None else Recorded(offset, self._checkpoint)


def _lying(checkpoint: Checkpoint, places: Places) -> Checkpoint:
    return replace(checkpoint, parts=places)
