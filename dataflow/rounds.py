"""Commands under way: the bins of each move in rounds, all of one round at one time."""

from __future__ import annotations

from dataclasses import dataclass, field

from dataflow.capability import Capability
from dataflow.migrate.command import Migrate
from dataflow.migrate.moves import Moves
from state.ids import Bin, WorkerId


@dataclass(slots=True)
class Round:
    """Bins that move at one time."""

    moves: Moves
    demand: Capability | None
    begun: float
    sent: bool = False
    decided: bool = False
    awaited: set[tuple[str, int]] = field(default_factory=set)
    sources: dict[int, WorkerId] = field(default_factory=dict)


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
