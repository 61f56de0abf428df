"""The pending decisions: the coordinator writes a decision first, and sends it once it is durable.

Guarantees that no worker receives a decision that a failure could lose, and that decisions keep
their order. Guarantees that no time of an unsent decision is closed: `least` is the earliest such
time. Cost: one check per turn while decisions are pending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from meander.dataflow.control.instructions import Revoke
from meander.dataflow.control.logic_change import LogicChange
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.resources import Resources
from meander.state.checkpoint.checkpoint import ReplayFrom
from meander.state.keys.ids import ExecutionId, WorkerId


@dataclass(frozen=True, slots=True)
class StartDecision:
    """A decision that starts an execution of the flow. `time` is the least time that is not
    closed."""

    time: int
    owners: tuple[WorkerId, ...]
    """The owner of each bin, group after group."""
    workers: int
    checkpoint: int | None = None
    """The checkpoint that the execution starts from. None for a new start."""
    sources: tuple[str, ...] = ()
    """The names of the sources, by the number that partition moves and timestamp overrides use.
    Empty where unknown."""
    groups: tuple[str, ...] = ()
    """The colocation groups in the order of `owners`. Empty where unknown."""
    replay_from: tuple[ReplayFrom, ...] = ()
    """The replay start of each worker whose sinks write results again."""
    retained: int = 3
    """The number of retained checkpoints."""
    topics: tuple[str, ...] = ()
    """The topics of its sources by number. Empty where unknown."""
    oldest: int | None = None
    """The oldest checkpoint that a restart may use, besides savepoints, numbered as `checkpoint`
    is."""


@dataclass(frozen=True, slots=True)
class JoinDecision:
    """A decision that adds a worker. `time` is the least time that is not closed."""

    worker: WorkerId
    time: int


@dataclass(frozen=True, slots=True)
class LeaveDecision:
    """A decision that removes a worker. The worker owns and reads nothing from `time` on."""

    worker: WorkerId
    time: int


@dataclass(frozen=True, slots=True)
class FirstCheckpointDecision:
    """A decision that records the first checkpoint of a flow that started without any. `time` is
    that of its cut."""

    time: int


@dataclass(frozen=True, slots=True)
class SavepointDecision:
    """A decision that makes a checkpoint a savepoint. `time` is that of its cut."""

    savepoint: str
    """The name of the savepoint."""
    offset: int
    """Its offset on the checkpoints topic."""
    time: int


@dataclass(frozen=True, slots=True)
class DropDecision:
    """A decision that drops the savepoint of a name."""

    savepoint: str
    time: int = 0


@dataclass(frozen=True, slots=True)
class LogicDecision:
    """A decision that replaces the logic of operators. One record holds all changes of a command,
    so none of them holds alone."""

    changes: tuple[LogicChange, ...]
    """The changes, which have one time."""

    @property
    def time(self) -> int:
        """The time from which on they hold."""
        return self.changes[0].time

    @property
    def by_start(self) -> bool:
        """Whether the start of an execution has made the changes, and no command."""
        return not self.changes[0].command


@dataclass(frozen=True, slots=True)
class WorkersPlan:
    """What a decision makes of the workers: who owns and reads what, and who runs where.

    A restart continues with it, so it never finds a part of the decision.
    """

    members: tuple[WorkerId, ...]
    """The workers that remain, in ascending order."""
    owners: tuple[WorkerId, ...]
    """The owner of each bin, group after group."""
    readers: Mapping[tuple[str, int], WorkerId]
    """The reader of each partition, given by the name of its source and its number."""
    resources: Mapping[WorkerId, Resources]

    @property
    def ranks(self) -> dict[WorkerId, WorkerId]:
        """The worker of a restart that takes the place of each member."""
        return ranks_of(self.members)


def ranks_of(members: Iterable[WorkerId]) -> dict[WorkerId, WorkerId]:
    """Return the worker of a restart that takes the place of each member, given in order: the n-th
    takes that of the n-th.

    >>> ranks_of([WorkerId(1), WorkerId(4)])
    {1: 0, 4: 1}
    """
    return {member: WorkerId(rank) for rank, member in enumerate(members)}


UNKNOWN_EXECUTION: Final = ExecutionId(0)
Part = Moves | LogicDecision | ReassignPartition
"""A decision that can be a part of another."""


@dataclass(frozen=True, slots=True)
class JointDecision:
    """A decision of several parts that hold together from one time on. One record holds it."""

    id: str
    """The id of the command."""
    offset: int
    """The offset of the command on the control topic."""
    plan: WorkersPlan
    parts: tuple[Part, ...] = ()
    time: int = 0
    execution: ExecutionId = UNKNOWN_EXECUTION
    """The execution that has decided it, where it was read from the decision log."""


@dataclass(frozen=True, slots=True)
class CommandsDoneDecision:
    """A decision that records which commands of the control topic are done.

    >>> done = CommandsDoneDecision(4).with_done({5, 6})
    >>> done
    CommandsDoneDecision(offset=7, pending=(4,), time=0)
    >>> [done.covers(offset) for offset in (3, 4, 5, 7)], done.first
    ([True, False, True, False], 4)
    """

    offset: int
    """All commands before this offset are done, except the pending ones."""
    pending: tuple[int, ...] = ()
    """The offsets before it whose commands are not done, in order."""
    time: int = 0

    @property
    def first(self) -> int:
        """The least offset of a command that is not done."""
        return min(self.pending, default=self.offset)

    def covers(self, offset: int) -> bool:
        """Return whether the command at an offset is done."""
        return offset < self.offset and offset not in self.pending

    def with_done(self, done: Collection[int]) -> CommandsDoneDecision:
        """Return the decision where further commands are done."""
        end = max([self.offset, *(offset + 1 for offset in done)])
        open = (*self.pending, *range(self.offset, end))
        return CommandsDoneDecision(end, tuple(offset for offset in open if offset not in done))


Decision = (
    StartDecision
    | Moves
    | Revoke
    | LogicDecision
    | ReassignPartition
    | JointDecision
    | JoinDecision
    | LeaveDecision
    | FirstCheckpointDecision
    | SavepointDecision
    | DropDecision
    | CommandsDoneDecision
)


def with_parts(decision: Decision) -> Iterator[Decision]:
    """Yield a decision, and behind it its parts."""
    yield decision
    if isinstance(decision, JointDecision):
        yield from decision.parts


WriteDecision = Callable[[Decision], Callable[[], bool]]
"""Starts to write a decision, and returns a function that tells whether it is durable."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """A decision that is not yet durable, or not yet sent."""

    decision: Decision
    durable: Callable[[], bool]
    send: Callable[[], None]


class PendingDecisions:
    """A queue that holds decisions until they are durable and sent.

    >>> durable, sent = [], []
    >>> decisions = PendingDecisions(lambda decision: lambda: bool(durable))
    >>> decisions.add(JoinDecision(WorkerId(2), 7), lambda: sent.append("join"))
    >>> decisions.send(), sent, decisions.least
    (None, [], 7)
    >>> durable.append(True); decisions.send(); sent, decisions.least
    (['join'], None)
    """

    def __init__(self, write: WriteDecision) -> None:
        self._write = write
        self._unsent: deque[Unsent] = deque()
        self._parts: list[tuple[Part, Callable[[], None]]] | None = None
        """The parts of a joint decision, while a caller adds them."""

    def add(self, decision: Decision, send: Callable[[], None]) -> None:
        """Start to write a decision. A later `send` of the queue calls the given `send`."""
        if self._parts is not None:
            assert isinstance(decision, Part), "only some decisions can be parts of others"
            self._parts.append((decision, send))
        else:
            self._unsent.append(Unsent(decision, self._write(decision), send))

    @contextmanager
    def together(self, decision: JointDecision) -> Iterator[None]:
        """Make the decisions that the block adds the parts of one decision."""
        self._parts = parts = list[tuple[Part, Callable[[], None]]]()
        yield
        self._parts = None

        def send() -> None:
            for _, send_part in parts:
                send_part()

        self.add(replace(decision, parts=tuple(part for part, _ in parts)), send)

    def send(self) -> None:
        """Send the decisions that have become durable."""
        while self._unsent and self._unsent[0].durable():
            self._unsent.popleft().send()

    @property
    def unsent(self) -> list[Decision]:
        """Return the decisions that have not been sent, oldest first, and the parts of each."""
        return [one for unsent in self._unsent for one in with_parts(unsent.decision)]

    @property
    def least(self) -> int | None:
        """Return the earliest time of unsent decisions, or None."""
        return min((decision.time for decision in self.unsent), default=None)
