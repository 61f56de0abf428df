"""The size of batches: a number of rows, or one that adapts to the measured time per batch.

Guarantees a size between the bounds. The target is `SECONDS` per batch, but at least `SHARE` times
that of the shortest batch, as each one waits for some turns of all workers whatever its size. A
full batch that was through in less than half of the target doubles the size, and one that took more
than twice the target halves it.
"""

from __future__ import annotations

from math import inf
from typing import Final, Literal

from meander.schemas.errors import SetupError

SECONDS: Final = 0.05
"""The target of the time from the admission of a batch until it is through."""
SHARE: Final = 8
DEFAULT: Final = 1000
LARGEST: Final = 1 << 17
"""The bounds of a size that adapts are 1 and this one."""

Size = int | Literal["auto"]


class BatchSize:
    """The size of the batches of one worker.

    >>> size = BatchSize("auto")
    >>> size.measure(1000, seconds=0.01); size.rows
    2000
    >>> size.measure(10, seconds=0.01); size.rows
    2000
    >>> size.measure(2000, seconds=0.2); size.rows
    1000
    """

    def __init__(self, size: Size) -> None:
        self.rows = DEFAULT if size == "auto" else size
        self._adapts, self._shortest = size == "auto", inf

    def measure(self, rows: int, seconds: float) -> None:
        """Adapt to a batch of some rows that took some seconds."""
        if not self._adapts:
            return
        self._shortest = min(self._shortest, seconds)
        target = max(SECONDS, SHARE * self._shortest)
        if seconds > 2 * target:
            self.rows = max(1, self.rows // 2)
        elif seconds < target / 2 and rows >= self.rows:
            self.rows = min(LARGEST, 2 * self.rows)


def check_size(subject: str, size: object) -> None:
    """Raise SetupError for a size that is neither a positive number nor "auto"."""
    if size == "auto" or (type(size) is int and size > 0):
        return
    raise SetupError(subject, f"its batch is {size!r}", 'give it a number of rows, or "auto"')
