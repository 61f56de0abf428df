"""Reports: messages of a worker to the coordinator beside its frames.

Operators send reports as instances of one class each, and the coordinator receives the same class.
A report travels as msgpack within a message of `app.protocol`. Guarantees that a received report is
complete and has the right types. Cost: some microseconds per report.
"""

from __future__ import annotations

from collections.abc import Callable

from meander.schemas.struct import FrozenStruct
from meander.state.keys.ids import Bin, ExecutionId, WorkerId


class _Report(FrozenStruct, forbid_unknown_fields=True, tag=True):
    """A report that names its class as it travels."""


class BinInstalled(_Report):
    """A report that the sender has installed a bin of an operator, with its state at a time."""

    operator: str
    bin: Bin
    time: int
    bytes: int
    keys: int


class BinPreCopied(_Report):
    """A report that the state topic holds all of an operator's bin, with the manifest."""

    number: int
    """The number of the pre-copy."""
    operator: str
    bin: Bin
    manifest: bytes


class BinPrefetched(_Report):
    """A report that the sender has prefetched the layers of an operator's bin."""

    number: int
    operator: str
    bin: Bin
    bytes: int


class BinUnreadableReport(_Report):
    """A report that the sender cannot read layers of an operator's bin, before its move or at its
    time."""

    operator: str
    bin: Bin
    number: int | None
    """The number of the pre-copy. None at the time of a move."""
    time: int | None
    reason: str


class BinSizes(_Report):
    """A report that lists an operator's bins: each bin, its bytes on the state topic, and its
    records since the last report."""

    operator: str
    bins: list[tuple[Bin, int, int]]


class LayerUnreadableReport(_Report):
    """A report that the sender cannot read a layer on the state topic, and writes the layer
    again."""

    reason: str


class SourcesPaused(_Report):
    """A report that the sources of the sender have paused for a checkpoint."""

    checkpoint: int
    furthest: int
    """The latest time that they have sent."""


class Aligned(_Report):
    """A report that the sender has as few bytes in flight as a checkpoint allows."""

    checkpoint: int


class SnapshotFailed(_Report):
    """A report that the sender cannot write its part of a checkpoint."""

    checkpoint: int
    reason: str


class SnapshotStored(_Report):
    """A report that the sender's part of a checkpoint is durable. Its slices follow one another."""

    checkpoint: int
    slice: bytes
    """A slice of a record of format 'checkpoint'."""
    held: list[tuple[int, int]]
    """The bins of which outboxes hold results, each with the first such time. The last slice has
    them."""
    last: bool


class OutboxesSent(_Report):
    """A report that the sender has committed all outbox results of a checkpoint."""

    checkpoint: int


class OutboxFull(_Report):
    """A report that an outbox of the sender has no room before another checkpoint."""


class PartitionsRead(_Report):
    """A report that lists the partitions of a source that the sender reads at its start. Later
    reports list none, and announce new partitions."""

    source: str
    partitions: list[int]
    total: int | None
    """The number of partitions on all workers. None where the number is final."""


class LogicPrepared(_Report):
    """A report that the sender has loaded a version of a logic, or why it cannot."""

    number: int
    """The number of the preparation."""
    name: str
    """The class of the version, as all workers name it."""
    parameters: str
    """All parameters of the version, also those that the command left out."""
    upgrades: bool
    """Whether the version upgrades the states of the one before it."""
    error: str
    """Empty where the version can take effect."""


class ResultsSuppressed(_Report):
    """A report that the sender has suppressed all committed results of a sink."""

    sink: str
    tallies: list[tuple[ExecutionId, WorkerId, int, int]]
    """The execution, worker, count and digest of each previous worker."""


WorkerReport = (
    BinInstalled | BinPreCopied | BinPrefetched | BinUnreadableReport | BinSizes
    | LayerUnreadableReport | SourcesPaused | Aligned | SnapshotFailed | SnapshotStored
    | OutboxesSent | OutboxFull | PartitionsRead | ResultsSuppressed | LogicPrepared
)  # fmt: skip
SendReport = Callable[[WorkerReport], None]
