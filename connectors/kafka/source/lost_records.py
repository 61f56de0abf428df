"""What a source topic does not hold any more of what a flow is to read next.

Guarantees that records are passed over only where the user allows it (`--skip-lost`), and that a
log entry then says which: their partition and offsets. Offsets bound the number of records, as
transaction markers and compacted records occupy some.
"""

from __future__ import annotations

from typing import NamedTuple

from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger

log = LineLogger("meander.kafka")

SKIP = "go on with what is left with --skip-lost"


class Lost(NamedTuple):
    """The offsets of a partition that a flow cannot read.

    >>> print(Lost("lines", 3, 100, 1900, 2000))
    topic 'lines' is to be read at offset 100 of partition 3, which holds 1,900 to 2,000: ...
    """

    topic: str
    partition: int
    first: int
    """The offset that the flow is to read next."""
    low: int
    high: int
    """The partition holds the offsets from `low` to before `high`."""

    @property
    def expired(self) -> bool:
        """Whether retention has deleted records, else the topic has lost its end."""
        return self.first < self.low

    def __str__(self) -> str:
        cause = (
            f"retention has deleted {self.low - self.first:,} records"
            if self.expired
            else "the topic was made anew, or has lost its end"
        )
        return (
            f"topic {self.topic!r} is to be read at offset {self.first:,} of partition"
            f" {self.partition}, which holds {self.low:,} to {self.high:,}: {cause}"
        )

    def pass_over(self, allowed: bool) -> None:
        """Tell the log which records the flow does not read. Raises SetupError where that is not
        allowed, or where the records are not expired."""
        where = f"topic {self.topic!r}, partition {self.partition}"
        if not (self.expired and allowed):
            _, _, said = str(self).partition(" is to be read ")
            remedy = f"lengthen its retention, and {SKIP}" if self.expired else "see who writes it"
            raise SetupError(
                where, f"it is to be read {said}", f"{remedy}, or start anew with meander reset"
            )
        log.warning(
            "records_skipped",
            topic=self.topic,
            partition=self.partition,
            first_offset=self.first,
            next_offset=self.low,
            reason="retention has deleted them",
        )
