"""Values of a checkpoint on their way to a topic, in order: pieces in flight, and bundles.

Guarantees that `placed` has the values of which all parts are durable, each with its places, and
that after `cancel` nothing of all this stays on the topic. Cost: a look at the oldest per turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from meander.state.layers.parts import keyed
from meander.state.layers.topic import Appendable, RecordLocation, Ticket

T = TypeVar("T")
Places = tuple[RecordLocation, ...]


class Sending(Generic[T]):
    """The values of one kind; `lying` notes in a value where its parts lie."""

    def __init__(self, topic: Appendable, lying: Callable[[T, Places], T]) -> None:
        self._topic, self._lying = topic, lying
        self._tickets: deque[tuple[Ticket, int]] = deque()
        """Of each part that is not known to be durable, and its bytes."""
        self._under_way: deque[tuple[int, T]] = deque()
        """How many parts each value has."""
        self._found: list[RecordLocation] = []
        """Where parts of the oldest value lie."""
        self._places: list[RecordLocation] = []
        """Where all parts of the values in `placed` lie."""
        self.placed: list[T] = []
        """What is durable."""
        self.bytes = 0
        """Bytes of the parts that are not known to be durable."""

    def __len__(self) -> int:
        """How many values are not known to be durable."""
        return len(self._under_way)

    def send(self, key: bytes, payload: bytes, one: T) -> None:
        """Send a value, in parts where it is larger than one."""
        parts = keyed(key, payload)
        for name, part in parts:
            self._tickets.append((self._topic.append(name, part), len(part)))
            self.bytes += len(part)
        self._under_way.append((len(parts), one))

    def look(self) -> bool:
        """Return whether any value has become durable."""
        before = len(self.placed)
        while self._tickets:
            ticket, size = self._tickets[0]
            if (place := self._topic.placed(ticket)) is None:
                break
            self._tickets.popleft()
            self.bytes -= size
            self._found.append(place)
            count, one = self._under_way[0]
            if len(self._found) == count:
                self._under_way.popleft()
                self.placed.append(self._lying(one, tuple(self._found)))
                self._places += self._found
                self._found = []
        return len(self.placed) > before

    def cancel(self) -> None:
        """Have all of them forgotten."""
        for ticket, _ in self._tickets:
            self._topic.abandon(ticket)
        self._topic.forget([*self._places, *self._found])
        for known in (self._tickets, self._under_way, self._found, self._places, self.placed):
            known.clear()
        self.bytes = 0
