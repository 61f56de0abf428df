"""How much a worker has read that its flow's sinks have not passed yet (I6).

A source stops reading when the bytes read but not yet passed by the sinks' probe exceed the bound.
A partition that alone holds back the flow's frontier may go on up to twice the bound, as nothing
drains without it. Cost: one entry per chunk read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dataflow.histogram import Histogram
from dataflow.protocols import Partition, SourceReader
from state.antichain import Antichain


@dataclass(frozen=True, slots=True)
class Sent:
    """A chunk whose records have all been sent: the time of the last, and what passing frees."""

    time: int
    size: int
    reader: SourceReader
    partition: Partition
    next_offset: int
    read_at: float
    delays: Histogram
    """Takes how long it was from `read_at` to its passing."""


class Inflight:
    """The bytes in flight of all sources of one worker."""

    def __init__(self, bound: int, passed: Callable[[float], None]) -> None:
        """`passed` is told when records were read that all sinks have passed."""
        self._bound, self._told = bound, passed
        self.bytes = 0
        """Of what has been read and not passed."""
        self.unpassed = 0
        """Of what of this has been sent: chunks of which all has."""
        self._sent: dict[tuple[int, Partition], deque[Sent]] = {}

    @property
    def full(self) -> bool:
        """Whether reading has to stop."""
        return self.bytes >= self._bound

    @property
    def overfull(self) -> bool:
        """Whether even the partition that holds back all others has to stop."""
        return self.bytes >= 2 * self._bound

    def read(self, size: int) -> None:
        """Count what has been read."""
        self.bytes += size

    def unread(self, size: int) -> None:
        """What has been read will not be sent: somebody else reads it again."""
        self.bytes -= size

    def sent(self, sent: Sent) -> None:
        """Note what will be free once the sinks have passed its time."""
        key = (id(sent.reader), sent.partition)
        self._sent.setdefault(key, deque()).append(sent)
        self.unpassed += sent.size

    def settle(self, passed: Antichain, now: float) -> None:
        """Free what the sinks' frontier has passed."""
        for queue in self._sent.values():
            last: Sent | None = None
            while queue and not passed.less_equal(queue[0].time):
                last = queue.popleft()
                self.bytes -= last.size
                self.unpassed -= last.size
                last.delays.observe(now - last.read_at)
                self._told(last.read_at)
            if last is not None:
                last.reader.passed(last.partition, last.next_offset)
