"""Records of a checkpoint on their way to a topic, in order: pieces in flight, and bundles.

Guarantees that `placed` has those that are durable, each with its place, and that after `cancel`
nothing of all this stays on the topic. Cost: a look at the oldest per turn.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from state.checkpoint import Piece
from state.lacking import Bundle
from state.topic import StateTopic, Ticket

T = TypeVar("T", Piece, Bundle)


class Sending(Generic[T]):
    """Those of one kind."""

    def __init__(self, topic: StateTopic) -> None:
        self._topic = topic
        self._under_way: deque[tuple[Ticket, T]] = deque()
        self.placed: list[T] = []
        """What is durable."""

    def __len__(self) -> int:
        """How many are not known to be durable."""
        return len(self._under_way)

    def send(self, key: bytes, payload: bytes, one: T) -> None:
        """Send a record; where it lies is filled in once it is durable."""
        self._under_way.append((self._topic.append(key, payload), one))

    def look(self) -> bool:
        """Whether any has become durable."""
        before = len(self.placed)
        while self._under_way:
            ticket, one = self._under_way[0]
            if (place := self._topic.placed(ticket)) is None:
                break
            self._under_way.popleft()
            self.placed.append(one._replace(place=place))
        return len(self.placed) > before

    def cancel(self) -> None:
        """Have all of them forgotten."""
        for ticket, _ in self._under_way:
            self._topic.abandon(ticket)
        self._topic.forget([one.place for one in self.placed])
        self._under_way.clear()
        self.placed.clear()
