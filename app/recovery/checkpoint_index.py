"""The checkpoint index of a flow: the checkpoints and savepoints from which a restart may continue.

The decision log names each savepoint with its offset, once the record of its checkpoint is durable.
Guarantees that a start knows all savepoints after it has read the decision log. No restart uses a
checkpoint that an older execution wrote after a newer execution had started. The decision log also
shows that a flow has had a checkpoint, so a flow that has lost them all never starts from scratch
unasked. Cost: one read for each checkpoint in question.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meander.connectors.topics.checkpoints import CheckpointsReader, CheckpointUnreadable
from meander.dataflow.checkpoint.record_writer import Recorded
from meander.dataflow.control.decisions import (
    DropDecision,
    FirstCheckpointDecision,
    SavepointDecision,
    StartDecision,
    WriteDecision,
)
from meander.dataflow.exactly_once.commit_history import Written, effective
from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.checkpoint import INITIAL_CUT, Checkpoint
from meander.state.keys.ids import ExecutionId
from meander.state.layers.topic import RecordLocation

log = LineLogger(__name__)

BEFORE_ALL = -1
"""An offset before all records."""


@dataclass(frozen=True, slots=True)
class CheckpointIndex:
    """An index that derives from a flow's decision log which checkpoints a restart may use."""

    last: ExecutionId | None
    """The execution that started last."""
    start: StartDecision | None
    """The decision with which it started."""
    savepoints: dict[str, int]
    """Offsets of the savepoints, by name."""
    checkpointed: bool
    """Whether any execution has completed a checkpoint."""
    usable_until: dict[ExecutionId, int]
    """The last offset at which a checkpoint of an earlier execution is usable."""
    took_own: bool
    """Whether the flow has taken a checkpoint itself, so bootstrapped states are out of date."""

    @property
    def started_from(self) -> int | None:
        """The offset of the checkpoint from which the last execution started."""
        return None if self.start is None else self.start.checkpoint

    @property
    def oldest(self) -> float:
        """The least offset at which a checkpoint of an earlier execution is usable."""
        oldest = None if self.start is None else self.start.oldest
        return math.inf if oldest is None else oldest

    @property
    def retained(self) -> int:
        """The number of checkpoints that the flow retains."""
        return StartDecision(0, (), 0).retained if self.start is None else self.start.retained

    @staticmethod
    def of(decided: Iterable[Written]) -> CheckpointIndex:
        """Derive the index from the records of a decision log.

        >>> one = ExecutionId(5)
        >>> decided = [(one, StartDecision(0, (), 1, 2)), (one, SavepointDecision("a", 3, 0))]
        >>> decided.append((one, SavepointDecision("b", 4, 0)))
        >>> late = (ExecutionId(1), SavepointDecision("c", 5, 0))
        >>> CheckpointIndex.of([*decided, (ExecutionId(9), DropDecision("a")), late])
        CheckpointIndex(last=5, start=..., savepoints={'b': 4}, checkpointed=True, ...)
        """
        last, start, savepoints, checkpointed = None, None, dict[str, int](), False
        usable_until, took_own = dict[ExecutionId, int](), False
        for execution, one in effective(decided):
            taken = isinstance(one, FirstCheckpointDecision | SavepointDecision)
            checkpointed |= taken
            took_own |= taken and execution == last
            match one:
                case StartDecision(checkpoint=None):
                    last, start = execution, one
                    # Savepoints of an earlier execution lie on a topic that was deleted.
                    savepoints.clear()
                    usable_until.clear()
                case StartDecision(checkpoint=int(offset)):
                    _restart_from(offset, last, usable_until)
                    last, start, checkpointed, took_own = execution, one, True, True
                case SavepointDecision(name, offset) if execution == last:
                    savepoints[name] = offset
                case DropDecision(name):
                    savepoints.pop(name, None)
        return CheckpointIndex(last, start, savepoints, checkpointed, usable_until, took_own)

    def is_usable(self, offset: int, checkpoint: Checkpoint) -> bool:
        """Return whether a restart may use a checkpoint that is no savepoint.

        The last execution took it or started from it, or it was retained before that one. Layers
        of any other checkpoint may be gone, or its execution was no longer the last one.
        """
        execution = checkpoint.execution
        if checkpoint.cut == INITIAL_CUT:
            return not self.took_own
        ours = execution == self.last or offset == self.started_from
        before = self.oldest <= offset <= self.usable_until.get(execution, BEFORE_ALL)
        return self.last is None or ours or before


def _restart_from(
    offset: int, last: ExecutionId | None, usable_until: dict[ExecutionId, int]
) -> None:
    """Note that an execution starts from an offset: no earlier one has usable checkpoints behind.

    The usable end of an execution never exceeds that of a later execution.
    """
    for execution in reversed(usable_until):
        if usable_until[execution] <= offset:
            break
        usable_until[execution] = offset
    if last is not None:
        usable_until[last] = offset


@dataclass(frozen=True, slots=True)
class RetainedCheckpoints:
    """A set of all checkpoints that a restart may use, by offset, the oldest first."""

    found: dict[int, Checkpoint]
    unreadable: dict[int, CheckpointUnreadable]
    """The errors of usable checkpoints that cannot be read."""


def retained_checkpoints(reader: CheckpointsReader, index: CheckpointIndex) -> RetainedCheckpoints:
    """Read all checkpoints and savepoints that a restart may use."""
    most, named = index.retained, {*index.savepoints.values()}
    within = {*reader.last(2 * most)}
    if index.started_from is not None:
        # It may lie far back, while the flow has taken few checkpoints since.
        within.update(reader.last(most, index.started_from + 1))
    usable = (at for at in sorted(within, reverse=True) if _may_be_usable(reader, index, at))
    newest = itertools.islice(usable, most)
    found, unreadable = dict[int, Checkpoint](), dict[int, CheckpointUnreadable]()
    for offset in sorted(named.union(newest)):
        match reader.read(offset):
            case Checkpoint() as one:
                found[offset] = one
            case error if offset in named or not reader.is_deleted(offset):
                unreadable[offset] = error
    return RetainedCheckpoints(found, unreadable)


def earlier_checkpoints(
    among: RetainedCheckpoints, index: CheckpointIndex, end: int, most: int
) -> dict[int, Checkpoint]:
    """Return the newest retained checkpoints before an offset, `most` at most, no savepoints."""
    named = index.savepoints.values()
    older = [at for at in among.found if at < end and at not in named]
    return {at: among.found[at] for at in older[max(0, len(older) - most) :]}


def _may_be_usable(reader: CheckpointsReader, index: CheckpointIndex, offset: int) -> bool:
    """Return whether a checkpoint is usable; an unreadable one may be."""
    one = reader.read(offset)
    return isinstance(one, CheckpointUnreadable) or index.is_usable(offset, one)


def newest_usable(
    reader: CheckpointsReader, index: CheckpointIndex, flow: str, topic: str
) -> tuple[int, Checkpoint] | None:
    """Return the newest usable checkpoint and its offset; None for a flow that never had one.

    Raises SetupError where the flow has lost its checkpoints, or the newest cannot be read.
    """
    try:
        found = reader.newest(index.is_usable)
    except CheckpointUnreadable as error:
        others = retained_checkpoints(reader, index).found.values()
        if not others:
            raise
        *_, last = others
        earlier = f"restore an earlier checkpoint with meander run --from {last.number}"
        raise CheckpointUnreadable(
            error.subject, error.cause, f"{earlier}, or {error.remedy}"
        ) from error
    if found is None:
        expect_retained(index, flow, topic)
    return found


def read_savepoints(reader: CheckpointsReader, index: CheckpointIndex) -> dict[int, Checkpoint]:
    """Return all readable savepoints, by offset."""
    found = dict[int, Checkpoint]()
    for name, offset in sorted(index.savepoints.items(), key=lambda one: one[1]):
        match reader.read(offset):
            case Checkpoint() as one:
                found[offset] = one
            case error:
                log.warning("savepoint_unreadable", savepoint=name, reason=str(error))
    return found


def find_checkpoint(among: RetainedCheckpoints, index: CheckpointIndex, wanted: str) -> int:
    """Return the offset of a savepoint by its name, or of a checkpoint by its number.

    Raises SetupError where none matches, and where the savepoint cannot be read.
    """
    if (offset := index.savepoints.get(wanted)) is not None:
        if (error := among.unreadable.get(offset)) is not None:
            raise error
        return offset
    for offset, checkpoint in among.found.items():
        if str(checkpoint.number) == wanted:
            return offset
    names = {offset: name for name, offset in index.savepoints.items()}
    listed = [f"{one.number}{_in_parentheses(names.get(at))}" for at, one in among.found.items()]
    raise SetupError(
        f"checkpoint {wanted!r}",
        "the flow retains no readable checkpoint of that name or number",
        f"name one of these: {', '.join(listed)}" if listed else "run the flow without --from",
    )


def _in_parentheses(name: str | None) -> str:
    return "" if name is None else f" ({name})"


def expect_retained(index: CheckpointIndex, flow: str, topic: str) -> None:
    """Raise SetupError where a flow has had a checkpoint, though none was found.

    A start from scratch would write committed results again.
    """
    if index.checkpointed:
        raise SetupError(
            f"flow {flow!r}",
            f"its decision log names checkpoints, but topic {topic!r} holds none of them",
            f"find out who deleted them; meander reset {flow} lets it start from scratch",
        )


class CheckpointRecorder:
    """A recorder that writes the checkpoints of one execution and logs them as decisions.

    The decision log names each savepoint, and notes the first checkpoint of a flow. The recorder
    truncates the checkpoints topic before all retained checkpoints.

    >>> from dataclasses import replace
    >>> from meander.state.keys.bins import BinSpace
    >>> one = Checkpoint(7, ExecutionId(5), BinSpace(1), 0, ())
    >>> calls = print, print, lambda _: lambda: True
    >>> recorder = CheckpointRecorder(lambda one: lambda: Recorded(4, one), *calls, {2: one}, True)
    >>> written = recorder.write(replace(one, number=8))
    >>> written().number; recorder.release([], [], {7, 8}); recorder.release([], [], {8})
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
        truncate: Callable[[int], None],
        write_decision: WriteDecision,
        retained: Mapping[int, Checkpoint],
        has_checkpoint: bool,
    ) -> None:
        """Record beside the `retained` checkpoints of earlier executions, by offset.

        `has_checkpoint` says whether the decision log already notes a checkpoint.
        """
        self._write, self._forget, self._truncate = write, forget, truncate
        self._write_decision, self._has_checkpoint = write_decision, has_checkpoint
        self._offsets = {one.number: offset for offset, one in retained.items()}

    def write(self, checkpoint: Checkpoint) -> Callable[[], Checkpoint | None]:
        """Start to write a checkpoint; the result returns it once it is durable and logged."""
        steps = self._steps(self._write(checkpoint))
        return lambda: next(steps)

    def release(
        self,
        places: Sequence[RecordLocation],
        chunks: Sequence[RecordLocation],
        retained: Collection[int],
    ) -> None:
        """Delete in-flight records and chunks of layers that no checkpoint names any more.

        Only the checkpoints with the numbers `retained` are usable from now on.
        """
        self._forget(places, chunks)
        self._offsets = {n: offset for n, offset in self._offsets.items() if n in retained}
        self._truncate(min(self._offsets.values()))

    def _steps(self, recorded: Callable[[], Recorded | None]) -> Iterator[Checkpoint | None]:
        while (found := recorded()) is None:
            yield None
        offset, checkpoint = found
        self._offsets[checkpoint.number] = offset
        if checkpoint.savepoint:
            logged = self._write_decision(
                SavepointDecision(checkpoint.savepoint, offset, checkpoint.cut.time)
            )
        elif not self._has_checkpoint:
            logged = self._write_decision(FirstCheckpointDecision(checkpoint.cut.time))
        else:
            logged = _at_once
        while not logged():
            yield None
        self._has_checkpoint = True
        while True:
            yield checkpoint


def _at_once() -> bool:
    return True
