"""Decisions on their way: written first, sent once they are durable, in the order they were taken.

Guarantees that nobody hears of a decision that could be forgotten, and that nothing is forsworn
that an unsent decision still needs: `least` is the earliest time of those. What sources rule is in
effect already when it is heard here; it is written in the order in which it was. Cost: one question
to the journal per turn while any is being written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dataflow.migrate.instructions import Revoke
from dataflow.migrate.moves import Moves
from dataflow.migrate.parcels import Order
from dataflow.protocols import Clock
from dataflow.rulings import Ruling, Rulings
from state.ids import WorkerId


@dataclass(frozen=True, slots=True)
class Begins:
    """A life of the flow begins; `time` is the least not forsworn."""

    time: int
    owners: tuple[WorkerId, ...]
    """Of each bin, group after group."""
    workers: int


@dataclass(frozen=True, slots=True)
class Joins:
    """A worker takes part from now on; `time` is the least not forsworn."""

    worker: WorkerId
    time: int


@dataclass(frozen=True, slots=True)
class Leaves:
    """A worker owns and reads nothing from `time` on, and ends."""

    worker: WorkerId
    time: int


@dataclass(frozen=True, slots=True)
class Ruled:
    """Sources have ruled."""

    rulings: tuple[Ruling, ...]

    @property
    def time(self) -> int:
        """The earliest time in them."""
        return min(ruling.time for ruling in self.rulings)


Decision = Begins | Moves | Revoke | Order | Joins | Leaves | Ruled
Journal = Callable[[Decision], Callable[[], bool]]
"""Begins to write a decision, returns whether it is durable yet."""


def rulings_of(journal: Iterable[Decision]) -> list[Ruling]:
    """What a journal says of records' times: a new partition began just past its order.

    >>> from dataflow.protocols import Partition
    >>> order = Order(0, Partition(3), 7, WorkerId(1), offset=0)
    >>> rulings_of([Joins(WorkerId(2), 7), order, Ruled((Ruling(0, Partition(3), 4, 9),))])[0].time
    8
    """
    rulings: list[Ruling] = []
    for decision in journal:
        match decision:
            case Ruled(ruled):
                rulings.extend(ruled)
            case Order(source, partition, offset=int(offset)):
                rulings.append(Ruling(source, partition, offset, decision.begins))
    return rulings


EVERY = 0.02
"""Seconds between two writings of what sources rule, at least."""
MOST = 5_000
"""Rulings that are written at once: a topic's records are bounded."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """A decision that is being written."""

    decision: Decision
    durable: Callable[[], bool]
    send: Callable[[], None]


class Decisions:
    """Those that have not been sent.

    >>> durable, sent = [], []
    >>> decisions = Decisions(lambda decision: lambda: bool(durable))
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


class Recorder:
    """Writes what sources rule: one write at a time, of all that was heard meanwhile.

    Rulings are many and small, so those of some milliseconds go together.
    """

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal, self._clock = journal, clock
        self._heard = Rulings()
        self._written: Callable[[], bool] | None = None
        self._next = clock.monotonic()

    def hear(self, rulings: Iterable[Ruling]) -> None:
        """To be written by one of the next calls of `write`."""
        self._heard.add(rulings)

    def write(self, over: bool) -> None:
        """Begin to write what has been heard, where nothing is being written; once the flow is over
        without delay."""
        if self._written is not None and self._written():
            self._written = None
        now = self._clock.monotonic()
        if self._heard and self._written is None and (over or now >= self._next):
            self._written = self._journal(Ruled(self._heard.take(MOST)))
            self._next = now + EVERY

    @property
    def done(self) -> bool:
        """Whether all that has been heard is durable."""
        return self._written is None and not self._heard
