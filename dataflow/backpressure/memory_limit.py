"""The memory limit of waiting records where no pause of a source can bound them (I6).

Sources bound the bytes that are read and not passed. They cannot bound the outputs of user
functions. An operator that collects those ends the flow with a clear error before memory is full.
"""

from __future__ import annotations

from dataclasses import dataclass

from meander.schemas.errors import MeanderError


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A memory limit that bounds the bytes of records that wait at one operator or sink.

    >>> MemoryLimit("operator 'a'", 10).check(9, "records wait")
    """

    subject: str
    """The operator or sink that errors name."""
    max_bytes: int
    setting: str = "max_waiting"
    """The name of the flow's option."""

    def check(self, size: int, what: str) -> None:
        """Raise MeanderError for more bytes than the limit. `what` says which records wait, and
        for what."""
        if size > self.max_bytes:
            raise MeanderError(
                self.subject,
                f"{size:,} bytes of {what}, more than its bound of {self.max_bytes:,}",
                f"raise the flow's {self.setting}{self._or_memory}, or have its functions make less"
                " of one input",
            )

    @property
    def _or_memory(self) -> str:
        """The other setting of waiting records, for the remedy."""
        return ", or the worker's memory in the plan" if self.setting == "max_waiting" else ""
