"""Reports: what a worker tells the coordinator beside its frames.

Each report is one class, from the operator that sends it to the coordinator that acts on it. A
report travels as msgpack within a message of `app.protocol`. Guarantees that what is read is one of
these reports, whole and of the right types. Cost: some microseconds a report.
"""

from __future__ import annotations

from collections.abc import Callable

from meander.schemas.struct import FrozenStruct
from meander.state.keys.ids import Bin, ExecutionId, WorkerId


class _Report(FrozenStruct, forbid_unknown_fields=True, tag=True):
    """A report that names its class as it travels."""


class BinInstalled(_Report):
    """A bin of an operator has come to the sender, with its state as of a time."""

    operator: str
    bin: Bin
    time: int
    bytes: int
    keys: int


class BinPreCopied(_Report):
    """All that the sender has of an operator's bin lies on the state topic, and where."""

    number: int
    """Of the pre-copy."""
    operator: str
    bin: Bin
    manifest: bytes


class BinPrefetched(_Report):
    """The sender has fetched what lies on the state topic of an operator's bin, ahead of its
    move."""

    number: int
    operator: str
    bin: Bin
    bytes: int


class BinUnreadableReport(_Report):
    """The sender cannot read layers of an operator's bin: ahead of its move, or at its time."""

    operator: str
    bin: Bin
    number: int | None
    """Of the pre-copy; None at the time of a move."""
    time: int | None
    reason: str


class BinSizes(_Report):
    """An operator lists its bins: each bin, its bytes on the state topic, and its records since the
    last report."""

    operator: str
    bins: list[tuple[Bin, int, int]]


class LayerUnreadableReport(_Report):
    """The sender cannot read a layer on the state topic; it writes the layer again."""

    reason: str


class SourcesPaused(_Report):
    """The sources of the sender send nothing later for a checkpoint."""

    checkpoint: int
    furthest: int
    """The latest time that they have sent."""


class Aligned(_Report):
    """The sender has as little in flight as a checkpoint allows."""

    checkpoint: int


class SnapshotFailed(_Report):
    """The sender cannot write its part of a checkpoint."""

    checkpoint: int
    reason: str


class SnapshotStored(_Report):
    """The sender's part of a checkpoint is durable; its slices follow one another."""

    checkpoint: int
    slice: bytes
    """Of a record of format 'checkpoint'."""
    held: list[tuple[int, int]]
    """The bins of which outboxes hold results back, and from which time on; with the last slice."""
    last: bool


class OutboxesSent(_Report):
    """The sender has committed all results that a checkpoint has of its outboxes."""

    checkpoint: int


class OutboxFull(_Report):
    """An outbox of the sender has no room before another checkpoint."""


class PartitionsRead(_Report):
    """The sender lists the partitions of a source that it reads from its start on; later none, but
    that there are more."""

    source: str
    partitions: list[int]
    total: int | None
    """How many there are on all workers; None where none may be added."""


class ResultsSuppressed(_Report):
    """The sender has suppressed results of a sink, and can suppress nothing more."""

    sink: str
    tallies: list[tuple[ExecutionId, WorkerId, int, int]]
    """Of each worker of an earlier execution: the execution, the worker, count and digest."""


WorkerReport = (
    BinInstalled | BinPreCopied | BinPrefetched | BinUnreadableReport | BinSizes
    | LayerUnreadableReport | SourcesPaused | Aligned | SnapshotFailed | SnapshotStored
    | OutboxesSent | OutboxFull | PartitionsRead | ResultsSuppressed
)  # fmt: skip
SendReport = Callable[[WorkerReport], None]
