"""The topic directory: the partitions of the topics to which a worker writes.

Guarantees that a topic, or a partition, that comes while the flow runs is found within seconds of
its first use. Cost: a request for a topic at its first use; later one every few seconds while
records name a topic or partition that does not exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable

ASK_INTERVAL = 5.0
"""The seconds between two questions about a topic that lacks a partition."""


class TopicDirectory:
    """A directory that asks a cluster for the number of partitions of a topic; 0 where it does not
    exist.

    >>> directory = TopicDirectory({"a": 2}.get)
    >>> directory.has("a", 1), directory.has("a", 2), directory.has("b")
    (True, False, False)
    """

    def __init__(self, ask: Callable[[str], int | None]) -> None:
        self._ask = ask
        self._known: dict[str, int] = {}
        self._asked: dict[str, float] = {}

    def has(self, topic: str, partition: int = 0) -> bool:
        """Return whether a topic has a partition, as far as is known."""
        if partition < self._known.get(topic, 0):
            return True
        now = time.monotonic()
        if now - self._asked.get(topic, -ASK_INTERVAL) >= ASK_INTERVAL:
            self._asked[topic] = now
            self._known[topic] = self._ask(topic) or 0
        return partition < self._known.get(topic, 0)

    def partitions(self, topic: str) -> int:
        """Return the number of partitions that the last answer named."""
        return self._known.get(topic, 0)
