"""Lost records: records that a flow has yet to read and that its source topic no longer holds.

Guarantees that a flow skips records only where the user allows it (`--skip-lost`). A log line then
names their partition and offsets. Offsets bound the number of records, as transaction markers and
compacted records occupy some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger

log = LineLogger("meander.kafka")

SKIP_REMEDY = "skip the lost records with --skip-lost"


class LostRecords(NamedTuple):
    """A range of offsets that a flow cannot read.

    >>> print(LostRecords("lines", 3, 100, 1900, 2000))
    topic 'lines' is to be read at offset 100 of partition 3, which holds 1,900 to 2,000: ...
    """

    topic: str
    partition: int
    first: int
    """The offset that the flow reads next."""
    low: int
    high: int
    """The partition holds the offsets from `low` to before `high`."""

    @property
    def expired(self) -> bool:
        """Return whether retention has deleted records; otherwise the topic has lost its end."""
        return self.first < self.low

    def __str__(self) -> str:
        return in_words([self])

    def skip(self, allowed: bool) -> None:
        """Log the records that the flow does not read. Raise SetupError where the user does not
        allow it, or where the records have not expired."""
        where = f"topic {self.topic!r}, partition {self.partition}"
        if not (self.expired and allowed):
            _, _, cause = str(self).partition(" is to be read ")
            remedy = "look for another program that writes to it"
            if self.expired:
                remedy = f"lengthen its retention, and {SKIP_REMEDY}"
            raise SetupError(where, f"it is to be read {cause}", f"{remedy}, or run meander reset")
        log.warning(
            "records_skipped",
            topic=self.topic,
            partition=self.partition,
            first_offset=self.first,
            next_offset=self.low,
            reason="retention has deleted them",
        )


def in_words(lost: Sequence[LostRecords]) -> str:
    """Return one sentence for partitions of a topic that have lost records for the same reason.

    >>> print(in_words([LostRecords("lines", 3, 100, 0, 9), LostRecords("lines", 4, 70, 0, 9)]))
    topic 'lines' is to be read at offset 100 of partition 3, which holds 0 to 9, and so for 1 ...
    """
    one, *others = lost
    cause = (
        f"retention has deleted {sum(each.low - each.first for each in lost):,} records"
        if one.expired
        else "the topic was recreated, or has lost its end"
    )
    more = f", and so for {len(others)} more of its partitions" if others else ""
    return (
        f"topic {one.topic!r} is to be read at offset {one.first:,} of partition"
        f" {one.partition}, which holds {one.low:,} to {one.high:,}{more}: {cause}"
    )
