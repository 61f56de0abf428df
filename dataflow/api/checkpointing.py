"""The options of a flow's checkpoints: their interval, and how many bytes may be in flight in them.

An `unaligned` checkpoint freezes the flow at once and stores its in-flight records. For an
`aligned` checkpoint the sources pause until all sent records have reached the sinks. Policy
`unaligned_max_inflight` pauses them until at most a number of bytes is in flight (FLIP-76).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_number, checked_whole

Policy = Literal["unaligned", "unaligned_max_inflight", "aligned"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """The options that control the checkpoints of a flow. Raises SetupError for a wrong value.

    >>> Checkpointing(interval=10.0).max_bytes_at_freeze("unaligned_max_inflight")
    1048576
    """

    interval: float | None = None
    """Seconds between the starts of two checkpoints. None: only a command starts one."""
    policy: Policy = "unaligned"
    max_inflight: int = 1 << 20
    """Bytes in flight for `unaligned_max_inflight`, as sources have read them. Restored records
    do not count."""
    min_pause: float = 0.0
    """Seconds from the end of a checkpoint to the start of the next, at least."""
    timeout: float = 600.0
    """Seconds after which the coordinator cancels a checkpoint."""
    tolerable_failures: int | None = None
    """The number of consecutive failed checkpoints that the flow tolerates before it ends. None:
    any number."""
    retained: int = 3
    """The number of retained checkpoints besides savepoints. The coordinator drops older ones."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            known = ", ".join(map(repr, POLICIES))
            raise SetupError("Checkpointing", f"its policy is {self.policy!r}",
                             f"choose one of {known}")  # fmt: skip
        if self.interval is not None:
            checked_number("Checkpointing", "interval", self.interval, above=0)
        checked_whole("Checkpointing", "max_inflight", self.max_inflight, 0, unit="bytes")
        checked_number("Checkpointing", "min_pause", self.min_pause, 0)
        checked_number("Checkpointing", "timeout", self.timeout, above=0)
        if self.tolerable_failures is not None:
            checked_whole("Checkpointing", "tolerable_failures", self.tolerable_failures, 0)
        checked_whole("Checkpointing", "retained", self.retained, 1)

    def max_bytes_at_freeze(self, policy: Policy) -> int | None:
        """Return the bytes that may be in flight at the freeze, or None for any number."""
        bytes = {"unaligned": None, "unaligned_max_inflight": self.max_inflight, "aligned": 0}
        return bytes[policy]


ON_COMMAND: Final = Checkpointing()
"""Options by which only a command starts a checkpoint."""
