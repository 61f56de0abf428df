"""Checkpoints that there are to go on from: the newest of a flow, and those that users have named.

A savepoint is a checkpoint whose place the journal tells, by its name. It is told once the record
is durable, so that each start knows of all in the time in which it reads the journal; what an
earlier life tells or takes behind that with which a later one has begun counts for nobody. The
journal also tells that there are checkpoints at all, so that a flow which has lost them does not
begin anew unasked. Cost: one read per checkpoint that is asked for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meander.connectors.topics.checkpoints import CheckpointsReader, CheckpointUnreadable
from meander.dataflow.checkpoint.recording import Recorded
from meander.dataflow.control.decisions import Begins, Drops, Journal, Keeps, Takes
from meander.dataflow.exactly_once.commit_history import Written, effective
from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.checkpoint import BEGINNING, Checkpoint
from meander.state.keys.ids import ExecutionId
from meander.state.layers.topic import RecordLocation

log = LineLogger(__name__)

NOWHERE = -1
"""Before all offsets."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a flow's journal says of its checkpoints."""

    last: ExecutionId | None
    """The life that has begun last."""
    begun: Begins | None
    """How it has."""
    savepoints: dict[str, int]
    """Their offsets, by name."""
    checkpointed: bool
    """Whether there has been a checkpoint, in whichever life."""
    counting: dict[ExecutionId, int]
    """The last offset at which one of an earlier life counts."""
    own: bool
    """Whether the flow itself has taken one: states that were written for it are past then."""

    @property
    def began_with(self) -> int | None:
        """The offset of the checkpoint with which it has."""
        return None if self.begun is None else self.begun.checkpoint

    @property
    def oldest(self) -> float:
        """The least offset at which one of an earlier life counts."""
        oldest = None if self.begun is None else self.begun.oldest
        return math.inf if oldest is None else oldest

    @property
    def retained(self) -> int:
        """How many of the newest there are."""
        return Begins(0, (), 0).retained if self.begun is None else self.begun.retained

    @staticmethod
    def by(decided: Iterable[Written]) -> Known:
        """Read it.

        >>> life = ExecutionId(5)
        >>> journal = [(life, Begins(0, (), 1, 2)), (life, Keeps("a", 3, 0))]
        >>> journal.append((life, Keeps("b", 4, 0)))
        >>> Known.by([*journal, (ExecutionId(9), Drops("a")), (ExecutionId(1), Keeps("c", 5, 0))])
        Known(last=5, begun=..., savepoints={'b': 4}, checkpointed=True, counting={}, own=True)
        """
        last, begun, savepoints, checkpointed = None, None, dict[str, int](), False
        counting, own = dict[ExecutionId, int](), False
        for life, one in effective(decided):
            taken = isinstance(one, Takes | Keeps)
            checkpointed |= taken
            own |= taken and life == last
            match one:
                case Begins(checkpoint=None):
                    last, begun = life, one
                    # What an earlier life has kept lies on a topic that is no more.
                    savepoints.clear()
                    counting.clear()
                case Begins(checkpoint=int(offset)):
                    _go_on_from(offset, last, counting)
                    last, begun, checkpointed, own = life, one, True, True
                case Keeps(name, offset) if life == last:
                    savepoints[name] = offset
                case Drops(name):
                    savepoints.pop(name, None)
        return Known(last, begun, savepoints, checkpointed, counting, own)

    def counts(self, offset: int, checkpoint: Checkpoint) -> bool:
        """Whether one counts that is no savepoint: the last life's, the one that it has begun with,
        and what there was to go back to behind that; what an earlier life has let go, or has
        written since, does not."""
        life = checkpoint.execution
        if checkpoint.cut == BEGINNING:
            return not self.own
        ours = life == self.last or offset == self.began_with
        before = self.oldest <= offset <= self.counting.get(life, NOWHERE)
        return self.last is None or ours or before


def _go_on_from(offset: int, last: ExecutionId | None, counting: dict[ExecutionId, int]) -> None:
    """A life begins with what lies at an offset: of those before nothing later counts. What counts
    of a life is never later than of one that came after it."""
    for life in reversed(counting):
        if counting[life] <= offset:
            break
        counting[life] = offset
    if last is not None:
        counting[last] = offset


@dataclass(frozen=True, slots=True)
class RetainedCheckpoints:
    """All that a flow can go on from, by offset, the oldest first."""

    found: dict[int, Checkpoint]
    unreadable: dict[int, CheckpointUnreadable]
    """Those that it could, if they could be read."""


def kept(there: CheckpointsReader, known: Known) -> RetainedCheckpoints:
    """What there is to go on from."""
    most, others = known.retained, {*known.savepoints.values()}
    within = {*there.last(2 * most)}
    if known.began_with is not None:
        # It may lie far back: the flow has not come to enough of its own since.
        within.update(there.last(most, known.began_with + 1))
    counts = (at for at in sorted(within, reverse=True) if _counts(there, known, at))
    newest = itertools.islice(counts, most)
    found, unreadable = dict[int, Checkpoint](), dict[int, CheckpointUnreadable]()
    for offset in sorted(others.union(newest)):
        match there.read(offset):
            case Checkpoint() as one:
                found[offset] = one
            case error if offset in known.savepoints.values() or not there.let_go(offset):
                unreadable[offset] = error
    return RetainedCheckpoints(found, unreadable)


def earlier(among: RetainedCheckpoints, known: Known, end: int, most: int) -> dict[int, Checkpoint]:
    """What stays besides the one at an offset, and is older: so many at most, no savepoints."""
    named = known.savepoints.values()
    older = [at for at in among.found if at < end and at not in named]
    return {at: among.found[at] for at in older[max(0, len(older) - most) :]}


def _counts(there: CheckpointsReader, known: Known, offset: int) -> bool:
    """Of one that cannot be read nobody knows that it does not."""
    one = there.read(offset)
    return isinstance(one, CheckpointUnreadable) or known.counts(offset, one)


def newest(
    there: CheckpointsReader, known: Known, flow: str, topic: str
) -> tuple[int, Checkpoint] | None:
    """The newest to go on from, and its offset; None of a flow that has never had one. Raises
    SetupError where it has, or where the newest cannot be read."""
    try:
        found = there.newest(known.counts)
    except CheckpointUnreadable as error:
        others = kept(there, known).found.values()
        if not others:
            raise
        *_, last = others
        earlier = f"go on from an earlier one with meander run --from {last.number}"
        raise CheckpointUnreadable(
            error.concerns, error.cause, f"{earlier}, or {error.remedy}"
        ) from error
    if found is None:
        expect_kept(known, flow, topic)
    return found


def savepoints(there: CheckpointsReader, known: Known) -> dict[int, Checkpoint]:
    """Those that there are, by offset."""
    found = dict[int, Checkpoint]()
    for name, offset in sorted(known.savepoints.items(), key=lambda one: one[1]):
        match there.read(offset):
            case Checkpoint() as one:
                found[offset] = one
            case error:
                log.warning("savepoint_unreadable", savepoint=name, reason=str(error))
    return found


def chosen(there: RetainedCheckpoints, known: Known, wanted: str) -> int:
    """The offset of what a savepoint's name or a number says. Raises SetupError for none, and for
    one that cannot be read."""
    if (offset := known.savepoints.get(wanted)) is not None:
        if (error := there.unreadable.get(offset)) is not None:
            raise error
        return offset
    for offset, checkpoint in there.found.items():
        if str(checkpoint.number) == wanted:
            return offset
    names = {offset: name for name, offset in known.savepoints.items()}
    listed = [f"{one.number}{_called(names.get(at))}" for at, one in there.found.items()]
    raise SetupError(
        f"checkpoint {wanted!r}",
        "the flow has none of that name or number that is kept and can be read",
        f"name one of these: {', '.join(listed)}" if listed else "run the flow without --from",
    )


def _called(name: str | None) -> str:
    return "" if name is None else f" ({name})"


def expect_kept(known: Known, flow: str, topic: str) -> None:
    """Raises SetupError where none is found, though there has been one: what is out would be
    answered a second time."""
    if known.checkpointed:
        raise SetupError(
            f"flow {flow!r}",
            f"its journal tells of checkpoints, and topic {topic!r} holds none of them any more",
            f"see who has deleted them; meander reset {flow} has it begin anew",
        )


class Writing:
    """The checkpoints of one life: writes them, and to the journal where savepoints lie and that
    there is one at all; lets go what lies before all that are kept.

    >>> from dataclasses import replace
    >>> from meander.state.keys.bins import BinSpace
    >>> one = Checkpoint(7, ExecutionId(5), BinSpace(1), 0, ())
    >>> told = print, print, lambda _: lambda: True
    >>> writing = Writing(lambda one: lambda: Recorded(4, one), *told, {2: one}, True)
    >>> written = writing.write(replace(one, number=8))
    >>> written().number; writing.retire([], [], {7, 8}); writing.retire([], [], {8})
    8
    [] []
    2
    [] []
    4
    """

    def __init__(
        self,
        write: Callable[[Checkpoint], Callable[[], Recorded | None]],
        forget: Callable[[Sequence[RecordLocation], Sequence[RecordLocation]], None],
        trim: Callable[[int], None],
        journal: Journal,
        there: Mapping[int, Checkpoint],
        known: bool,
    ) -> None:
        """`there` are those of earlier lives that are kept, by offset; is it `known` that there is
        one?"""
        self._write, self._forget, self._trim = write, forget, trim
        self._journal, self._known = journal, known
        self._offsets = {one.number: offset for offset, one in there.items()}

    def write(self, checkpoint: Checkpoint) -> Callable[[], Checkpoint | None]:
        """Begin to write one; return it, with its parts, once it is durable and told."""
        steps = self._steps(self._write(checkpoint))
        return lambda: next(steps)

    def retire(
        self,
        places: Sequence[RecordLocation],
        chunks: Sequence[RecordLocation],
        kept: Collection[int],
    ) -> None:
        """What lies at these places is in flight in none any more, these chunks are of no layer,
        and only these are kept."""
        self._forget(places, chunks)
        self._offsets = {n: offset for n, offset in self._offsets.items() if n in kept}
        self._trim(min(self._offsets.values()))

    def _steps(self, recorded: Callable[[], Recorded | None]) -> Iterator[Checkpoint | None]:
        while (found := recorded()) is None:
            yield None
        offset, checkpoint = found
        self._offsets[checkpoint.number] = offset
        if checkpoint.savepoint:
            told = self._journal(Keeps(checkpoint.savepoint, offset, checkpoint.cut.time))
        elif not self._known:
            told = self._journal(Takes(checkpoint.cut.time))
        else:
            told = _at_once
        while not told():
            yield None
        self._known = True
        while True:
            yield checkpoint


def _at_once() -> bool:
    return True
