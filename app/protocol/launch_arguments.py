"""What a task is told: everything a worker needs, as the bytes that travel with its Spark job."""

from __future__ import annotations

import msgspec
from msgspec import field, structs

from meander.app.flow.loader import Source
from meander.app.protocol.messages import Restart
from meander.app.protocol.registration import LaunchToken
from meander.dataflow.interfaces import Wakeup, WorkerContext
from meander.dataflow.keepalive import Keepalive
from meander.schemas.struct import FrozenStruct
from meander.state.keys.ids import WorkerId


class Arguments(FrozenStruct, forbid_unknown_fields=True):
    """One worker's arguments; they hold its launch token and perhaps secrets of Kafka."""

    flow: str
    execution: int
    worker: int
    joins: bool
    """Whether the flow runs already."""
    workers: int
    """With how many it began."""
    token: bytes
    door: str
    door_key: bytes
    entry: str
    files: dict[str, bytes]
    environ: dict[str, str]
    """Environment variables that the flow's module may read."""
    kafka: dict[str, str]
    prefix: str
    until_end: bool
    start: str
    topics: dict[str, str]
    """By name the id of each topic that the flow reads."""
    skip_lost: bool
    checkpoint: int | None
    """The offset of the one that the flow starts from; None where it starts without states."""
    heartbeat_timeout: float
    """Seconds without a word from the coordinator after which the worker ends itself."""
    startup_timeout: float
    """Seconds that registration may take."""
    log_level: int
    outside: dict[str, dict[str, str]] = field(default_factory=dict)
    """The settings of the topics that sinks write to."""

    def __repr__(self) -> str:
        """Leave out the launch token and the settings of Kafka."""
        return f"Arguments(flow={self.flow!r}, worker={self.worker})"

    def anew(self, again: Restart) -> Arguments:
        """Those in another life of the flow, for the same process."""
        return structs.replace(self, **structs.asdict(again), joins=False)

    def again(self) -> Restart:
        """What a worker that outlives another needs of them."""
        return Restart(
            worker=self.worker, workers=self.workers, execution=self.execution,
            checkpoint=self.checkpoint, token=self.token, door=self.door, door_key=self.door_key,
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """As they travel."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Arguments:
        """The inverse. Raises ValueError."""
        return msgspec.msgpack.decode(data, type=Arguments)

    @property
    def ticket(self) -> LaunchToken:
        """For the coordinator's door."""
        return LaunchToken(self.token, self.door, self.door_key)

    @property
    def source(self) -> Source:
        """The flow's module."""
        return Source(self.entry, self.files)

    def context(self, wakeup: Wakeup, max_waiting: int, pulse: Keepalive) -> WorkerContext:
        """What connectors get."""
        return WorkerContext(
            self.flow, self.prefix, WorkerId(self.worker), self.workers, dict(self.kafka),
            self.until_end, self.start, wakeup, max_waiting, pulse, self.outside,
            self.topics, self.skip_lost,
        )  # fmt: skip
