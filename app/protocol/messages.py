"""What coordinator and workers say to each other beside the engine's frames.

Guarantees that what is read is one of the messages below, whole and of the right types; anything
else is a ValueError. Encoded as msgpack: nothing that is received can run code. A registration
consists of Register, MemberList or Rejection, Ready, and Go; Alive and HeartbeatAck follow. Other
messages travel on the links. Where a flow runs already, each member receives AddPeer and answers
PeerAdded between Ready and Go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, field

from meander.connectors.kafka.client import Unreachable
from meander.connectors.kafka.sink.transactions import StricterLimits
from meander.connectors.links.links import LinkBroken
from meander.dataflow.control.reports import WorkerReport
from meander.dataflow.control.resources import Resources
from meander.dataflow.errors import WorkerLost
from meander.dataflow.metrics.histogram import BOUNDS
from meander.dataflow.operators.error_policy import describe
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import Value
from meander.schemas.struct import FrozenStruct
from meander.state.keys.ids import WorkerId

M = TypeVar("M")
Address = Annotated[str, Meta(pattern=r"^tcp://\S+:\d{1,5}\Z")]
Key = Annotated[bytes, Meta(min_length=40, max_length=40)]
"""Public, of CURVE."""


ErrorKind = Literal["unreachable", "setup", "lost", "other"]
ERRORS: Final[Mapping[ErrorKind, type[MeanderError]]] = {
    "unreachable": Unreachable,
    "setup": SetupError,
    "lost": WorkerLost,
    "other": MeanderError,
}
"""What the driver tells apart, the most particular first."""


class _Part(FrozenStruct, forbid_unknown_fields=True):
    """A part of a message."""


class _Message(_Part, tag=True):
    """A message that names its class as it travels."""

    def to_bytes(self) -> bytes:
        """Return the bytes of the message."""
        return msgspec.msgpack.encode(self)


# -- registration


class Register(_Message):
    """A message by which a worker registers; its launch token is valid once."""

    token: bytes
    address: Address
    public: Key
    pid: int
    host: str
    versions: dict[str, str]
    executor: Resources | None = None
    """The executor that runs the worker's task; None where the system does not tell it."""


class Ready(_Message):
    """A message of a worker that has admitted all members of its member list."""

    token: bytes


class MemberInfo(_Part):
    """The address at which a member listens, and its public key."""

    worker: int
    address: Address
    public: Key


class MemberList(_Message):
    """A message that lists all other members."""

    peers: list[MemberInfo]


class Rejection(_Message):
    """A message that rejects a worker, with the reason."""

    reason: str


class Connect(_Message):
    """A message that tells a worker to connect, as all members have admitted each other."""


class Alive(_Message):
    """A keepalive of a process, which its loop does not delay."""

    token: bytes
    operator: str
    """The operator whose turn runs; '' where none does."""


class HeartbeatAck(_Message):
    """A message that acknowledges a keepalive of a worker of the flow."""


# -- on the links


class AddPeer(_Message):
    """A message that tells a member to admit a joining worker, and to open a link to it."""

    peer: MemberInfo


class PeerAdded(_Message):
    """A message of a member that has admitted a joining worker."""

    worker: int


class AddFiles(_Message):
    """A message with files that a user has added beside the flow's module since its start."""

    number: int
    """The number of files."""
    files: dict[str, bytes]
    """The files by path below the folder of the flow."""


class FilesAdded(_Message):
    """A message of a worker that has written the files of a message."""

    number: int


class DropPeer(_Message):
    """A message that tells a member to drop a worker that did not join."""

    worker: int


class PeerLeft(_Message):
    """The last message of a leaving worker to another worker."""


class PeerLeftAck(_Message):
    """A message of a worker that has received the last message of a leaving worker."""

    worker: int


class Durations(_Part):
    """A histogram of durations, by bucket (`dataflow.metrics.histogram.BOUNDS`)."""

    counts: Annotated[list[int], Meta(min_length=len(BOUNDS) + 1, max_length=len(BOUNDS) + 1)]
    seconds: float


class OperatorStats(_Part):
    """The counts of one operator."""

    received: int
    sent: int
    busy: float
    """The seconds of its turns."""
    durations: Durations
    """The durations of records in the operator."""
    keys: int = 0
    """About the number of keys with states."""
    bytes: int = 0
    """The bytes of its layers on the state topic."""
    forgotten: int = 0
    """The number of keys that it has forgotten."""


class SourceStats(_Part):
    """The state of a source at one worker; the lists have an entry per partition."""

    partitions: list[int]
    times: list[int]
    """The time of each partition."""
    states: list[Literal["sending", "paused", "idle", "reading"]]
    delays: Durations
    """The durations from the read of a chunk until all sinks have passed it."""

    def __post_init__(self) -> None:
        """Raise ValueError unless each partition has a time and a state."""
        if not len(self.partitions) == len(self.times) == len(self.states):
            raise ValueError("each partition has a time and a state")


class WorkerHeartbeat(_Message):
    """A heartbeat of a member. That of a worker reports its state."""

    counters: dict[str, int] = field(default_factory=dict)
    inflight: int = 0
    spilled: int = 0
    """Bytes of records that wait on disk."""
    restored: int = 0
    """The bytes read in its restore."""
    restoring: int = 0
    """The bytes to read in its restore."""
    at: float = 0.0
    """The time of the worker's monotonic clock in seconds."""
    active: float = 0.0
    """The seconds of turns that did anything."""
    backpressure: float = 0.0
    """The seconds in which it lacked credit, or room for more bytes in flight."""
    cpu: float = 0.0
    """The seconds of CPU time of its process."""
    operators: dict[str, OperatorStats] = field(default_factory=dict)
    sources: dict[str, SourceStats] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    """The bytes sent to each other worker, without those whose credit it has returned."""
    taken: dict[int, int] = field(default_factory=dict)
    """The bytes received from each other worker, without those whose credit has been returned."""


class Log(_Message):
    """A log line of a worker."""

    logger: str
    level: int
    event: str
    fields: dict[str, Value]
    detail: str


class Report(_Message):
    """A message with reports of the engine for the coordinator."""

    reports: list[WorkerReport]


class Failure(_Message):
    """A message of a worker that has failed, and waits for `StopExecution`."""

    of: ErrorKind
    """The name of the error in `ERRORS`."""
    subject: str
    cause: str
    remedy: str
    trace: str
    peer: int | None = None
    """The member whose link broke, where that is the cause."""
    limits: dict[str, dict[str, str]] = field(default_factory=dict)
    """The stricter limits of topics that the next execution needs, by topic."""

    @staticmethod
    def from_bytes(data: bytes) -> Failure:
        """Undo `to_bytes`. Raise ValueError."""
        return msgspec.msgpack.decode(data, type=Failure)

    @staticmethod
    def at(member: str, error: BaseException, trace: str) -> Failure:
        """Return the message about an exception at a member."""
        known = error if isinstance(error, MeanderError) else MeanderError(member, describe(error))
        return Failure(
            of=next(name for name, kind in ERRORS.items() if isinstance(known, kind)),
            subject=known.subject, cause=known.cause, remedy=known.remedy, trace=trace,
            peer=known.peer if isinstance(known, LinkBroken) else None,
            limits=known.limits if isinstance(known, StricterLimits) else {},
        )  # fmt: skip

    def error(self) -> MeanderError:
        """Return the error as the worker raised it."""
        if self.peer is not None:
            return LinkBroken(WorkerId(self.peer), self.cause)
        return ERRORS[self.of](self.subject, self.cause, self.remedy)


class Done(_Message):
    """A message of a worker whose work is complete and durable."""

    counters: dict[str, int]


class StopExecution(_Message):
    """A message that tells a worker to stop, to close its resources, and to answer `Stopped`."""


class Stopped(_Message):
    """A message of a worker that has closed everything but its links."""


class Exit(_Message):
    """A message that ends the process of a worker, as all have stopped."""


class Restart(_Message):
    """A message that restarts a stopped worker in the next execution, after the loss of another
    worker. It tells the worker what differs from the last execution."""

    worker: int
    workers: int
    execution: int
    checkpoint: int | None
    token: bytes
    server: Address
    server_key: Key
    outside: dict[str, dict[str, str]]

    def __repr__(self) -> str:
        """Leave out the launch token."""
        return f"Restart(worker={self.worker}, execution={self.execution})"


Request = Register | Ready | Alive
Reply = MemberList | Rejection | Connect | HeartbeatAck
ToWorker = WorkerHeartbeat | AddPeer | AddFiles | DropPeer | StopExecution | Exit | Restart
FromWorker = (
    WorkerHeartbeat | Log | Report | PeerAdded | FilesAdded | PeerLeftAck | Failure | Done | Stopped
)


class Reader(Generic[M]):
    """A reader of the messages of one direction.

    >>> FROM_WORKER.read(WorkerHeartbeat(inflight=3).to_bytes())
    WorkerHeartbeat(counters={}, inflight=3, ..., sent={}, taken={})
    >>> TO_WORKER.read(Done(counters={}).to_bytes())
    Traceback (most recent call last):
    ValueError: the message is not expected here
    """

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)

    def read(self, data: bytes) -> M:
        """Return the message of some bytes. Raise ValueError."""
        try:
            return self._decoder.decode(data)
        except ValueError as error:
            raise ValueError("the message is not expected here") from error


REQUEST: Reader[Request] = Reader(Request)
REPLY: Reader[Reply] = Reader(Reply)
TO_WORKER: Reader[ToWorker] = Reader(ToWorker)
FROM_WORKER: Reader[FromWorker] = Reader(FromWorker)
FROM_PEER: Reader[PeerLeft] = Reader(PeerLeft)
