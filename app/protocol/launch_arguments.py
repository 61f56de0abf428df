"""What a task is told: everything a worker needs, as the bytes that travel with its Spark job."""

from __future__ import annotations

import msgpack
from pydantic import BaseModel, ConfigDict, Field

from meander.app.flow.loader import Source
from meander.app.protocol.messages import Restart
from meander.app.protocol.registration import LaunchToken
from meander.dataflow.interfaces import Wakeup, WorkerContext
from meander.dataflow.keepalive import Keepalive
from meander.state.keys.ids import WorkerId


class Arguments(BaseModel):
    """One worker's arguments; they hold its launch token and perhaps secrets of Kafka."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    flow: str
    execution: int
    worker: int
    joins: bool
    """Whether the flow runs already."""
    workers: int
    """With how many it began."""
    token: bytes = Field(repr=False)
    door: str
    door_key: bytes
    entry: str
    files: dict[str, bytes] = Field(repr=False)
    environ: dict[str, str]
    """Environment variables that the flow's module may read."""
    kafka: dict[str, str] = Field(repr=False)
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
    outside: dict[str, dict[str, str]] = {}
    """The settings of the topics that sinks write to."""

    def anew(self, again: Restart) -> Arguments:
        """Those in another life of the flow, for the same process."""
        changed = again.model_dump(exclude={"kind"})
        return self.model_copy(update={**changed, "joins": False})

    def again(self) -> Restart:
        """What a worker that outlives another needs of them."""
        return Restart(
            worker=self.worker, workers=self.workers, execution=self.execution,
            checkpoint=self.checkpoint, token=self.token, door=self.door, door_key=self.door_key,
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """As they travel."""
        return bytes(msgpack.packb(self.model_dump()))

    @staticmethod
    def from_bytes(data: bytes) -> Arguments:
        """The inverse. Raises ValueError."""
        return Arguments.model_validate(msgpack.unpackb(data))

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
