"""When a flow takes checkpoints by itself, and how much may be in flight in them.

`unaligned` freezes at once, with all that is in flight. `aligned` has the sources hold what is
later than all that they have sent, and freezes once that has passed the sinks. So does
`unaligned_max_inflight`, which waits only until so many bytes at most are left (FLIP-76).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from meander.schemas.errors import SetupError

Policy = Literal["unaligned", "unaligned_max_inflight", "aligned"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """How a flow takes its checkpoints; what is wrong raises SetupError.

    >>> Checkpointing(interval=10.0).room("unaligned_max_inflight")
    1048576
    """

    interval: float | None = None
    """Seconds from the beginning of one to that of the next; None: only when a command asks."""
    policy: Policy = "unaligned"
    max_inflight: int = 1 << 20
    """Bytes, as sources have read them, for `unaligned_max_inflight`; what a recovery has put back
    does not count."""
    min_pause: float = 0.0
    """Seconds from the end of one to the beginning of the next, at least."""
    timeout: float = 600.0
    """Seconds after which one is given up."""
    tolerable_failures: int | None = None
    """How many in a row may be given up before the flow ends; None: any number."""
    retained: int = 3
    """How many are there to go on from, savepoints aside; older ones are retired."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            known = ", ".join(map(repr, POLICIES))
            raise SetupError("a flow's checkpoints", f"their policy is {self.policy!r}",
                             f"choose one of {known}")  # fmt: skip
        wrong = {
            "interval": self.interval is not None and not self.interval > 0,
            "max_inflight": self.max_inflight < 0,
            "min_pause": not self.min_pause >= 0,
            "timeout": not self.timeout > 0,
            "tolerable_failures": self.tolerable_failures is not None
            and self.tolerable_failures < 0,
            "retained": self.retained < 1,
        }
        for name in [name for name, is_wrong in wrong.items() if is_wrong]:
            raise SetupError("a flow's checkpoints", f"their {name} is {getattr(self, name)}",
                             "give it a number that is greater")  # fmt: skip

    def room(self, policy: Policy) -> int | None:
        """How many bytes of records may be in flight at the freeze; None where any number may."""
        return {"unaligned": None, "unaligned_max_inflight": self.max_inflight, "aligned": 0}[
            policy
        ]


ON_COMMAND: Final = Checkpointing()
"""Only when a command asks for one."""
