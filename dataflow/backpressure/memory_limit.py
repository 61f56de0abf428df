"""The memory limit of waiting records where no source can pause for them (I6).

Sources bound the bytes that are read and not passed. They cannot bound the outputs of user
functions. Such places end the flow with a clear error before they fill the memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from meander.schemas.errors import MeanderError


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A memory limit that bounds the bytes of records waiting in one place.

    >>> MemoryLimit("operator 'a'", 10).check(9, "records wait")
    """

    place: str
    most: int
    setting: str = "max_waiting"
    """The name of the flow's option."""

    def check(self, size: int, what: str) -> None:
        """Raise MeanderError for more bytes than the limit. `what` names the waiting records and
        their reason."""
        if size > self.most:
            raise MeanderError(
                self.place,
                f"{size:,} bytes of {what}, more than its bound of {self.most:,}",
                f"raise the flow's {self.setting}, or have its functions make less of one input",
            )
