"""The record writer of a checkpoint writes its parts first, then the record that completes it.

Guarantees that the record is written once all parts are durable. A writer that dies before that
leaves no checkpoint, only orphaned parts. A checkpoint that fits into one record has no parts.
Cost: one more round trip to the broker for a checkpoint in parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from meander.dataflow.checkpoint.upload import Locations, Upload
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.layers.parts import split
from meander.state.layers.topic import Appendable

Append = Callable[[bytes], Callable[[], int | None]]
"""Starts to write a record; the returned function gives its offset once it is durable."""


class Recorded(NamedTuple):
    """A durable checkpoint."""

    offset: int
    """The offset of its record."""
    checkpoint: Checkpoint
    """The checkpoint with its parts."""


class RecordWriter:
    """A record writer for one checkpoint on its topics."""

    def __init__(self, checkpoint: Checkpoint, in_flight: Appendable, append: Append) -> None:
        self._append, self._data = append, checkpoint.to_bytes()
        self._upload = Upload[Checkpoint](in_flight, _with_locations)
        self._checkpoint = checkpoint
        self._placed: Callable[[], int | None] | None = None
        """Returns the offset of the record; None before it is being written."""
        if len(split(self._data)) == 1:
            self._placed = append(self._data)
        else:
            self._upload.send(checkpoint.key, self._data, checkpoint)

    def recorded(self) -> Recorded | None:
        """Advance the writing; return the checkpoint once it is durable."""
        if self._placed is None:
            self._upload.poll()
            for whole in self._upload.placed:
                self._checkpoint = whole
                self._placed = self._append(whole.header(self._data))
        offset = None if self._placed is None else self._placed()
        return None if offset is None else Recorded(offset, self._checkpoint)


def _with_locations(checkpoint: Checkpoint, locations: Locations) -> Checkpoint:
    return replace(checkpoint, parts=locations)
