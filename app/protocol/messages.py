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
from meander.connectors.links.links import LinkBroken
from meander.dataflow.control.reports import WorkerReport
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
        """As it travels."""
        return msgspec.msgpack.encode(self)


# -- at the door


class Register(_Message):
    """A worker has come up; its token is good for one time."""

    token: bytes
    address: Address
    public: Key
    pid: int
    host: str
    versions: dict[str, str]


class Ready(_Message):
    """A worker has admitted all that are on its roster."""

    token: bytes


class MemberInfo(_Part):
    """One member: where it listens, and the key it proves itself with."""

    worker: int
    address: Address
    public: Key


class MemberList(_Message):
    """Everybody else."""

    peers: list[MemberInfo]


class Rejection(_Message):
    """This worker is not wanted, and why."""

    reason: str


class Go(_Message):
    """All have admitted each other: connect."""


class Alive(_Message):
    """The sender's process lives, whatever its loop does."""

    token: bytes
    operator: str
    """The one whose turn keeps its loop; '' where none does."""


class HeartbeatAck(_Message):
    """The flow still has the worker that says it lives."""


# -- on the links


class AddPeer(_Message):
    """Somebody is to join: admit it, and open the sending side to it."""

    peer: MemberInfo


class PeerAdded(_Message):
    """The sender has done so."""

    worker: int


class DropPeer(_Message):
    """Who was to join does not come."""

    worker: int


class PeerLeft(_Message):
    """From worker to worker: this is the sender's last word, it has left the flow."""


class Released(_Message):
    """The sender has heard all that a leaver had to say."""

    worker: int


class Durations(_Part):
    """How often something took how long, by bucket (`dataflow.metrics.histogram.BOUNDS`)."""

    counts: Annotated[list[int], Meta(min_length=len(BOUNDS) + 1, max_length=len(BOUNDS) + 1)]
    seconds: float


class OperatorStats(_Part):
    """What one operator has done."""

    received: int
    sent: int
    busy: float
    """Seconds of its turns."""
    took: Durations
    """How long each record was in it."""


class SourceStats(_Part):
    """What a source reads at one worker; the lists have an entry per partition."""

    partitions: list[int]
    times: list[int]
    """How far each is."""
    states: list[Literal["sending", "paused", "idle", "reading"]]
    delays: Durations
    """From the reading of a chunk to its passing by all sinks."""

    def __post_init__(self) -> None:
        """Raises ValueError unless each partition has a time and a state."""
        if not len(self.partitions) == len(self.times) == len(self.states):
            raise ValueError("each partition has a time and a state")


class WorkerHeartbeat(_Message):
    """The sender lives. From a worker: how it stands."""

    counters: dict[str, int] = field(default_factory=dict)
    inflight: int = 0
    spilled: int = 0
    """Bytes of records that wait on disk."""
    restored: int = 0
    """Bytes read of what it has begun with."""
    restoring: int = 0
    """Of so many."""
    operators: dict[str, OperatorStats] = field(default_factory=dict)
    sources: dict[str, SourceStats] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    """Bytes sent to each other worker whose credit it has not given back."""
    taken: dict[int, int] = field(default_factory=dict)
    """Bytes taken from each other worker whose credit has not been given back to it."""


class Log(_Message):
    """A line of a worker's log."""

    logger: str
    level: int
    event: str
    fields: dict[str, Value]
    detail: str


class Report(_Message):
    """Reports of the engine, for the coordinator."""

    reports: list[WorkerReport]


class Failure(_Message):
    """A worker cannot go on; it waits for `stop`."""

    of: ErrorKind
    """Which error it is, as of `ERRORS`."""
    subject: str
    cause: str
    remedy: str
    trace: str
    peer: int | None = None
    """The member whose link broke, where that is the cause."""

    @staticmethod
    def from_bytes(data: bytes) -> Failure:
        """The inverse of `to_bytes`. Raises ValueError."""
        return msgspec.msgpack.decode(data, type=Failure)

    @staticmethod
    def at(member: str, error: BaseException, trace: str) -> Failure:
        """What an exception at a member tells the coordinator."""
        known = error if isinstance(error, MeanderError) else MeanderError(member, describe(error))
        return Failure(
            of=next(name for name, kind in ERRORS.items() if isinstance(known, kind)),
            subject=known.subject, cause=known.cause, remedy=known.remedy, trace=trace,
            peer=known.peer if isinstance(known, LinkBroken) else None,
        )  # fmt: skip

    def error(self) -> MeanderError:
        """As it was raised at the worker."""
        if self.peer is not None:
            return LinkBroken(WorkerId(self.peer), self.cause)
        return ERRORS[self.of](self.subject, self.cause, self.remedy)


class Done(_Message):
    """All that the sender had to do is done and durable."""

    counters: dict[str, int]


class StopExecution(_Message):
    """Do nothing any more, close what is open, and say so."""


class Stopped(_Message):
    """The sender has nothing open but its links."""


class Exit(_Message):
    """All have stopped: end the process."""


class Restart(_Message):
    """A worker is lost, and all that have stopped go on in another life of the flow: what is other
    there for the one that is told."""

    worker: int
    workers: int
    execution: int
    checkpoint: int | None
    token: bytes
    server: Address
    server_key: Key

    def __repr__(self) -> str:
        """Leave out the launch token."""
        return f"Restart(worker={self.worker}, execution={self.execution})"


Knock = Register | Ready | Alive
Reply = MemberList | Rejection | Go | HeartbeatAck
ToWorker = WorkerHeartbeat | AddPeer | DropPeer | StopExecution | Exit | Restart
FromWorker = WorkerHeartbeat | Log | Report | PeerAdded | Released | Failure | Done | Stopped


class Reader(Generic[M]):
    """Reads the messages of one direction.

    >>> FROM_WORKER.read(WorkerHeartbeat(inflight=3).to_bytes())
    WorkerHeartbeat(counters={}, inflight=3, ..., sent={}, taken={})
    >>> TO_WORKER.read(Done(counters={}).to_bytes())
    Traceback (most recent call last):
    ValueError: no message that is expected here
    """

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)

    def read(self, data: bytes) -> M:
        """The message of some bytes. Raises ValueError."""
        try:
            return self._decoder.decode(data)
        except ValueError as error:
            raise ValueError("no message that is expected here") from error


KNOCK: Reader[Knock] = Reader(Knock)
REPLY: Reader[Reply] = Reader(Reply)
TO_WORKER: Reader[ToWorker] = Reader(ToWorker)
FROM_WORKER: Reader[FromWorker] = Reader(FromWorker)
FROM_PEER: Reader[PeerLeft] = Reader(PeerLeft)
