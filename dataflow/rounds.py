"""Commands under way: the bins of each move in rounds, all of one round at one time.

Guarantees that a bin counts as moved once, when every stateful operator has installed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dataflow.capability import Capability
from dataflow.migrate.command import Migrate
from dataflow.migrate.moves import Moves
from state.ids import Bin, WorkerId


@dataclass(frozen=True, slots=True)
class Part:
    """What one operator has of a bin, installed by its new owner."""

    operator: str
    bin: int
    time: int
    bytes: int
    keys: int


@dataclass(slots=True)
class Transit:
    """A bin on its way to its new owner."""

    source: WorkerId
    awaited: set[str]
    """The operators whose part has not been installed."""
    bytes: int = 0
    keys: int = 0


@dataclass(slots=True)
class Round:
    """Bins that move at one time."""

    moves: Moves
    demand: Capability | None
    begun: float
    sent: bool = False
    decided: bool = False
    awaited: dict[int, Transit] = field(default_factory=dict)
    """The bins that have not moved yet, once it is decided which have to."""

    def install(self, part: Part) -> Transit | None:
        """Take note of a part; its bin, where that has moved with it."""
        transit = self.awaited.get(part.bin)
        if part.time != self.moves.time or transit is None or part.operator not in transit.awaited:
            return None
        transit.awaited.discard(part.operator)
        transit.bytes += part.bytes
        transit.keys += part.keys
        return None if transit.awaited else self.awaited.pop(part.bin)


@dataclass(slots=True)
class Running:
    """A command under way."""

    command: Migrate
    begun: float
    waiting: list[Bin]
    rounds: list[Round] = field(default_factory=list)
    bins: int = 0
    bytes: int = 0
    keys: int = 0

    def count(self, moved: Transit) -> None:
        """One more bin has moved."""
        self.bins += 1
        self.bytes += moved.bytes
        self.keys += moved.keys
