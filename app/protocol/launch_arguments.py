"""The launch arguments of a worker, as bytes that travel with its Spark job."""

from __future__ import annotations

import msgspec
from msgspec import field, structs

from meander.app.loading.loader import SourceFiles
from meander.app.protocol.messages import Restart
from meander.app.protocol.registration import LaunchToken
from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.dataflow.interfaces import Wakeup, WorkerContext
from meander.dataflow.keepalive import Keepalive
from meander.schemas.struct import FrozenStruct
from meander.state.keys.ids import WorkerId


class Arguments(FrozenStruct, forbid_unknown_fields=True):
    """A set of one worker's arguments, with its launch token and perhaps secrets of Kafka."""

    flow: str
    execution: int
    worker: int
    joins: bool
    """Whether the worker joins a running flow."""
    workers: int
    """The number of workers at the start of the execution."""
    token: bytes
    server: str
    server_key: bytes
    entry: str
    files: dict[str, bytes]
    environ: dict[str, str]
    """Environment variables that the flow's module may read, perhaps with secrets of a registry."""
    kafka: dict[str, str]
    prefix: str
    until_end: bool
    start: str
    topics: dict[str, str]
    """The id of each topic that the flow reads, by name."""
    sources: tuple[str, ...]
    """The sources of the flow, by number."""
    skip_lost: bool
    checkpoint: int | None
    """The offset of the checkpoint that the flow starts from; None where it starts without."""
    heartbeat_timeout: float
    """Seconds without a message of the driver after which the worker ends itself."""
    startup_timeout: float
    """Seconds that registration may take."""
    log_level: int
    fire_timers: bool = False
    """Whether the end of a bounded run fires the timers behind its last record."""
    outside: dict[str, dict[str, str]] = field(default_factory=dict)
    """The settings of the topics that sinks write to."""
    start_offsets: dict[str, list[int]] = field(default_factory=dict)
    """The offsets at which the partitions of a source start without a checkpoint, by source."""
    resources: Resources = ANYWHERE
    """The executor or host on which the worker must run; None for any."""

    def __repr__(self) -> str:
        """Leave out the launch token and the settings of Kafka."""
        return f"Arguments(flow={self.flow!r}, worker={self.worker})"

    def restarted(self, restart: Restart) -> Arguments:
        """Return the arguments of this process in the next execution."""
        return structs.replace(self, **structs.asdict(restart), joins=False)

    def restart(self) -> Restart:
        """Return the arguments that a survivor needs in the next execution."""
        return Restart(
            worker=self.worker, workers=self.workers, execution=self.execution,
            checkpoint=self.checkpoint, token=self.token, server=self.server,
            server_key=self.server_key, outside=self.outside,
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """Encode the arguments."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Arguments:
        """Decode the arguments. Raises ValueError."""
        return msgspec.msgpack.decode(data, type=Arguments)

    @property
    def launch_token(self) -> LaunchToken:
        """The token with which the worker registers."""
        return LaunchToken(self.token, self.server, self.server_key)

    @property
    def source(self) -> SourceFiles:
        """The source of the flow's module."""
        return SourceFiles(self.entry, self.files)

    def context(self, wakeup: Wakeup, max_waiting: int, keepalive: Keepalive) -> WorkerContext:
        """Return the context that connectors get."""
        return WorkerContext(
            self.flow, self.prefix, WorkerId(self.worker), self.workers, dict(self.kafka),
            self.until_end, self.start, wakeup, max_waiting, keepalive, self.outside,
            self.topics, self.skip_lost,
        )  # fmt: skip
