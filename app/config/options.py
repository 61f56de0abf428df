"""The options of a run, from the command line or from a program that calls `driver.run`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from meander.schemas.option_values import (
    checked_choice,
    checked_flag,
    checked_number,
    checked_text,
    checked_whole,
)

OnStop = Literal["checkpoint", "savepoint", "none"]
"""What a flow takes before SIGTERM ends it."""
MAX_PORT = 65_535
"""The greatest port."""


@dataclass(frozen=True, slots=True)
class Options:
    """A set of options of one run; times are in seconds."""

    kafka: dict[str, str] = field(repr=False)
    """The settings of librdkafka, which may contain secrets."""
    workers: int = 2
    """The workers of the first start; 0 for a program that prepares a flow and runs none."""
    prefix: str = ""
    """The prefix of the names of the flow's internal topics."""
    host: str = "127.0.0.1"
    """The address at which workers reach this machine."""
    until_end: bool = False
    """Whether the run ends at the present ends of the source topics."""
    fire_timers: bool = False
    """Whether a run that ends at the ends of its topics fires the timers behind the last record."""
    start: str = "earliest"
    """Where sources begin: 'earliest', 'latest', milliseconds since 1970 or a time with a zone."""
    begin_from: str | None = None
    """The checkpoint to restore, by its number or the name of a savepoint; None for the newest."""
    allow_dropped_state: bool = False
    """Whether the start may drop states and in-flight records of operators that are gone."""
    allow_nondeterminism: bool = False
    """Whether an exactly-once flow continues where replayed results differ from committed ones."""
    skip_lost: bool = False
    """Whether a flow continues where retention has deleted records that it has not read."""
    heartbeat_timeout: float = 10.0
    """The silence after which a worker, or the driver, counts as dead."""
    wait: bool = False
    """Whether to wait for the heartbeat timeout of another driver instead of failing at once."""
    startup_timeout: float = 30.0
    """The time for workers to start, and again to open their topics."""
    restart_attempts: int = 3
    """The failures without a new checkpoint that the flow survives within `restart_window`."""
    restart_backoff: float = 1.0
    """The pause before the second of these restarts; it doubles with each further one."""
    restart_window: float = 600.0
    """The time for which a failure counts."""
    on_stop: OnStop = "checkpoint"
    """What the flow takes before SIGTERM ends it."""
    on_stop_timeout: float = 30.0
    """The time that it may take; 0 for none at all."""
    metrics_port: int | None = None
    """The port of the driver's metrics; 0 for any free port, None for no metrics."""
    metrics_host: str = "127.0.0.1"
    """The address of this machine on which the driver serves them."""
    log_level: int = 20
    """The level at which workers log to the driver, as a number of `logging`."""
    policies: tuple[str, ...] = ()
    """The policies besides those of the flow, each as `NAME[:key=value,...]`."""
    policies_dry_run: bool = False
    """Whether the driver only logs what policies propose."""
    policy_interval: float = 10.0
    """The time from one decision of the policies to the next, which their metrics cover."""
    plan_cooldown: float = 0.0
    """The least time from one plan that comes into force to the start of the next."""

    def __post_init__(self) -> None:
        """Raise SetupError for a wrong option."""
        checked_whole("Options", "workers", self.workers, 0)
        checked_whole("Options", "restart_attempts", self.restart_attempts, 0)
        checked_whole("Options", "log_level", self.log_level, 0)
        if self.metrics_port is not None:
            checked_whole("Options", "metrics_port", self.metrics_port, 0, MAX_PORT)
        for name in _TIMES:
            checked_number("Options", name, getattr(self, name), above=0)
        for name in _TIMES_OR_NONE:
            checked_number("Options", name, getattr(self, name), 0)
        for name in ("prefix", "host", "start", "metrics_host"):
            checked_text("Options", name, getattr(self, name))
        if self.begin_from is not None:
            checked_text("Options", "begin_from", self.begin_from)
        for name in _FLAGS:
            checked_flag("Options", name, getattr(self, name))
        checked_choice("Options", "on_stop", self.on_stop, get_args(OnStop))


_TIMES = ("heartbeat_timeout", "startup_timeout", "restart_window", "policy_interval")
_TIMES_OR_NONE = ("restart_backoff", "on_stop_timeout", "plan_cooldown")
_FLAGS = (
    "until_end", "fire_timers", "allow_dropped_state", "allow_nondeterminism", "skip_lost", "wait",
    "policies_dry_run",
)  # fmt: skip
