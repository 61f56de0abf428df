"""Decisions on their way: written first, sent once they are durable, in the order they were taken.

Guarantees that nobody hears of a decision that could be forgotten, and that nothing is forsworn
that an unsent decision still needs: `least` is the earliest time of those. Cost: one question to
the journal per turn while any is being written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from meander.dataflow.control.instructions import Revoke
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.state.checkpoint.checkpoint import ReplayFrom
from meander.state.keys.ids import WorkerId


@dataclass(frozen=True, slots=True)
class Begins:
    """A life of the flow begins; `time` is the least not forsworn."""

    time: int
    owners: tuple[WorkerId, ...]
    """Of each bin, group after group."""
    workers: int
    checkpoint: int | None = None
    """Which one it goes on from; None where the flow begins anew."""
    sources: tuple[str, ...] = ()
    """The flow's, by number, as orders and rulings name them; empty where it is not known."""
    groups: tuple[str, ...] = ()
    """Its groups of operators, in the order of `owners`; likewise."""
    anew: tuple[ReplayFrom, ...] = ()
    """From when on results of its sinks come again."""
    retained: int = 3
    """How many of its checkpoints stay."""
    topics: tuple[str, ...] = ()
    """What its sources read, by number; empty where it is not known."""
    oldest: int | None = None
    """Which of its checkpoints there is to go back to at most, as `checkpoint`; savepoints count
    besides."""


@dataclass(frozen=True, slots=True)
class Joins:
    """A worker takes part from now on; `time` is the least not forsworn."""

    worker: WorkerId
    time: int


@dataclass(frozen=True, slots=True)
class LeaveDecision:
    """A worker owns and reads nothing from `time` on, and ends."""

    worker: WorkerId
    time: int


@dataclass(frozen=True, slots=True)
class Takes:
    """A flow that began without checkpoints has its first; `time` is that of its cut."""

    time: int


@dataclass(frozen=True, slots=True)
class Keeps:
    """A checkpoint is a savepoint; `time` is that of its cut."""

    savepoint: str
    """Its name."""
    offset: int
    """Where it lies on the checkpoints topic."""
    time: int


@dataclass(frozen=True, slots=True)
class Drops:
    """There is no savepoint of that name any more."""

    savepoint: str
    time: int = 0


@dataclass(frozen=True, slots=True)
class Obeys:
    """All commands before an offset of the control topic have been dealt with."""

    offset: int
    time: int = 0


Decision = (
    Begins
    | Moves
    | Revoke
    | ReassignPartition
    | Joins
    | LeaveDecision
    | Takes
    | Keeps
    | Drops
    | Obeys
)
Journal = Callable[[Decision], Callable[[], bool]]
"""Begins to write a decision, returns whether it is durable yet."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """A decision that is being written."""

    decision: Decision
    durable: Callable[[], bool]
    send: Callable[[], None]


class PendingDecisions:
    """Those that have not been sent.

    >>> durable, sent = [], []
    >>> decisions = PendingDecisions(lambda decision: lambda: bool(durable))
    >>> decisions.take(Joins(WorkerId(2), 7), lambda: sent.append("joins"))
    >>> decisions.send(), sent, decisions.least
    (None, [], 7)
    >>> durable.append(True); decisions.send(); sent, decisions.least
    (['joins'], None)
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._unsent: deque[Unsent] = deque()

    def take(self, decision: Decision, send: Callable[[], None]) -> None:
        """Begin to write a decision; `send` is called from a later `send` of all."""
        self._unsent.append(Unsent(decision, self._journal(decision), send))

    def send(self) -> None:
        """Send those that have become durable."""
        while self._unsent and self._unsent[0].durable():
            self._unsent.popleft().send()

    @property
    def unsent(self) -> list[Decision]:
        """Those that have not been sent, the first first."""
        return [unsent.decision for unsent in self._unsent]

    @property
    def least(self) -> int | None:
        """The earliest time of those that have not been sent."""
        return min((decision.time for decision in self.unsent), default=None)
