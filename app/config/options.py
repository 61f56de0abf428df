"""How a flow is run: what the command line asks for, or a program that calls `coordinator.run`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Options:
    """One run's options; times are in seconds."""

    kafka: dict[str, str] = field(repr=False)
    """librdkafka's settings; they may hold secrets."""
    workers: int = 2
    prefix: str = ""
    """Begins the names of the flow's internal topics."""
    host: str = "127.0.0.1"
    """This machine's address by which its workers reach it."""
    until_end: bool = False
    """Stop at what the source topics hold now."""
    start: str = "earliest"
    """Where sources begin: 'earliest', 'latest' or milliseconds since 1970."""
    begin_from: str | None = None
    """Which checkpoint to go on from, by its number or its name as a savepoint; None for the
    newest."""
    allow_dropped_state: bool = False
    """Whether states and records in flight may be dropped of operators that the flow has not."""
    allow_nondeterminism: bool = False
    """Whether a flow that delivers exactly once goes on where its replay gives other results than
    those that are out."""
    skip_lost: bool = False
    """Whether a flow goes on where retention has deleted records that it was to read."""
    heartbeat_timeout: float = 10.0
    """How long a worker, or the driver, may be silent before it counts as dead."""
    wait: bool = False
    """Whether to wait for the end of another driver's heartbeat timeout, in place of being
    refused."""
    startup_timeout: float = 30.0
    """How long workers may take to start, and again to open what they read and write."""
    metrics_port: int | None = None
    """Where the driver serves metrics, on 127.0.0.1; 0 is any free port, None for nowhere."""
    log_level: int = 20
    """What workers log to the driver, as `logging` numbers it."""
