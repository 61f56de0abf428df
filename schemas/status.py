"""Events on the status topic: one JSON object per record, distinguished by `type`.

Guarantees that a reader gets a written event back (`parse_event(e.to_bytes()) == e`). Times have
two forms. `time` holds milliseconds since 1970, as users write them. `at` holds the logical time,
milliseconds x 2**20 + a sequence number, as results carry it. Readers ignore unknown fields, so
later versions may add fields.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import field

from meander.schemas.struct import FrozenStruct


class _Event(FrozenStruct, tag_field="type"):
    """An event that has a type, which names its class on the topic."""

    @property
    def type(self) -> str:
        """Return its type on the topic."""
        return str(self.__struct_config__.tag)

    def to_bytes(self) -> bytes:
        """Return the bytes of the event on the topic."""
        return msgspec.json.encode(self)


class _CommandEvent(_Event):
    id: str
    """The id of the command."""

    @property
    def key(self) -> str:
        """Return its record key."""
        return self.id


class Queued(_CommandEvent, tag="queued"):
    """An event that reports a queued command, as other commands still move some of its bins.

    >>> Queued(id="m2", offset=4, after=["m1"]).to_bytes()
    b'{"type":"queued","id":"m2","offset":4,"after":["m1"]}'
    """

    offset: int
    """The offset of the command on the control topic."""
    after: list[str]


class Accepted(_CommandEvent, tag="accepted"):
    """An event that reports the acceptance of a command.

    >>> Accepted(id="m1", offset=3, time=5, at=5 << 20, strategy="fluid", bins=[1]).to_bytes()[:36]
    b'{"type":"accepted","id":"m1","offset'
    """

    offset: int
    """The offset of the command on the control topic, as an id may be repeated by mistake."""
    time: int | None
    at: int | None
    """The logical time of its first round; None where each round gets its time after the prefetch
    of its bins."""
    strategy: Literal["batched", "fluid", "all-at-once"]
    bins: list[int]
    precopy: bool = False
    operator: str = ""
    """The operator with its own moves whose bins move; '' for all operators that move together."""


class Planned(_CommandEvent, tag="planned"):
    """An event that reports the plan of a command in parts: each part lists some bin moves, in
    order."""

    offset: int
    moves: list[tuple[int, int, int, int, int]]
    """Moves, each as round, bin, old owner, new owner and bytes (approximately)."""
    rounds: int
    """The number of rounds in all parts."""
    estimate: float | None
    """The estimated seconds of the whole migration at the rate so far; None without a rate."""
    last: bool
    """Whether this is the last part."""


class BinUnreadable(_CommandEvent, tag="bin_unreadable"):
    """An event that reports unreadable layers of a bin, which its owner writes again."""

    bin: int
    operator: str
    reason: str
    kept_in_place: bool
    """Whether the bin stays at its owner; otherwise it moves after the write."""


class BinMoved(_CommandEvent, tag="bin_moved"):
    """An event that reports a bin that its new owner has installed for every stateful operator."""

    bin: int
    source: int = field(name="from")
    target: int = field(name="to")
    at: int
    """The logical time from which its records belong to the new owner."""
    bytes: int
    keys: int
    """The number of keys. A key counts in each layer that holds it."""
    ms: float
    """Milliseconds from the permission to leave to the install."""


class Completed(_CommandEvent, tag="completed"):
    """An event that reports that all bins of a command are at their targets, or that the flow's
    sources have ended."""

    ms: float
    bins: int
    """The number of moved bins; the other bins were already there."""
    bytes: int
    unmoved: list[int] = field(default_factory=list)
    """The bins that have not moved, as the sources have ended or a layer was unreadable."""


class LogicAccepted(_CommandEvent, tag="logic_accepted"):
    """An event that reports the acceptance of a command that changes logic. All workers load and
    check the versions next."""

    offset: int
    """The offset of the command on the control topic."""
    operators: list[str]


class LogicChanged(_CommandEvent, tag="logic_changed"):
    """An event that reports that operators apply another version of their logic from a logical time
    on, on every worker."""

    time: int
    """Milliseconds since 1970."""
    at: int
    """The logical time."""
    versions: dict[str, str]
    """The version of each operator, in words."""
    ms: float


class Reconfiguring(_CommandEvent, tag="reconfiguring"):
    """An event that reports the start of a reconfiguration, with its operations in words.

    >>> Reconfiguring(id="r1", offset=3, by="ann@host", why="load", operations=[]).key
    'r1'
    """

    offset: int
    """The offset of the command on the control topic."""
    by: str
    """The user or the policy that asked for it."""
    why: str
    operations: list[str]
    members: list[int] = field(default_factory=list)
    """The ids of the workers at its start. Empty in events of earlier versions."""


class PlanCompared(_CommandEvent, tag="plan_compared"):
    """An event that reports the plan in force, and the operations that lead to another plan."""

    offset: int
    """The offset of the command on the control topic."""
    plan: dict[str, object]
    """The sections of the plan in force, as a document has them."""
    places: dict[str, str]
    """Where each worker runs, in words."""
    operations: list[str]


class PlanInForce(_CommandEvent, tag="plan_in_force"):
    """An event that reports that a new plan is in force on every worker, from one logical time
    on. Workers that it does not have leave next."""

    time: int
    """Milliseconds since 1970."""
    at: int
    """The logical time."""
    versions: dict[str, str]
    """The new version of each operator whose logic changes, in words."""
    prepare_ms: float | None
    """Milliseconds from the start of the preparation to the decision. None, as the next field is,
    where a restart brings it into force."""
    synchronise_ms: float | None
    """Milliseconds from the decision until all workers had applied it."""


class Reconfigured(_CommandEvent, tag="reconfigured"):
    """An event that reports the end of a reconfiguration: its plan is in force, and the workers
    that it does not have are gone."""

    offset: int
    """The offset of the command on the control topic."""
    workers: int
    """The number of workers."""
    ms: float | None
    """Milliseconds since the command began. None where a restart has completed it."""


class RolledBack(_CommandEvent, tag="rolled_back"):
    """An event that reports that a reconfiguration has failed before its time, so the old plan
    stays in force."""

    offset: int
    """The offset of the command on the control topic."""
    reason: str


class Aborted(_CommandEvent, tag="aborted"):
    """An event that reports the end of a command by another command, or by the end of an execution.
    Running moves complete in the first case; in the second, the next execution keeps completed
    moves."""

    by: str
    """The command that ended it; '' where none did."""
    ms: float | None = None
    """Milliseconds since it was accepted. None, as the next fields are, where the end of an
    execution has ended it."""
    bins: int | None = None
    """The number of moved bins."""
    bytes: int | None = None
    unmoved: list[int] | None = None
    """The bins that have not moved."""
    reason: str = ""
    offset: int | None = None
    """The offset of the command on the control topic. None in events of earlier versions."""


class PartitionMoved(_CommandEvent, tag="partition_moved"):
    """An event that reports a new reader of a source partition."""

    source: str
    partition: int
    worker: int
    """The worker that reads the partition now."""


class LayerUnreadable(_Event, tag="layer_unreadable"):
    """An event that reports an unreadable layer, which its worker writes again from the state.

    >>> LayerUnreadable(worker=1, reason="").key
    'worker 1'
    """

    worker: int
    reason: str

    @property
    def key(self) -> str:
        """Return its record key."""
        return f"worker {self.worker}"


class ReplayChecked(_Event, tag="replay_checked"):
    """An event that reports the replay check of a sink: the replayed results against those
    committed before this execution.

    >>> ReplayChecked(sink="counts", results=5, wrong=[]).key
    'counts'
    """

    sink: str
    results: int
    """The number of committed results in the comparison."""
    wrong: list[str]
    """The differences, in words. A flow with differences fails unless it allows nondeterminism."""

    @property
    def key(self) -> str:
        """Return its record key."""
        return self.sink


class PartitionAdded(_Event, tag="partition_added"):
    """An event that reports a new partition of a topic, which the running flow reads.

    >>> PartitionAdded(source="lines", partition=4, worker=1, time=5, at=5 << 20).key
    'lines'
    """

    source: str
    partition: int
    worker: int
    """The worker that reads the partition."""
    time: int
    at: int
    """A lower bound of its records' logical times."""

    @property
    def key(self) -> str:
        """Return its record key."""
        return self.source


class CheckpointAccepted(_CommandEvent, tag="checkpoint_accepted"):
    """An event that reports the acceptance of a command for a checkpoint, or for a savepoint before
    a stop.

    >>> CheckpointAccepted(id="c1", offset=3).to_bytes()
    b'{"type":"checkpoint_accepted","id":"c1","offset":3}'
    """

    offset: int
    """The offset of the command on the control topic."""


class Rescaling(_CommandEvent, tag="rescaling"):
    """An event that reports the acceptance of a command to add or remove workers.

    >>> Rescaling(id="r1", offset=3, workers=2, joining=[1], leaving=[]).to_bytes()
    b'{"type":"rescaling","id":"r1","offset":3,"workers":2,"joining":[1],"leaving":[]}'
    """

    offset: int
    """The offset of the command on the control topic."""
    workers: int
    """The target number of workers."""
    joining: list[int]
    leaving: list[int]


class Joined(_CommandEvent, tag="joined"):
    """An event that reports a worker that has joined."""

    worker: int


class JoinFailed(_CommandEvent, tag="join_failed"):
    """An event that reports a worker that could not join; the flow continues without it."""

    worker: int
    reason: str


class Left(_CommandEvent, tag="left"):
    """An event that reports a worker that has left after it gave all its bins and partitions
    away."""

    worker: int
    counters: dict[str, int]
    """The last counters of the worker; the flow's totals still include them."""


class Rescaled(_CommandEvent, tag="rescaled"):
    """An event that reports the end of a rescale: each joining or leaving worker has succeeded or
    failed."""

    workers: int
    """The number of workers."""
    ms: float
    reason: str = ""
    """The steps that failed, and why: joining workers without a share, or a useless worker that
    remains."""


class Checkpointed(_CommandEvent, tag="checkpointed"):
    """An event that reports a complete checkpoint, from which the flow may restart.

    `policy` bounds the in-flight records (see `dataflow.api.checkpointing`).
    """

    number: int
    """The number of the checkpoint in the flow. The id of its command is '' for a periodic
    checkpoint."""
    savepoint: str
    """The savepoint's name; '' for a checkpoint that retention may delete."""
    policy: str
    """The policy for in-flight records."""
    ms: float
    """Milliseconds from the start until the checkpoint was durable."""
    alignment_ms: float
    """The part of them before the snapshot, for the alignment."""
    write_ms: float
    """The part of them until all workers had written their parts."""
    state_bytes: int
    """The bytes of all layers that it names on the state topic."""
    in_flight_bytes: int
    in_flight: int
    """The number of in-flight records."""


class CheckpointFailed(_CommandEvent, tag="checkpoint_failed"):
    """An event that reports a cancelled checkpoint; the flow continues."""

    number: int
    reason: str


class CommandRejected(_CommandEvent, tag="rejected"):
    """An event that reports the rejection of a command; the reason names the remedy."""

    offset: int
    """The offset of the command on the control topic."""
    reason: str


class Migration(FrozenStruct):
    """A migration that a status snapshot shows with its progress."""

    id: str
    state: Literal["queued", "moving", "completed", "aborted", "rejected", "ended"]
    """The state: 'moving' from its acceptance on, 'ended' with its flow."""
    strategy: str = ""
    at_ms: int | None = None
    bins: int = 0
    moved: int = 0
    already_there: int = 0
    """The number of bins that were already there; known once the migration is complete."""
    bytes: int = 0
    keys: int = 0
    ms: float | None = None
    reason: str = ""
    precopy: bool = False
    fetched: int = 0
    """The number of prefetched bins that have not moved."""
    eta: float | None = None
    """Estimated seconds until its end at the rate so far; None without a rate."""


class PartitionLag(FrozenStruct):
    """A lag that counts the records of one partition that the sinks have not passed."""

    topic: str
    partition: int
    records: int


class Throughput(FrozenStruct):
    """A throughput of one operator on all workers over the last heartbeats, with its latency since
    the start of the flow."""

    operator: str
    received: float
    sent: float
    count: int
    """The number of measured records. A measurement starts at an input of the operator. It ends
    when the record is applied, sent on or, at a sink, delivered."""
    p50: float | None
    p99: float | None
    """The median and the 99th percentile of their latency in seconds, as bounds of buckets. None
    beyond the largest bound, and without measurements."""
    keys: int = 0
    """About the number of keys with states."""
    bytes: int = 0
    """The bytes of its layers on the state topic."""
    forgotten: int = 0
    """The number of keys that the operator has forgotten."""


class LinkQueue(FrozenStruct):
    """A link queue that holds bytes one worker has sent to a peer. The peer had not received them
    at its last heartbeat."""

    worker: int
    to: int
    bytes: int


class PartitionFrontier(FrozenStruct):
    """A frontier that bounds the times of one source partition."""

    source: str
    partition: int
    worker: int
    """The worker that reads the partition."""
    millis: int
    """Milliseconds since 1970."""


class Latency(FrozenStruct):
    """A latency that all workers together have measured since the start of the flow."""

    of: str
    """'delivery': from the read of a chunk until all sinks have passed its results. Other versions
    may have further values."""
    name: str
    """The name of the source."""
    count: int
    """The number of measurements: for 'delivery', chunks of records."""
    seconds: float
    """The sum of all measurements."""
    p50: float | None
    p99: float | None
    """The median and the 99th percentile in seconds, as bounds of buckets; None beyond the largest
    bound."""


class BlockedFrontier(FrozenStruct):
    """A blocked frontier of a probe or sink, with its blocker."""

    probe: str
    by: str
    """The blocker in words."""
    since_ms: int
    """The time of its last advance, milliseconds since 1970."""
    awaited: bool
    """Whether a record that has been read waits for its advance."""
    kind: str
    """The kind of the blocker: 'source', 'operator', 'sink', 'input', 'migration',
    'partition_move' or 'commands'. Newer versions may add further kinds."""
    name: str
    """The name of the source or operator; '' for commands and for partition moves."""
    worker: int | None = None
    partition: int | None = None


class LongCall(FrozenStruct):
    """A long call of a user's function that blocks the loop of a worker."""

    worker: int
    operator: str
    """The operator of the function; '' where the worker could not report it."""
    seconds: float
    """Seconds since the last sign of the loop."""


class _DriverEvent(_Event):
    driver: str
    """The identifier of one run of one driver."""
    execution: int

    @property
    def key(self) -> str:
        """Return its record key."""
        return self.driver


class _LeaseEvent(_DriverEvent):
    heartbeat_timeout: float
    """Seconds of silence after which the driver counts as dead."""


class Claimed(_LeaseEvent, tag="claimed"):
    """An event that claims the flow for a driver, unless another driver is live; see
    `connectors.topics`."""


class Restoring(FrozenStruct):
    """The progress of a restore on all workers: states that they load, and in-flight records that
    continue."""

    bytes: int
    """The bytes read so far on all workers."""
    total: int
    rate: float
    """Bytes per second since its start."""
    eta: float | None
    """Estimated seconds until its end; None before the first bytes."""


class RescaleProgress(FrozenStruct):
    """A rescale, or a migration whose worker starts, with what it waits for."""

    id: str
    """The id of the command."""
    joining: list[int]
    """The workers that have not joined yet."""
    leaving: list[int]
    """The workers that have not left yet."""
    waits_for: str
    """The awaited workers, moves and frontiers in words; '' while it waits for nothing."""


class Heartbeat(_LeaseEvent, tag="heartbeat"):
    """A heartbeat that describes the whole present of a flow, so a reader needs no earlier
    events."""

    workers: int
    lag: int
    """The records on the sources' topics that the flow has not passed."""
    counters: dict[str, int]
    frontiers: dict[str, int]
    """Milliseconds since 1970, by the name of probe or sink."""
    bins: list[int]
    """The number of bins per worker, including bins of operators with their own moves; empty until
    all workers run."""
    moving: list[Migration]
    """The running migrations, the first accepted first."""
    omitted: int
    """The number of further migrations, omitted to bound the size."""
    registered: int = 0
    """The number of workers that have registered with the driver."""
    inflight: list[int] = field(default_factory=list)
    """The bytes that each worker has read and the sinks have not passed; empty until all run."""
    lags: list[PartitionLag] = field(default_factory=list)
    """The lags of the source partitions, the greatest first."""
    lags_omitted: int = 0
    """The number of omitted partitions."""
    throughput: list[Throughput] = field(default_factory=list)
    throughput_omitted: int = 0
    """The number of omitted operators."""
    frontier_blockers: list[BlockedFrontier] = field(default_factory=list)
    """The blocker of each frontier, the longest blocked first."""
    frontier_blockers_omitted: int = 0
    """The number of omitted frontiers."""
    calls: list[LongCall] = field(default_factory=list)
    """The calls of functions that block a worker's loop, the longest first."""
    calls_omitted: int = 0
    """The number of omitted workers with such a call."""
    metrics: str = ""
    """The address of the driver's metrics on its own machine; '' for none."""
    worker_ids: list[int] = field(default_factory=list)
    """The ids of the workers, in the order of `bins` and `inflight`."""
    spilled: list[int] = field(default_factory=list)
    """The bytes of waiting records on each worker's disk; empty until all run."""
    executors: list[str] = field(default_factory=list)
    """The Spark executor of each worker with its host; '' where a worker does not know it."""
    queues: list[LinkQueue] = field(default_factory=list)
    """The queued bytes of each link, the most first."""
    queues_omitted: int = 0
    """The number of omitted links."""
    partitions: list[PartitionFrontier] = field(default_factory=list)
    """The frontier of each partition, the earliest first."""
    partitions_omitted: int = 0
    """The number of omitted partitions."""
    latencies: list[Latency] = field(default_factory=list)
    """The measured latencies, the slowest first."""
    latencies_omitted: int = 0
    """The number of omitted sources."""
    migrations_completed: int = 0
    bins_moved: int = 0
    """The number of moved bins since the driver started."""
    restoring: Restoring | None = None
    """The progress of the restore; None once it is complete."""
    rescale: RescaleProgress | None = None
    """The rescale in progress, or the first one in the queue."""
    without_bins: list[int] = field(default_factory=list)
    """The workers that own no bin, where the flow has a bin for each."""


class Started(_DriverEvent, tag="started"):
    """An event that reports that all workers run."""

    workers: int


class Recovering(_DriverEvent, tag="recovering"):
    """An event that reports the loss of a worker and the restart of the flow from a checkpoint or
    its start."""

    checkpoint: int
    """The number of the checkpoint; 0 where no checkpoint exists and no result is committed."""
    reason: str
    """The lost worker, and the cause."""
    renumbered: dict[int, int] = field(default_factory=dict)
    """The new ids of workers that get another one: an execution numbers its workers from 0."""

    @property
    def restart_point(self) -> str:
        """Return the place of the restart in words."""
        return f"checkpoint {self.checkpoint}" if self.checkpoint else "its start"


class Finished(_DriverEvent, tag="finished"):
    """An event that reports the end of a bounded run, or a stop by the user."""

    counters: dict[str, int]


class Failed(_DriverEvent, tag="failed"):
    """An event that reports the end of the flow by an error."""

    reason: str


Event = (
    Queued | Accepted | Planned | BinMoved | BinUnreadable | LayerUnreadable | Completed | Aborted
    | LogicAccepted | LogicChanged | CommandRejected | ReplayChecked
    | Reconfiguring | PlanInForce | Reconfigured | RolledBack | PlanCompared
    | Rescaling | Joined | JoinFailed | Left | PartitionMoved | PartitionAdded | Rescaled
    | CheckpointAccepted | Checkpointed | CheckpointFailed
    | Claimed | Heartbeat | Started | Recovering | Finished | Failed
)  # fmt: skip

_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def parse_event(data: bytes) -> Event:
    """Return the event of a record on the topic. Raise ValueError for other bytes.

    >>> parse_event(b'{"type":"rejected","id":"m1","offset":3,"reason":"no","added":"later"}')
    CommandRejected(id='m1', offset=3, reason='no')
    """
    return _DECODER.decode(data)
