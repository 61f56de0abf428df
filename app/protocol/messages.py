"""What coordinator and workers say to each other beside the engine's frames.

Guarantees that what is read is one of the messages below, whole and of the right types; anything
else is a ValueError. Encoded as msgpack: nothing that is received can run code. At the door come
Register, then Roster or Turned, then Ready, then Go, and later Alive and Heard; all else travels on
the links. Where a flow runs already, each member hears Meet and answers Met between Ready and Go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Generic, Literal, Self, TypeVar

import msgpack
from msgpack.exceptions import UnpackException
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from meander.connectors.kafka.client import Unreachable
from meander.connectors.links.links import LinkBroken
from meander.dataflow.errors import WorkerLost
from meander.dataflow.metrics.histogram import BOUNDS
from meander.dataflow.operators.error_policy import told
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import Value
from meander.state.keys.ids import WorkerId

M = TypeVar("M")
Address = Annotated[str, Field(pattern=r"^tcp://\S+:\d{1,5}$")]
Key = Annotated[bytes, Field(min_length=40, max_length=40)]
"""Public, of CURVE."""


ErrorKind = Literal["unreachable", "setup", "lost", "other"]
ERRORS: Final[Mapping[ErrorKind, type[MeanderError]]] = {
    "unreachable": Unreachable,
    "setup": SetupError,
    "lost": WorkerLost,
    "other": MeanderError,
}
"""What the driver tells apart, the most particular first."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_bytes(self) -> bytes:
        """As it travels."""
        return bytes(msgpack.packb(self.model_dump()))


# -- at the door


class Register(_Message):
    """A worker has come up; its token is good for one time."""

    kind: Literal["register"] = "register"
    token: bytes
    address: Address
    public: Key
    pid: int
    host: str
    versions: dict[str, str]


class Ready(_Message):
    """A worker has admitted all that are on its roster."""

    kind: Literal["ready"] = "ready"
    token: bytes


class MemberInfo(_Message):
    """One member: where it listens, and the key it proves itself with."""

    worker: int
    address: Address
    public: Key


class MemberList(_Message):
    """Everybody else."""

    kind: Literal["roster"] = "roster"
    peers: list[MemberInfo]


class Rejection(_Message):
    """This worker is not wanted, and why."""

    kind: Literal["turned"] = "turned"
    reason: str


class Go(_Message):
    """All have admitted each other: connect."""

    kind: Literal["go"] = "go"


class Alive(_Message):
    """The sender's process lives, whatever its loop does."""

    kind: Literal["alive"] = "alive"
    token: bytes
    operator: str
    """The one whose turn keeps its loop; '' where none does."""


class HeartbeatAck(_Message):
    """The flow still has the worker that says it lives."""

    kind: Literal["heard"] = "heard"


# -- on the links


class AddPeer(_Message):
    """Somebody is to join: admit it, and open the sending side to it."""

    kind: Literal["meet"] = "meet"
    peer: MemberInfo


class PeerAdded(_Message):
    """The sender has done so."""

    kind: Literal["met"] = "met"
    worker: int


class DropPeer(_Message):
    """Who was to join does not come."""

    kind: Literal["forget"] = "forget"
    worker: int


class PeerLeft(_Message):
    """From worker to worker: this is the sender's last word, it has left the flow."""

    kind: Literal["leaves"] = "leaves"


class Released(_Message):
    """The sender has heard all that a leaver had to say."""

    kind: Literal["released"] = "released"
    worker: int


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Durations(_Part):
    """How often something took how long, by bucket (`dataflow.metrics.histogram.BOUNDS`)."""

    counts: Annotated[list[int], Field(min_length=len(BOUNDS) + 1, max_length=len(BOUNDS) + 1)]
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

    @model_validator(mode="after")
    def _each_has_all(self) -> Self:
        if not len(self.partitions) == len(self.times) == len(self.states):
            raise ValueError("each partition has a time and a state")
        return self


class WorkerHeartbeat(_Message):
    """The sender lives. From a worker: how it stands."""

    kind: Literal["beat"] = "beat"
    counters: dict[str, int] = {}
    inflight: int = 0
    spilled: int = 0
    """Bytes of records that wait on disk."""
    restored: int = 0
    """Bytes read of what it has begun with."""
    restoring: int = 0
    """Of so many."""
    operators: dict[str, OperatorStats] = {}
    sources: dict[str, SourceStats] = {}
    sent: dict[int, int] = {}
    """Bytes sent to each other worker whose credit it has not given back."""
    taken: dict[int, int] = {}
    """Bytes taken from each other worker whose credit has not been given back to it."""


class Log(_Message):
    """A line of a worker's log."""

    kind: Literal["log"] = "log"
    logger: str
    level: int
    event: str
    fields: dict[str, Value]
    detail: str


class Installed(_Part):
    """A bin of an operator has come to the sender, with its state as of a time."""

    event: Literal["bin_moved"]
    operator: str
    bin: int
    time: int
    bytes: int
    keys: int


class PreCopied(_Part):
    """All that the sender has of an operator's bin lies on the state topic, and where."""

    event: Literal["precopied"]
    number: int
    operator: str
    bin: int
    manifest: bytes


class StagedPart(_Part):
    """What lies on the state topic of an operator's bin has been fetched, ahead of its move."""

    event: Literal["staged"]
    number: int
    operator: str
    bin: int
    bytes: int


class BinUnreadableReport(_Part):
    """Layers of an operator's bin cannot be read: ahead of its move, or at its time."""

    event: Literal["bin_unreadable"]
    number: int | None
    operator: str
    bin: int
    time: int | None
    reason: str


class Bins(_Part):
    """What an operator has of each bin: the bin, bytes on the state topic, and records since the
    sender last said so."""

    event: Literal["bins"]
    operator: str
    bins: list[Annotated[list[int], Field(min_length=3, max_length=3)]]


class LayerUnreadableReport(_Part):
    """A layer on the state topic cannot be read; it is written anew out of the state."""

    event: Literal["layer_unreadable"]
    reason: str


class SourcesPaused(_Part):
    """The sender's sources send nothing later for a checkpoint."""

    event: Literal["held"]
    checkpoint: int
    furthest: int
    """The latest time that they have sent."""


class Aligned(_Part):
    """As little of the sender is in flight as a checkpoint allows."""

    event: Literal["aligned"]
    checkpoint: int


class Unwritten(_Part):
    """The sender cannot write its part of a checkpoint."""

    event: Literal["unwritten"]
    checkpoint: int
    reason: str


class OutboxesSent(_Part):
    """All is out that a checkpoint has of the sender's outboxes."""

    event: Literal["sent"]
    checkpoint: int


class Full(_Part):
    """An outbox of the sender has no room before another checkpoint."""

    event: Literal["full"]


class SnapshotStored(_Part):
    """The sender's part of a checkpoint is durable; its slices follow one another."""

    event: Literal["frozen"]
    checkpoint: int
    slice: bytes
    """Of a record of format 'checkpoint'."""
    held: list[Annotated[list[int], Field(min_length=2, max_length=2)]]
    """The bins of which outboxes hold results back, and from which time on; with the last slice."""
    last: bool


class Reads(_Part):
    """The partitions of a source that the sender reads from its start on; later, none, but that
    there are more."""

    event: Literal["reads"]
    source: str
    partitions: list[int]
    total: int | None
    """How many there are on all workers; None where none may be added."""


class ResultsSuppressed(_Part):
    """What the sender has suppressed of a sink's results, once it can suppress nothing more."""

    event: Literal["replay_checked"]
    sink: str
    tallies: list[Annotated[list[int], Field(min_length=4, max_length=4)]]
    """Of each worker of an earlier life: the life, the worker, count and digest."""


class Report(_Message):
    """Events of the engine, for the controller."""

    kind: Literal["report"] = "report"
    events: list[
        Annotated[
            Installed
            | PreCopied
            | StagedPart
            | BinUnreadableReport
            | Bins
            | LayerUnreadableReport
            | SourcesPaused
            | Aligned
            | Unwritten
            | OutboxesSent
            | Full
            | SnapshotStored
            | ResultsSuppressed
            | Reads,
            Field(discriminator="event"),
        ]
    ]


class Failure(_Message):
    """A worker cannot go on; it waits for `stop`."""

    kind: Literal["failure"] = "failure"
    of: ErrorKind
    """Which error it is, as of `ERRORS`."""
    concerns: str
    cause: str
    remedy: str
    trace: str
    peer: int | None = None
    """The member whose link broke, where that is the cause."""

    @staticmethod
    def from_bytes(data: bytes) -> Failure:
        """The inverse of `to_bytes`. Raises ValueError."""
        return Failure.model_validate(msgpack.unpackb(data), strict=True)

    @staticmethod
    def at(member: str, error: BaseException, trace: str) -> Failure:
        """What an exception at a member tells the coordinator."""
        known = error if isinstance(error, MeanderError) else MeanderError(member, told(error))
        return Failure(
            of=next(name for name, kind in ERRORS.items() if isinstance(known, kind)),
            concerns=known.concerns, cause=known.cause, remedy=known.remedy, trace=trace,
            peer=known.peer if isinstance(known, LinkBroken) else None,
        )  # fmt: skip

    def error(self) -> MeanderError:
        """As it was raised at the worker."""
        if self.peer is not None:
            return LinkBroken(WorkerId(self.peer), self.cause)
        return ERRORS[self.of](self.concerns, self.cause, self.remedy)


class Done(_Message):
    """All that the sender had to do is done and durable."""

    kind: Literal["done"] = "done"
    counters: dict[str, int]


class StopExecution(_Message):
    """Do nothing any more, close what is open, and say so."""

    kind: Literal["stop"] = "stop"


class Stopped(_Message):
    """The sender has nothing open but its links."""

    kind: Literal["stopped"] = "stopped"


class Exit(_Message):
    """All have stopped: end the process."""

    kind: Literal["bye"] = "bye"


class Restart(_Message):
    """A worker is lost, and all that have stopped go on in another life of the flow: what is other
    there for the one that is told."""

    kind: Literal["again"] = "again"
    worker: int
    workers: int
    execution: int
    checkpoint: int | None
    token: bytes = Field(repr=False)
    door: Address
    door_key: Key


Knock = Register | Ready | Alive
Reply = MemberList | Rejection | Go | HeartbeatAck
ToWorker = WorkerHeartbeat | AddPeer | DropPeer | StopExecution | Exit | Restart
FromWorker = WorkerHeartbeat | Log | Report | PeerAdded | Released | Failure | Done | Stopped


class Reader(Generic[M]):
    """Reads the messages of one direction.

    >>> FROM_WORKER.read(WorkerHeartbeat(inflight=3).to_bytes())
    WorkerHeartbeat(kind='beat', counters={}, inflight=3, ..., sent={}, taken={})
    >>> TO_WORKER.read(Done(counters={}).to_bytes())
    Traceback (most recent call last):
    ValueError: no message that is expected here
    """

    def __init__(self, adapter: TypeAdapter[M]) -> None:
        self._adapter = adapter

    def read(self, data: bytes) -> M:
        """The message of some bytes. Raises ValueError."""
        try:
            said = msgpack.unpackb(data, strict_map_key=False)
            return self._adapter.validate_python(said, strict=True)
        # Of a key that cannot be one msgpack raises TypeError.
        except (ValidationError, ValueError, TypeError, UnpackException) as error:
            raise ValueError("no message that is expected here") from error


_KIND = Field(discriminator="kind")
KNOCK: Reader[Knock] = Reader(TypeAdapter(Annotated[Knock, _KIND]))
REPLY: Reader[Reply] = Reader(TypeAdapter(Annotated[Reply, _KIND]))
TO_WORKER: Reader[ToWorker] = Reader(TypeAdapter(Annotated[ToWorker, _KIND]))
FROM_WORKER: Reader[FromWorker] = Reader(TypeAdapter(Annotated[FromWorker, _KIND]))
FROM_PEER: Reader[PeerLeft] = Reader(TypeAdapter(PeerLeft))
