"""The bound of what waits in one place, where no source can be held back for it (I6).

What is read and not passed is bounded by the sources; what user functions make of it is not. So
each place where records wait ends the flow with a clear error rather than fill the memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from meander.schemas.errors import MeanderError


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """How many bytes may wait in a place.

    >>> MemoryLimit("operator 'a'", 10).check(9, "records wait")
    """

    place: str
    most: int
    setting: str = "max_waiting"
    """What the flow calls it."""

    def check(self, size: int, what: str) -> None:
        """Raises MeanderError if more waits; `what` says what waits for what."""
        if size > self.most:
            raise MeanderError(
                self.place,
                f"{size:,} bytes of {what}, more than its bound of {self.most:,}",
                f"raise the flow's {self.setting}, or have its functions make less of one input",
            )
