"""Events on the status topic: one JSON object per record, distinguished by `type`.

Guarantees that a written event can be read back (`parse_event(e.to_bytes()) == e`). Times come in
two forms. `time` holds milliseconds since 1970, as users write them. `at` holds the logical time,
milliseconds x 2**20 + a sequence number, as results carry it. Readers ignore unknown fields, so
events can grow.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import field

from meander.schemas.struct import FrozenStruct


class _Event(FrozenStruct, tag_field="type"):
    """An event whose `type` names its class on the topic."""

    @property
    def type(self) -> str:
        """Its type on the topic."""
        return str(self.__struct_config__.tag)

    def to_bytes(self) -> bytes:
        """As it lies on the topic."""
        return msgspec.json.encode(self)


class _OfCommand(_Event):
    id: str
    """The command's."""

    @property
    def key(self) -> str:
        """Its record key."""
        return self.id


class Queued(_OfCommand, tag="queued"):
    """A command will be obeyed once others have ended, as they move some of its bins.

    >>> Queued(id="m2", offset=4, after=["m1"]).to_bytes()
    b'{"type":"queued","id":"m2","offset":4,"after":["m1"]}'
    """

    offset: int
    """Where the command lies on the control topic."""
    after: list[str]


class Accepted(_OfCommand, tag="accepted"):
    """A command is obeyed from now on."""

    offset: int
    """Where the command lies on the control topic: an id may be used twice by mistake."""
    time: int | None
    at: int | None
    """From this logical time on (of its first round); None where that is given to each round once
    its bins have been fetched."""
    strategy: Literal["batched", "fluid", "all-at-once"]
    bins: list[int]
    precopy: bool = False
    operator: str = ""
    """Whose bins: of one that moves alone; else of all that move together."""


class Planned(_OfCommand, tag="planned"):
    """What a command would do now, in parts: some of the moves of bins, in order."""

    offset: int
    moves: list[tuple[int, int, int, int, int]]
    """Each: round, bin, from, to, and about how many bytes."""
    rounds: int
    """How many there are in all parts."""
    estimate: float | None
    """Seconds that all of it would take about, by what was seen so far; None where nothing was."""
    last: bool
    """Whether this is the last part."""


class BinUnreadable(_OfCommand, tag="bin_unreadable"):
    """Layers of a bin on the state topic cannot be read; they are written anew."""

    bin: int
    operator: str
    reason: str
    kept_in_place: bool
    """Whether the bin stays where it is; else it moves once they are written."""


class BinMoved(_OfCommand, tag="bin_moved"):
    """A bin has been installed by its new owner, for every stateful operator: once per bin."""

    bin: int
    source: int = field(name="from")
    target: int = field(name="to")
    at: int
    """From this logical time on its records are the new owner's."""
    bytes: int
    keys: int
    """A key that has changed again counts in each layer that has it."""
    ms: float
    """From the permission to leave to the install, milliseconds."""


class Completed(_OfCommand, tag="completed"):
    """All bins of a command are where they should be, or the flow's sources have ended."""

    ms: float
    bins: int
    """How many have moved; the others were there already."""
    bytes: int
    unmoved: list[int] = field(default_factory=list)
    """Those that stay where they are, as the sources have ended, or they could not be read."""


class Aborted(_OfCommand, tag="aborted"):
    """A command has been ended by another; what was moving has moved. Or by the end of a life of
    the flow: then what has moved is as the next one finds it."""

    by: str
    """Which command has; '' where none has."""
    ms: float
    bins: int
    """How many have moved."""
    bytes: int
    unmoved: list[int] = field(default_factory=list)
    """Those that stay where they are."""
    reason: str = ""
    """Why, where no command has."""


class PartitionMoved(_OfCommand, tag="partition_moved"):
    """A partition is read by another worker."""

    source: str
    partition: int
    worker: int
    """Who reads it now."""


class LayerUnreadable(_Event, tag="layer_unreadable"):
    """A layer on the state topic cannot be read; its worker writes it anew out of the state.

    >>> LayerUnreadable(worker=1, reason="").key
    'worker 1'
    """

    worker: int
    reason: str

    @property
    def key(self) -> str:
        """Its record key."""
        return f"worker {self.worker}"


class ReplayChecked(_Event, tag="replay_checked"):
    """What was out of a sink's results when this life began has been compared with what the replay
    has given.

    >>> ReplayChecked(sink="counts", results=5, wrong=[]).key
    'counts'
    """

    sink: str
    results: int
    """How many were out, of those that all come again."""
    wrong: list[str]
    """Where the replay has given others, in words, which only a flow that accepts them outlives."""

    @property
    def key(self) -> str:
        """Its record key."""
        return self.sink


class PartitionAdded(_Event, tag="partition_added"):
    """A topic has got a partition while the flow runs, and it is read.

    >>> PartitionAdded(source="lines", partition=4, worker=1, time=5, at=5 << 20).key
    'lines'
    """

    source: str
    partition: int
    worker: int
    """Who reads it."""
    time: int
    at: int
    """None of its records is of a logical time before."""

    @property
    def key(self) -> str:
        """Its record key."""
        return self.source


class CheckpointAccepted(_OfCommand, tag="checkpoint_accepted"):
    """A command that a checkpoint be taken, or a savepoint before a stop, is obeyed from now on.

    >>> CheckpointAccepted(id="c1", offset=3).to_bytes()
    b'{"type":"checkpoint_accepted","id":"c1","offset":3}'
    """

    offset: int
    """Where the command lies on the control topic."""


class Rescaling(_OfCommand, tag="rescaling"):
    """A command that workers come or go will be obeyed.

    >>> Rescaling(id="r1", offset=3, workers=2, joining=[1], leaving=[]).to_bytes()
    b'{"type":"rescaling","id":"r1","offset":3,"workers":2,"joining":[1],"leaving":[]}'
    """

    offset: int
    """Where the command lies on the control topic."""
    workers: int
    """How many there are to be."""
    joining: list[int]
    leaving: list[int]


class Joined(_OfCommand, tag="joined"):
    """A worker takes part from now on."""

    worker: int


class JoinFailed(_OfCommand, tag="join_failed"):
    """A worker was to join and does not; the flow goes on without it."""

    worker: int
    reason: str


class Left(_OfCommand, tag="left"):
    """A worker has given away all it had, and has gone."""

    worker: int
    counters: dict[str, int]
    """What it had counted; totals go on holding that."""


class Rescaled(_OfCommand, tag="rescaled"):
    """All who were to come and go have done so, or are not waited for any more."""

    workers: int
    """How many there are."""
    ms: float
    reason: str = ""
    """What could not be done besides, and why: newcomers got no share, or one that came for nothing
    stays."""


class Checkpointed(_OfCommand, tag="checkpointed"):
    """A checkpoint has been taken: the flow goes on from it when it is run again.

    `policy` says how much was allowed to be in flight (see `dataflow.api.checkpointing`).
    """

    number: int
    """The n-th of the flow; its command's id is '' where it was taken as it was time."""
    savepoint: str
    """The name under which it is kept; '' of one that is retired by itself."""
    policy: str
    """How much was allowed to be in flight."""
    ms: float
    """From its beginning until it was durable."""
    alignment_ms: float
    """Of these until it was frozen, as less was to be in flight."""
    write_ms: float
    """Then until all workers had written their parts."""
    state_bytes: int
    """What all layers that it names take on the state topic."""
    in_flight_bytes: int
    in_flight: int
    """Records."""


class CheckpointFailed(_OfCommand, tag="checkpoint_failed"):
    """A checkpoint was given up; the flow goes on."""

    number: int
    reason: str


class CommandRejected(_OfCommand, tag="rejected"):
    """A command will not be obeyed; the reason says what would be right."""

    offset: int
    """Where the command lies on the control topic."""
    reason: str


class Migration(FrozenStruct):
    """What has become of one command."""

    id: str
    state: Literal["queued", "moving", "completed", "aborted", "rejected", "ended"]
    """'moving' from its acceptance on, 'ended' with its flow."""
    strategy: str = ""
    at_ms: int | None = None
    bins: int = 0
    moved: int = 0
    already_there: int = 0
    """How many of the bins were there already; known once it is completed."""
    bytes: int = 0
    keys: int = 0
    ms: float | None = None
    reason: str = ""
    precopy: bool = False
    fetched: int = 0
    """How many bins their new owners have fetched ahead, of those that have not moved."""
    eta: float | None = None
    """Seconds until its end, by how fast it went so far; None while that cannot be told."""


class PartitionLag(FrozenStruct):
    """Records of one partition that the sinks have not passed."""

    topic: str
    partition: int
    records: int


class Throughput(FrozenStruct):
    """Records per second of one operator on all workers, over the last heartbeats; and how long
    records were in it since the flow began."""

    operator: str
    received: float
    sent: float
    count: int
    """Records that have been timed, from their coming to an input of the operator until it was
    through with them: they had been applied, sent on or, at a sink, delivered."""
    p50: float | None
    p99: float | None
    """Seconds within which half of these, and 99 of 100, stayed: bounds of buckets; None for longer
    than the largest bound, and where none has been timed."""


class LinkQueue(FrozenStruct):
    """Bytes that one worker had sent to another, and that one had not taken at its last beat."""

    worker: int
    to: int
    bytes: int


class PartitionFrontier(FrozenStruct):
    """How far one partition of a source is: nothing comes from it before."""

    source: str
    partition: int
    worker: int
    """Who reads it."""
    millis: int
    """Since 1970."""


class Latency(FrozenStruct):
    """How long something took since the flow began, on all workers together."""

    of: str
    """'delivery', from a chunk's reading to the passing of all that became of it by all sinks; or
    what an older or newer flow times besides."""
    name: str
    """Of the source."""
    count: int
    """How many: of deliveries, chunks of records."""
    seconds: float
    """All together."""
    p50: float | None
    p99: float | None
    """Seconds within which half of them, and 99 of 100, stayed: bounds of buckets; None for longer
    than the largest bound."""


class BlockedFrontier(FrozenStruct):
    """What holds back the frontier at one probe or sink."""

    probe: str
    by: str
    """In words."""
    since_ms: int
    """Since when the frontier stands, milliseconds since 1970."""
    awaited: bool
    """Whether something that has been read waits for it to move."""
    kind: str
    """What it is: 'source', 'operator', 'sink', 'input', 'migration', 'handover' or 'commands', or
    what a newer flow may add."""
    name: str
    """Of the source or operator; '' for commands and for orders of partitions."""
    worker: int | None = None
    partition: int | None = None


class LongCall(FrozenStruct):
    """A worker whose loop is kept by one call of a function of the flow."""

    worker: int
    operator: str
    """Whose function it is; '' where the worker has not been able to say so."""
    seconds: float
    """Since the loop was last heard of."""


class _OfFlow(_Event):
    driver: str
    """Names one life of one driver."""
    execution: int

    @property
    def key(self) -> str:
        """Its record key."""
        return self.driver


class _Living(_OfFlow):
    heartbeat_timeout: float
    """Seconds of silence after which the driver counts as dead."""


class Claimed(_Living, tag="claimed"):
    """A driver wants the flow, and has it unless another one lives; see `connectors.topics`."""


class Restoring(FrozenStruct):
    """How far the workers are with what the flow's life has begun with: states that are loaded, and
    records in flight that go on."""

    bytes: int
    """Read so far, of all workers."""
    total: int
    rate: float
    """Bytes per second since it began."""
    eta: float | None
    """Seconds, about; None where nothing has been read yet."""


class Heartbeat(_Living, tag="heartbeat"):
    """The flow lives. Says all of its present, so that what came before need not be read."""

    workers: int
    lag: int
    """Records that are on the sources' topics and not yet passed."""
    counters: dict[str, int]
    frontiers: dict[str, int]
    """Milliseconds since 1970, by the name of probe or sink."""
    bins: list[int]
    """How many each worker owns, also of operators that move alone; empty until all workers run."""
    moving: list[Migration]
    """Those under way, the first accepted first."""
    omitted: int
    """How many more of them there are, left out so that this stays small."""
    registered: int = 0
    """How many workers have registered with the driver."""
    inflight: list[int] = field(default_factory=list)
    """Bytes that each worker has read and the sinks have not passed; empty until all run."""
    lags: list[PartitionLag] = field(default_factory=list)
    """Of the source partitions, the greatest first."""
    lags_omitted: int = 0
    """How many partitions are left out."""
    throughput: list[Throughput] = field(default_factory=list)
    throughput_omitted: int = 0
    """How many operators are left out."""
    frontier_blockers: list[BlockedFrontier] = field(default_factory=list)
    """What holds back each frontier, the one that stands longest first."""
    frontier_blockers_omitted: int = 0
    """How many frontiers are left out."""
    calls: list[LongCall] = field(default_factory=list)
    """The calls of functions that keep a worker's loop, the longest first."""
    calls_omitted: int = 0
    """How many workers with such a call are left out."""
    metrics: str = ""
    """Where the driver serves metrics on its own machine; '' for nowhere."""
    worker_ids: list[int] = field(default_factory=list)
    """Those of the workers, in the order of `bins` and `inflight`."""
    spilled: list[int] = field(default_factory=list)
    """Bytes of records that wait on each worker's disk; empty until all run."""
    queues: list[LinkQueue] = field(default_factory=list)
    """What waits on each link, the most first."""
    queues_omitted: int = 0
    """How many links are left out."""
    partitions: list[PartitionFrontier] = field(default_factory=list)
    """How far each partition is, the earliest first."""
    partitions_omitted: int = 0
    """How many partitions are left out."""
    latencies: list[Latency] = field(default_factory=list)
    """The slowest first; what has not been timed yet is not among them."""
    latencies_omitted: int = 0
    """How many sources are left out."""
    migrations_completed: int = 0
    bins_moved: int = 0
    """How many there have been since the driver began."""
    restoring: Restoring | None = None
    """None once all is here."""


class Started(_OfFlow, tag="started"):
    """All workers run."""

    workers: int


class Recovering(_OfFlow, tag="recovering"):
    """A worker is lost, and the flow goes on from a checkpoint, or from its start."""

    checkpoint: int
    """Its number; 0 where there is none yet, and no result has left."""
    reason: str
    """Which worker, and how it was lost."""

    @property
    def place(self) -> str:
        """From where, in words."""
        return f"checkpoint {self.checkpoint}" if self.checkpoint else "its start"


class Finished(_OfFlow, tag="finished"):
    """A bounded run has come to its end, or the user stopped it."""

    counters: dict[str, int]


class Failed(_OfFlow, tag="failed"):
    """The flow has ended with an error."""

    reason: str


Event = (
    Queued | Accepted | Planned | BinMoved | BinUnreadable | LayerUnreadable | Completed | Aborted
    | CommandRejected | ReplayChecked
    | Rescaling | Joined | JoinFailed | Left | PartitionMoved | PartitionAdded | Rescaled
    | CheckpointAccepted | Checkpointed | CheckpointFailed
    | Claimed | Heartbeat | Started | Recovering | Finished | Failed
)  # fmt: skip

_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def parse_event(data: bytes) -> Event:
    """An event as it lies on the topic. Raises ValueError for anything else.

    >>> parse_event(b'{"type":"rejected","id":"m1","offset":3,"reason":"no","added":"later"}')
    CommandRejected(id='m1', offset=3, reason='no')
    """
    return _DECODER.decode(data)
