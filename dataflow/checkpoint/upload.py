"""Uploads of the values of a checkpoint to a topic, in order: pieces, bundles and checkpoint parts.

Guarantees that `placed` holds the values whose parts are all durable, each with its locations.
Guarantees that nothing stays on the topic after `cancel`. Cost: a check of the oldest part per
turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from meander.state.layers.parts import keyed_parts
from meander.state.layers.topic import Appendable, RecordLocation, Ticket

T = TypeVar("T")
Locations = tuple[RecordLocation, ...]


class Upload(Generic[T]):
    """An upload of values of one kind; `with_locations` adds the locations of its parts to a
    value."""

    def __init__(self, topic: Appendable, with_locations: Callable[[T, Locations], T]) -> None:
        self._topic, self._with_locations = topic, with_locations
        self._tickets: deque[tuple[Ticket, int]] = deque()
        """The ticket and the bytes of each part that is not durable."""
        self._under_way: deque[tuple[int, T]] = deque()
        """The number of parts of each value, and the value."""
        self._found: list[RecordLocation] = []
        """The locations of the durable parts of the oldest value."""
        self._locations: list[RecordLocation] = []
        """The locations of all parts of the values in `placed`."""
        self.placed: list[T] = []
        """The durable values."""
        self.bytes = 0
        """The bytes of the parts that are not durable."""

    def __len__(self) -> int:
        """Return the number of values that are not durable."""
        return len(self._under_way)

    def send(self, key: bytes, payload: bytes, one: T) -> None:
        """Send a value, in parts where it exceeds one record."""
        parts = keyed_parts(key, payload)
        for name, part in parts:
            self._tickets.append((self._topic.append(name, part), len(part)))
            self.bytes += len(part)
        self._under_way.append((len(parts), one))

    def poll(self) -> bool:
        """Return whether any value has become durable."""
        before = len(self.placed)
        while self._tickets:
            ticket, size = self._tickets[0]
            if (place := self._topic.appended(ticket)) is None:
                break
            self._tickets.popleft()
            self.bytes -= size
            self._found.append(place)
            count, one = self._under_way[0]
            if len(self._found) == count:
                self._under_way.popleft()
                self.placed.append(self._with_locations(one, tuple(self._found)))
                self._locations += self._found
                self._found = []
        return len(self.placed) > before

    def cancel(self) -> None:
        """Forget all values."""
        for ticket, _ in self._tickets:
            self._topic.abandon(ticket)
        self._topic.delete([*self._locations, *self._found])
        for known in (self._tickets, self._under_way, self._found, self._locations, self.placed):
            known.clear()
        self.bytes = 0
