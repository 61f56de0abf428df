"""A record of the plans topic: a plan that was applied, by whom, when, why, and its outcome."""

from __future__ import annotations

from typing import Literal

import msgspec

from meander.schemas.struct import FrozenStruct

Outcome = Literal["started", "in force", "rolled back", "rejected"]


class PlanRecord(FrozenStruct):
    """A plan and its outcome so far. A later record of the same id replaces an earlier one.

    >>> record = PlanRecord("p1", "ann@host", "load", 1_700_000_000_000, ["worker 2: starts"])
    >>> PlanRecord.from_bytes(record.to_bytes()) == record
    True
    """

    id: str
    """The id of the command."""
    by: str
    """The user or the policy that asked for it."""
    why: str
    millis: int
    """The time at which it started, milliseconds since 1970."""
    operations: list[str]
    outcome: Outcome = "started"
    reason: str = ""
    """The reason of a roll-back."""
    ms: float | None = None
    """Milliseconds that it took. None while it is under way, and where a restart completed it."""

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> PlanRecord:
        """Decode `to_bytes`. Raises ValueError for other bytes."""
        return _DECODER.decode(data)


_DECODER: msgspec.json.Decoder[PlanRecord] = msgspec.json.Decoder(PlanRecord)
